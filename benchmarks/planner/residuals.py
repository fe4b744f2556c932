"""Reads and writes residuals.csv: how far the time model was off on rows that no constant was fitted on (leave_out.py makes them)."""

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from msgspec import Struct
from msgspec.structs import asdict, fields

FILE = Path(__file__).with_name("residuals.csv")

LeftOut = Literal["source", "accelerator", "architecture", "gpus", "ep"]
"""All that was taken out: the row's source, and all rows of its accelerator, of its architecture, on many GPUs, or with a large `ep`."""


class Residual(Struct, frozen=True):
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


def read_residuals(file: Path | None = None) -> list[Residual]:
    """Return the residuals of the file, or the committed ones. Raises OSError, ValueError."""
    kinds = {field.name: field.type for field in fields(Residual)}
    with (file or FILE).open(newline="", encoding="utf-8") as lines:
        return [_residual({name: _value(kinds[name], text) for name, text in line.items()}) for line in csv.DictReader(lines)]


def _residual(values: dict[str, Any]) -> Residual:
    return Residual(**values)


def _value(kind: object, text: str) -> object:
    return kind(text) if kind in (int, float) and callable(kind) else text


def write_residuals(residuals: Sequence[Residual], file: Path = FILE) -> None:
    """Write them, in order. Raises OSError."""
    with file.open("w", newline="", encoding="utf-8") as lines:
        writer = csv.DictWriter(lines, Residual.__struct_fields__, lineterminator="\n")
        writer.writeheader()
        writer.writerows(asdict(residual) for residual in residuals)
