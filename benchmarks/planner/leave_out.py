"""Measures the time model on rows that no constant was fitted on: `python -m benchmarks.planner.leave_out` writes residuals.csv.

It takes each source out of the published rows in turn: alone, then with all rows of an accelerator that it measured, with all of an
architecture, with all on many GPUs, and with all that have experts on many ranks. It fits every constant on what is left, of dense models
and of those with experts, and predicts the source's rows of that kind; the naive model has the same. Half an hour on two cores.
"""

import argparse
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Any

from benchmarks.planner import fit, fit_experts, naive
from benchmarks.planner.least_squares import OWN_LINE, Fit, training_of
from benchmarks.planner.residuals import LeftOut, Residual, write_residuals
from benchmarks.planner.rows import Row, read
from headway.planner.speed import speed
from headway.planner.speed.step import step_time

_MANY_GPUS, _LARGE_EP = 256, 32
# What a row is taken out with; empty where it is not taken out so.
_KEYS: Mapping[LeftOut, Callable[[Row], str]] = {
    "source": lambda row: row.source,
    "accelerator": lambda row: training_of(row).gpu.name,
    "architecture": lambda row: training_of(row).gpu.arch,
    "gpus": lambda row: "many" if training_of(row).gpus >= _MANY_GPUS else "",
    "ep": lambda row: "large" if row.moe and training_of(row).degrees.ep >= _LARGE_EP else "",
}
_ROUNDS = 8


def folds(rows: Sequence[Row]) -> list[tuple[LeftOut, str, str]]:
    """Return all that is taken out in turn: the kind, its name, and the source that is taken out with it."""
    counted = [row for row in rows if row.source != OWN_LINE]
    found = sorted({(kind, key(row), row.source) for kind, key in _KEYS.items() for row in counted if key(row)})
    return sorted(found, key=lambda fold: list(_KEYS).index(fold[0]))


def residuals_of(kind: LeftOut, name: str, source: str) -> list[Residual]:
    """Return the residuals of the source's rows of one accelerator, or another kind: neither other rows of this kind nor other rows of the
    source are fitted on."""
    key = _KEYS[kind]
    rows = [*fit.rows_to_fit(), *fit_experts.timed(read())]
    seen = [row for row in rows if key(row) != name and row.source != source]
    dense, experts = [row for row in seen if not row.moe], [row for row in seen if row.moe]
    hidden = [row for row in rows if key(row) == name and row.source == source]
    fitted = Fit(dense, unfitted(speed.read()))
    known = fitted.speed(fitted.solve(rounds=_ROUNDS))
    if any(row.moe for row in hidden):
        known = fit_experts.with_values(known, fit_experts.fit(experts, fit_experts.USUAL, known))
    table = naive.fitted(row for row in seen if row.source != OWN_LINE)
    return [_residual(kind, row, known, table) for row in hidden]


def unfitted(tables: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tables of speed.yaml with every fitted constant at the value of its source, which no row has moved."""
    if "prior" in tables:
        return {**tables, "value": tables["prior"]}
    return {name: unfitted(table) if isinstance(table, dict) else table for name, table in tables.items()}


def _residual(kind: LeftOut, row: Row, known: speed.Speed, table: Mapping[str, float]) -> Residual:
    training = training_of(row)
    measured = math.log(row.step_s or math.nan)
    return Residual(
        id=row.id,
        left_out=kind,
        source=row.source,
        accelerator=training.gpu.name,
        architecture=training.gpu.arch,
        framework=training.framework,
        ep=training.degrees.ep if training.model.experts is not None else 0,
        gpus=training.gpus,
        planner=round(measured - math.log(step_time(training, known).seconds), 4),
        naive=round(measured - math.log(naive.naive_seconds(training, table)), 4),
    )


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.planner.leave_out", description=__doc__)
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="processes that fit at once")
    with ProcessPoolExecutor(parser.parse_args().jobs) as pool:
        write_residuals([residual for found in pool.map(residuals_of, *_columns()) for residual in found])


def _columns() -> Iterator[tuple[str, ...]]:
    yield from zip(*folds(fit.rows_to_fit() + fit_experts.timed(read())), strict=True)


if __name__ == "__main__":
    main()
