"""Intervals of the time model: quantiles over sources, and the share of steps of unseen sources that they cover."""

import math
from pathlib import Path

import pytest
from msgspec.structs import replace

from benchmarks.planner import fit, fit_experts, leave_out
from benchmarks.planner.intervals import Coverage, coverages, reach, table
from benchmarks.planner.least_squares import Fit
from benchmarks.planner.residuals import LeftOut, Residual, read_residuals, write_residuals
from benchmarks.planner.rows import Row
from benchmarks.planner.unseen import sources
from headway.planner.speed import intervals, speed
from headway.planner.speed.step import step_time
from tests.planner.test_compute import BASE


def residual(source: str, error: float, left_out: LeftOut = "source", ep: int = 0, architecture: str = "Hopper") -> Residual:
    return Residual("row", left_out, source, "H100-SXM-80", architecture, "megatron", ep, 64, error, 2 * error)


def test_interval_covers_90_percent_of_the_errors_of_either_sign() -> None:
    assert reach([("one", sign * step / 100) for step, sign in zip(range(1, 11), [1, -1] * 5, strict=True)]) == 0.09


def test_every_source_has_the_same_weight_whatever_its_number_of_rows() -> None:
    many = [("many", 0.01)] * 900
    assert reach([*many, ("few", 0.5)]) == 0.5
    assert reach([*many, *(("many", 0.1) for _ in range(200))]) == 0.1
    with pytest.raises(ValueError, match="nothing was measured"):
        reach([])


def test_interval_is_computed_without_the_source_of_its_row() -> None:
    rows = [residual(source, error) for source in ("one", "two", "three") for error in (0.1, -0.1)]
    [alike] = coverages(rows)
    assert (alike.rows, alike.sources, alike.held, alike.held_over_sources) == (6, 3, 1.0, 1.0)
    assert (alike.factor, alike.naive_factor) == pytest.approx((math.exp(0.2), math.exp(0.4)))
    [unlike] = coverages([*rows, *(residual("four", 0.3) for _ in range(6))])
    assert (unlike.held, unlike.held_over_sources) == (0.5, 0.75)


def test_unseen_architecture_has_the_interval_of_other_architectures() -> None:
    usual = [residual(source, 0.05) for source in ("one", "two")]
    hopper = [residual(source, 0.2, "architecture") for source in ("one", "two")]
    ampere = [residual(source, 0.1, "architecture", architecture="Ampere") for source in ("one", "two")]
    [_, found] = coverages([*usual, *hopper, *ampere])
    assert (found.name, found.held) == ("dense, unseen architectures", 0.5)


def named() -> dict[str, Coverage]:
    return {each.name: each for each in coverages()}


@pytest.mark.parametrize("kind", ["dense", "experts"])
@pytest.mark.parametrize("unseen", ["sources", "accelerators", "architectures"])
def test_90_percent_of_steps_of_unseen_sources_are_within_their_intervals(kind: str, unseen: str) -> None:
    found = named()[f"{kind}, unseen {unseen}"]
    assert found.rows > 100
    assert 0.87 <= found.held <= 0.95
    assert 0.87 <= found.held_over_sources <= 0.95
    assert found.factor < found.naive_factor


@pytest.mark.parametrize("scale", ["dense, more GPUs than seen", "experts, larger ep than seen"])
def test_90_percent_of_steps_at_an_unseen_scale_are_within_their_intervals(scale: str) -> None:
    assert 0.87 <= named()[scale].held <= 0.95


def test_committed_intervals_follow_from_the_committed_residuals() -> None:
    assert intervals.FILE.read_text(encoding="utf-8") == table(read_residuals())


def test_residuals_round_trip_through_their_file(tmp_path: Path) -> None:
    rows = [residual("one", 0.25), residual("two", -0.5, "ep", ep=64)]
    write_residuals(rows, tmp_path / "rows.csv")
    assert read_residuals(tmp_path / "rows.csv") == rows


def test_errors_of_unseen_sources_are_given_pooled_and_by_source() -> None:
    found = sources([residual("one", -math.log(1.1)), residual("one", -math.log(1.2)), residual("two", -math.log(1.3), ep=8)])
    assert (found["pooled"], found["mean_over_sources"], found["rows"]) == pytest.approx((0.15, 0.15, 2))
    assert found["experts"]["by_source"] == pytest.approx({"two": 0.3})
    assert found["naive"]["pooled"] == pytest.approx((0.21 + 0.44) / 2)


def published(number: int, source: str, gpus: int, times: float) -> Row:
    """Return a row whose step took `times` its estimate."""
    training = replace(BASE, micro=1 + number % 2, degrees=replace(BASE.degrees, dp_shard=gpus))
    seconds = times * step_time(training).seconds
    return Row(f"{source}-{number}", source, "llama", "H100-SXM-80", training, seconds, None, out_of_memory=False, moe=False)


def test_fold_is_predicted_without_its_group_and_without_its_source(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [published(number, source, gpus, 1.5) for source in ("one", "two") for number, gpus in enumerate((8, 8, 512))]
    monkeypatch.setattr(fit, "rows_to_fit", lambda: rows)
    monkeypatch.setattr(leave_out, "read", lambda: rows)
    assert leave_out.folds(rows) == [
        ("source", "one", "one"),
        ("source", "two", "two"),
        ("accelerator", "H100-SXM-80", "one"),
        ("accelerator", "H100-SXM-80", "two"),
        ("architecture", "Hopper", "one"),
        ("architecture", "Hopper", "two"),
        ("gpus", "many", "one"),
        ("gpus", "many", "two"),
    ]
    seen = list[list[str]]()

    class Nothing(Fit):
        def __init__(self, chosen: list[Row], tables: object) -> None:
            seen.append([row.id for row in chosen])
            super().__init__(chosen or rows[:1], {})

        def solve(self, rounds: int) -> object:  # type: ignore[override]
            return self.start

        def speed(self, moved: object) -> speed.Speed:
            return speed.constants()

    monkeypatch.setattr(leave_out, "Fit", Nothing)
    found = leave_out.residuals_of("gpus", "many", "two")
    assert seen == [["one-0", "one-1"]]
    assert [(each.id, each.left_out, each.gpus > 256) for each in found] == [("two-2", "gpus", True)]
    assert found[0].planner == pytest.approx(math.log(1.5), abs=1e-4)


def test_fit_starts_from_unfitted_values() -> None:
    matmul = leave_out.unfitted(speed.read())["chips"]["Hopper"]["matmul"]
    assert matmul["value"] == matmul["prior"] != speed.read()["chips"]["Hopper"]["matmul"]["value"]
    assert set(fit_experts.USUAL) == set(fit_experts.START)
