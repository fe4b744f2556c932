"""The interval of a step's time depends on the kind of model, and is wider, with a reason, if no published step is similar."""

import math

import pytest
from msgspec.structs import replace

from headway.jobspec.catalog.gpus import gpus
from headway.planner.speed.calibrate import calibrate
from headway.planner.speed.intervals import intervals, intervals_of, read
from headway.planner.speed.step import step_time
from tests.planner.test_compute import BASE
from tests.planner.test_experts import by

TABLES = {
    "classes": {
        "dense": {
            "usual": {"interval": [-0.1, 0.2]},
            "accelerator": {"interval": [-0.3, 0.15]},
            "architecture": {"interval": [-0.2, 0.35]},
            "gpus": {"interval": [-0.2, 0.4]},
        },
        "experts": {"usual": {"interval": [-0.4, 0.4]}, "ep": {"interval": [-0.5, 0.5]}},
    },
    "measured": {
        "dense": {"accelerators": ["H100-SXM-80"], "architectures": ["Hopper"], "gpus": 1024},
        "experts": {"accelerators": ["H100-SXM-80"], "architectures": ["Hopper"], "gpus": 1024, "ep": 8},
    },
}
NEW = gpus()["MI300X-192"]


def test_bounds_are_the_step_time_scaled_by_the_interval() -> None:
    step, interval = step_time(BASE), intervals().of(BASE)
    assert (step.low / step.seconds, step.high / step.seconds) == pytest.approx((math.exp(interval.low), math.exp(interval.high)))
    assert step.extrapolated == ()


def test_step_similar_to_measured_ones_has_the_usual_interval() -> None:
    found = intervals_of(TABLES).of(BASE)
    assert (found.low, found.high, found.reasons) == (-0.1, 0.2, ())


def test_interval_is_the_widest_that_applies_and_has_reasons() -> None:
    many = replace(BASE, gpu=NEW, degrees=replace(BASE.degrees, dp_shard=2048))
    found = intervals_of(TABLES).of(many)
    assert (found.low, found.high) == (-0.3, 0.4)
    assert found.reasons == (
        "no published step of a dense model on MI300X-192 or another CDNA3 accelerator was measured",
        "no published step of a dense model on more than 1,024 GPUs was measured",
    )


def test_accelerator_of_a_measured_architecture_has_the_interval_of_accelerators() -> None:
    found, unmeasured = (
        intervals_of(TABLES).of(replace(BASE, gpu=gpus()["H200-SXM-141"])),
        intervals_of(TABLES).of(replace(BASE, gpu=NEW)),
    )
    assert (found.low, found.high, unmeasured.low, unmeasured.high) == (-0.3, 0.2, -0.3, 0.35)
    assert found.reasons == ("no published step of a dense model on H200-SXM-141 was measured",)


def test_model_with_experts_has_a_wider_interval_at_a_large_ep() -> None:
    known = intervals_of(TABLES)
    small, large = by("alltoall", ep=8), by("alltoall", ep=16)
    assert (known.of(small).high, known.of(small).reasons) == (0.4, ())
    assert known.of(large).high == 0.5
    assert known.of(large).reasons == ("no published step with experts at ep > 8 was measured",)


@pytest.mark.parametrize("kind", ["dense", "experts"])
def test_committed_intervals_are_wider_with_fewer_measurements(kind: str) -> None:
    classes = read()["classes"]
    assert classes["experts"]["usual"]["interval"][1] > classes["dense"]["usual"]["interval"][1]
    assert all(low < 0 < high for low, high in (row["interval"] for row in classes[kind].values()))


def test_measured_step_removes_its_reasons() -> None:
    new = replace(BASE, gpu=NEW)
    many = replace(new, degrees=replace(BASE.degrees, dp_shard=8192))
    calibration = calibrate([(new, step_time(new).seconds)])
    assert step_time(new).extrapolated
    assert calibration.step_time(new).extrapolated == ()
    assert [reason for reason in calibration.step_time(many).extrapolated if "MI300X" in reason] == []
    assert len(calibration.step_time(many).extrapolated) == 1
