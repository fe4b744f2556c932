"""Measures the time model on rows that no constant was fitted on: residuals.csv.

`python -m benchmarks.planner.residuals` takes each source out of the published rows in turn: alone, then with all rows of an accelerator that it
measured, with all of an architecture, with all on many GPUs, and with all that have experts on many ranks. It fits every constant on what is
left, of dense models and of those with experts, and predicts the source's rows of that kind; the naive model has the same. It takes a quarter
of an hour on two cores.
"""

import argparse
import csv
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal

from benchmarks.planner import fit, fit_experts, naive
from benchmarks.planner.least_squares import OWN_LINE, Fit, training_of
from benchmarks.planner.rows import Row, read
from headway.planner.speed import speed
from headway.planner.speed.step import step_time

FILE = Path(__file__).with_name("residuals.csv")

LeftOut = Literal["source", "accelerator", "architecture", "gpus", "ep"]
"""What was taken out whole with the row: all steps on `_MANY_GPUS` or more are `gpus`, all with experts on `_LARGE_EP` ranks or more `ep`."""

_MANY_GPUS, _LARGE_EP = 256, 32
# What a row is taken out with; empty where a row is not taken out so.
_KEYS: Mapping[LeftOut, Callable[[Row], str]] = {
    "source": lambda row: row.source,
    "accelerator": lambda row: training_of(row).gpu.name,
    "architecture": lambda row: training_of(row).gpu.arch,
    "gpus": lambda row: "many" if training_of(row).gpus >= _MANY_GPUS else "",
    "ep": lambda row: "large" if row.moe and training_of(row).degrees.ep >= _LARGE_EP else "",
}
_ROUNDS = 8


@dataclass(frozen=True)
class Residual:
    """One row under constants that were fitted without its source and without all rows that share its `left_out`.

    `planner` and `naive` are logarithms of measured over predicted time. `ep` is 0 where the model has no experts.
    """

    id: str
    left_out: LeftOut
    source: str
    accelerator: str
    architecture: str
    framework: str
    ep: int
    gpus: int
    planner: float
    naive: float


def read_residuals(file: Path = FILE) -> list[Residual]:
    """Return the residuals of the file. Raises OSError, ValueError."""
    kinds = {field.name: field.type for field in fields(Residual)}
    with file.open(newline="", encoding="utf-8") as lines:
        return [Residual(**{name: _value(kinds[name], text) for name, text in line.items()}) for line in csv.DictReader(lines)]


def _value(kind: object, text: str) -> object:
    return kind(text) if kind in (int, float) and callable(kind) else text


def write_residuals(residuals: Sequence[Residual], file: Path = FILE) -> None:
    """Write them, in order. Raises OSError."""
    with file.open("w", newline="", encoding="utf-8") as lines:
        writer = csv.DictWriter(lines, [field.name for field in fields(Residual)], lineterminator="\n")
        writer.writeheader()
        writer.writerows(asdict(residual) for residual in residuals)


def folds(rows: Sequence[Row]) -> list[tuple[LeftOut, str, str]]:
    """Return all that is taken out in turn: the kind, its name, and the source that is taken out with it."""
    counted = [row for row in rows if row.source != OWN_LINE]
    found = sorted({(kind, key(row), row.source) for kind, key in _KEYS.items() for row in counted if key(row)})
    return sorted(found, key=lambda fold: list(_KEYS).index(fold[0]))


def residuals_of(kind: LeftOut, name: str, source: str) -> list[Residual]:
    """Return the residuals of the source's rows of one accelerator, or another kind: neither other rows of this kind nor other rows of the source
    are fitted on."""
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
    """Return the tables of speed.yaml with every fitted constant at the value of its source, so that a fit starts from nothing that it must not see."""
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
    parser = argparse.ArgumentParser(prog="python -m benchmarks.planner.residuals", description=__doc__)
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="processes that fit at once")
    with ProcessPoolExecutor(parser.parse_args().jobs) as pool:
        write_residuals([residual for found in pool.map(residuals_of, *_columns()) for residual in found])


def _columns() -> Iterator[tuple[str, ...]]:
    yield from zip(*folds(fit.rows_to_fit() + fit_experts.timed(read())), strict=True)


if __name__ == "__main__":
    main()
