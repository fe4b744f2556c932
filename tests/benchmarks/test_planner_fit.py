"""The fit of the time model's constants recovers those of synthetic rows, tolerates a wrong row, and writes only values."""

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from benchmarks.planner import fit
from benchmarks.planner.least_squares import Fit
from benchmarks.planner.rows import Row
from headway.planner.speed import speed
from headway.planner.speed.step import step_time
from headway.planner.training import Degrees
from tests.planner.test_compute import BASE

MATMUL = ("chips", "Hopper", "matmul")


def tables(value: float) -> dict[str, Any]:
    """Return speed.yaml with one constant to fit, which is `value`."""
    found = copy.deepcopy(speed.read())
    without_priors(found)
    found["chips"]["Hopper"]["matmul"] = {"value": value, "prior": 0.8, "within": 0.5, "source": "a test"}
    return found


def without_priors(table: Mapping[str, Any]) -> None:
    """Remove the priors at any depth."""
    for inner in table.values():
        if isinstance(inner, dict):
            inner.pop("prior", None)
            without_priors(inner)


def row(number: int, micro: int, tp: int, matmul: float) -> Row:
    """Return a row measured where large products attain this share of the peak."""
    training = replace(BASE, micro=micro, degrees=Degrees(tp=tp))
    measured = step_time(training, speed.speed_of(tables(matmul))).seconds
    return Row(f"test-{number}", "test", "llama", "H100-SXM-80", training, measured, None, False, False)


@pytest.fixture(name="rows")
def _rows() -> list[Row]:
    return [
        row(number, micro, tp, matmul=0.6) for number, (micro, tp) in enumerate([(1, 1), (2, 1), (4, 1), (1, 2), (1, 4), (2, 4)])
    ]


def test_fit_recovers_the_constants_of_synthetic_rows(rows: list[Row]) -> None:
    fitted = Fit(rows, tables(0.8))
    assert [constant.path for constant in fitted.constants] == [MATMUL]
    moved = fitted.solve(rounds=8)
    assert fitted.speed(moved).chips["Hopper"].matmul == pytest.approx(0.6, rel=0.01)
    assert abs(fitted.errors(moved)).max() < 0.01


@pytest.mark.slow
def test_one_wrong_row_moves_the_constants_little(rows: list[Row]) -> None:
    wrong = [*rows[1:], replace(rows[0], step_s=3 * (rows[0].step_s or 0))]
    fitted = Fit(wrong, tables(0.8))
    assert fitted.speed(fitted.solve(rounds=8)).chips["Hopper"].matmul == pytest.approx(0.6, rel=0.05)


def test_constant_without_rows_stays_at_its_prior(rows: list[Row]) -> None:
    blackwell = tables(0.8)
    blackwell["chips"]["Blackwell"]["matmul"] |= {"value": 0.5, "prior": 0.65, "within": 0.08}
    fitted = Fit(rows, blackwell)
    assert fitted.speed(fitted.solve(rounds=8)).chips["Blackwell"].matmul == pytest.approx(0.65, rel=0.01)


def test_each_fold_is_predicted_by_constants_fitted_without_it(rows: list[Row], monkeypatch: pytest.MonkeyPatch) -> None:
    there = tables(0.8)
    monkeypatch.setattr(speed, "read", lambda: there)
    other = [replace(one, source="other", step_s=2 * (one.step_s or 0)) for one in rows]
    found = fit.left_out([*rows, *other], lambda one: one.source)
    assert {name: len(pairs) for name, pairs in found.items()} == {"test": 6, "other": 6}
    assert min(error for _, error in found["test"]) > 0.3
    assert max(error for _, error in found["other"]) < -0.3


def test_fit_writes_only_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = speed.FILE.read_text()
    monkeypatch.setattr(speed, "FILE", tmp_path / "speed.yaml")
    speed.FILE.write_text(before)
    fit._write({MATMUL: "0.123", ("likeness", "own"): "0.5"})
    changed = [
        (old, new) for old, new in zip(before.splitlines(), speed.FILE.read_text().splitlines(), strict=True) if old != new
    ]
    assert len(changed) == 2
    written = speed.constants.__wrapped__()
    assert written.chips["Hopper"].matmul == 0.123
    assert written.likeness["own"] == 0.5
