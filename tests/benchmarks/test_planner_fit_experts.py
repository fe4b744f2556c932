"""The fit of experts.yaml recovers the constants of computed steps and writes them in place."""

import math
import statistics
from pathlib import Path

import pytest
from msgspec.structs import replace

from benchmarks.planner import fit_experts, unseen
from benchmarks.planner.rows import Row
from headway.jobspec.catalog.gpus import gpus
from headway.jobspec.catalog.models import preset
from headway.jobspec.resolve.model import resolve_model
from headway.planner.speed import speed
from headway.planner.speed.experts import speed as experts_speed
from headway.planner.speed.step import step_time
from headway.planner.training import Degrees, Kernels, Network, Training

NODES = Network(8, 8, 450e9, 50e9, 8, "efa")
USUAL = {name: start.value for name, start in fit_experts.START.items()}


def row(step_s: float | None = None, source: str = "aws-moe", **changes: object) -> Row:
    training = Training(
        model=resolve_model(preset("qwen3-30b-a3b").model, Path()),
        gpu=gpus()["H100-SXM-80"],
        network=NODES,
        degrees=Degrees(dp_shard=32, ep=32, sharding="optimizer"),
        micro=1,
        accumulation=4,
        sequence=4096,
        framework="megatron",
        kernels=Kernels(dispatcher="alltoall"),
    )
    training = replace(training, **changes)
    return Row(source, source, "qwen3-30b-a3b", "H100-SXM-80", training, step_s, None, out_of_memory=False, moe=True)


def rows_of(values: dict[str, float]) -> list[Row]:
    """Return steps of six layouts, computed with these constants."""
    constants = replace(speed.constants(), experts=experts_speed.speed_of(fit_experts.tables_with(values)))
    found = []
    for micro in (1, 2, 8):
        for ep in (8, 32):
            one = row(micro=micro, degrees=Degrees(dp_shard=32, ep=ep, sharding="optimizer"))
            assert one.training is not None
            found.append(replace(one, step_s=step_time(one.training, constants).seconds))
    return found


@pytest.mark.slow
def test_fit_recovers_the_constants_of_computed_steps() -> None:
    rows = rows_of({**USUAL, "operation_us": 100.0, "queue": 1.4})
    found = fit_experts.fit(rows, USUAL)
    before, after = (fit_experts.errors(rows, values)["aws-moe"] for values in (USUAL, found))
    assert max(map(abs, after)) < max(map(abs, before)) / 2


def test_constants_without_rows_stay_unchanged() -> None:
    found = fit_experts.fit(rows_of(USUAL), USUAL)
    assert found == USUAL


@pytest.mark.slow
def test_source_is_predicted_by_constants_fitted_on_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = [replace(one, source="moezoo", step_s=2 * (one.step_s or 0.0)) for one in rows_of(USUAL)]
    found = fit_experts.summary(fit_experts.left_out([*rows_of(USUAL), *slow], USUAL, lambda row: row.source))
    assert found["by_source"]["moezoo"] == pytest.approx(0.5)
    assert found["mean_over_sources"] == pytest.approx(statistics.fmean(found["by_source"].values()))
    monkeypatch.setattr(unseen, "FILE", tmp_path / "leave-one-out.json")
    unseen.write({"models": {"mean_over_sources": 0.1}})
    unseen.write({"experts": found})
    assert unseen.read() == {"models": {"mean_over_sources": 0.1}, "experts": found}


def test_fit_uses_only_complete_timed_runs_of_models_with_experts() -> None:
    dense = replace(row(1.0), moe=False)
    unknown = replace(row(1.0), lacks="recompute not known")
    failed = replace(row(1.0), out_of_memory=True)
    assert fit_experts.timed([row(1.0), row(), dense, unknown, failed]) == [row(1.0)]


def test_large_error_has_less_weight_than_its_size() -> None:
    near, far = fit_experts.robust(-0.4), fit_experts.robust(1.4)
    assert near == pytest.approx(0.4)
    assert far == pytest.approx(0.4 + 0.3)


def test_value_is_written_in_place_and_nothing_else_changes() -> None:
    text = experts_speed.FILE.read_text(encoding="utf-8")
    changed = fit_experts.written(text, {"queue": 1.2345, "message_us.uccl": 9.0})
    differing = [line for line in zip(text.splitlines(), changed.splitlines(), strict=True) if line[0] != line[1]]
    assert [new.split(",")[0].strip() for _, new in differing] == ["uccl: {value: 9", "queue: {value: 1.23"]


def test_every_fitted_constant_is_in_the_file_and_starts_near_its_value() -> None:
    tables = fit_experts.tables_with({})
    for name, start in fit_experts.START.items():
        table = tables
        for part in name.split("."):
            table = table[part]
        assert "fitted" in table
        assert abs(math.log(table["value"] / start.value)) < 3 * start.spread
