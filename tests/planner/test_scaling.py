"""Strong and weak scaling: throughput for each number of GPUs, and the number beyond which more do not pay."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from headway.jobspec.catalog.gpus import gpus
from headway.jobspec.resolve.model import resolve_model
from headway.jobspec.spec.model import Model
from headway.planner.goodput.interval import expected_goodput
from headway.planner.goodput.run import FailureCause, FailureModel, Recovery, SimulatedRun, SimulatedTier
from headway.planner.scaling import PAYS, Scaling, ScalingPoint, gpu_counts, scaling
from headway.planner.search.search import Allowed, Request, search
from headway.planner.training import Network

MODEL = Model(preset="llama-3.1-8b")
NODE = Network(8, 8, 450e9, 50e9, 8, "infiniband")
COUNTS = (64, 256, 1024, 4096, 16384)


@pytest.fixture(scope="module")
def request_() -> Request:
    """Return a request for Llama 3.1 8B with 256 sequences of 8,192 tokens per step on 128 GPUs."""
    allowed = Allowed(pp=(1, 2), dp_replicate=(1,), recompute=("none", "full"))
    return Request(resolve_model(MODEL, Path()), gpus()["H100-SXM-80"], NODE, 128, 256, 8192, "torchtitan", allowed=allowed)


@pytest.fixture(scope="module")
def strong(request_: Request) -> Scaling:
    return scaling(request_, COUNTS, "strong")


@pytest.fixture(scope="module")
def weak(request_: Request) -> Scaling:
    return scaling(request_, COUNTS, "weak")


def test_ranges_are_powers_of_two_between_the_nearest_to_both_ends() -> None:
    assert gpu_counts("1k..4k") == (1024, 2048, 4096)
    assert gpu_counts("100..1k") == (128, 256, 512, 1024)
    assert gpu_counts("1k..100k")[-1] == 131072
    assert gpu_counts("1k..500k")[-1] == 524288
    assert gpu_counts("8..8") == (8,)


@pytest.mark.parametrize("text", ["", "1k", "4k..1k", "0..8", "1k-8k", "1..99999999k"])
def test_invalid_range_of_gpus_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not a range of GPUs such as|must ascend, to 16384k at most"):
        gpu_counts(text)


@pytest.mark.slow
def test_strong_scaling_keeps_the_batch_and_weak_the_batch_per_gpu(strong: Scaling, weak: Scaling) -> None:
    assert [point.sequences for point in strong.points] == [256] * 5
    assert [point.sequences for point in weak.points] == [128, 512, 2048, 8192, 32768]


@pytest.mark.slow
def test_each_point_equals_the_result_of_a_search(request_: Request, strong: Scaling) -> None:
    for point in strong.points:
        assert point.best == search(replace(request_, gpus=point.gpus, top=1)).best


@pytest.mark.slow
def test_efficiency_falls_with_strong_scaling_but_not_with_weak_scaling(strong: Scaling, weak: Scaling) -> None:
    for each in (strong, weak):
        first = each.points[0]
        assert first.efficiency == 1
        assert each.points[-1].efficiency == pytest.approx(each.points[-1].tokens_s / first.tokens_s * first.gpus / 16384)
    assert strong.points[-1].efficiency < PAYS < weak.points[-1].efficiency


def test_shares_and_costs_add_up(strong: Scaling) -> None:
    for point in strong.points:
        assert point.best is not None
        parts = point.best.step.parts
        waiting = sum(seconds for name, seconds in parts.items() if name.endswith(" communication"))
        assert point.communication == pytest.approx(waiting / point.best.step.seconds)
        assert sum(point.costs.values()) == pytest.approx(point.gpus / point.tokens_s)


def test_gpus_pay_until_the_marginal_throughput_halves(strong: Scaling, weak: Scaling) -> None:
    assert strong.pays_to is not None
    before = next(point for point in strong.points if point.gpus == strong.pays_to)
    after = next(point for point in strong.points if point.gpus > strong.pays_to)
    added = (after.tokens_s - before.tokens_s) / (after.gpus - before.gpus)
    assert strong.marginal == pytest.approx(added / (before.tokens_s / before.gpus))
    assert strong.marginal < PAYS
    assert weak.pays_to is None
    assert weak.words == "more GPUs pay up to 16,384: each added GPU gives at least 50% of what one gave before"


def test_summary_names_the_cost_that_grows_most(strong: Scaling) -> None:
    assert strong.pays_to is not None
    before = next(point.costs for point in strong.points if point.gpus == strong.pays_to)
    after = next(point.costs for point in strong.points if point.gpus > strong.pays_to)
    growth = {name: cost - before.get(name, 0.0) for name, cost in after.items()}
    assert growth[strong.cost] == max(growth.values())
    assert strong.words.startswith(f"more than {strong.pays_to:,} GPUs do not pay: each added GPU gives {strong.marginal:.0%} of")


def test_gpu_counts_without_a_layout_are_gaps(request_: Request) -> None:
    alone = replace(request_, allowed=Allowed(tp=(1,), cp=(1,), pp=(1,)))
    found = scaling(alone, (64, 512), "strong")
    assert found.points[1] == ScalingPoint(512, 256, None)
    assert found.words == "a layout fits on 64 GPUs only, so there is nothing to compare"
    assert scaling(alone, (512,), "strong").words == "no layout fits on any of these numbers of GPUs"


def test_goodput_under_failures_counts_if_the_run_is_known(request_: Request) -> None:
    """A node fails every 100 days, so 256 nodes lose more of their time than 8."""
    failures = FailureModel(100 * 86400, (FailureCause("GPU", 1.0, 1.0, 60.0),))
    tiers = (SimulatedTier("shared", 3600.0, block_s=10.0, write_s=60.0, load_s=120.0),)
    run = SimulatedRun(16, 1.0, failures, Recovery(60.0, 600.0, 600.0), tiers, work_s=30 * 86400.0)
    found = scaling(request_, (64, 2048), "weak", run)
    few, many = (point.goodput for point in found.points)
    assert few is not None
    assert many is not None
    assert 0 < many < few < 1
    assert few > expected_goodput(replace(run, nodes=8))
    assert found.points[1].effective_tokens_s == pytest.approx(found.points[1].tokens_s * many)
    assert found.points[1].costs["failures"] > found.points[0].costs["failures"]
