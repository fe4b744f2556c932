"""Reads intervals.yaml: how far steps of sources that no constant was fitted on were from their estimates."""

from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from msgspec import Struct

from headway.planner.identity import ByIdentity
from headway.planner.training import Training

FILE = Path(__file__).with_name("intervals.yaml")


class TimeInterval(Struct, frozen=True):
    """Logarithms of measured over estimated time that 90 % of the steps of a class are between."""

    low: float
    high: float


class TrainingInterval(TimeInterval, frozen=True):
    """The interval of one training. `reasons` why it is extrapolated, as text: each names what no measured step has."""

    reasons: tuple[str, ...] = ()


class Measured(ByIdentity, frozen=True):
    """The published steps that constants were fitted on: of which `accelerators` and their `architectures`, on how many GPUs and ranks of
    `ep` at most."""

    accelerators: frozenset[str]
    architectures: frozenset[str]
    gpus: int
    ep: int = 1


class Intervals(ByIdentity, frozen=True):
    """Intervals by class, and what was `measured`: each by the kind of model, `dense` or `experts`.

    `usual` is of steps like those that were measured, `accelerator` of an accelerator without a measured step, `architecture` of one whose
    architecture has none either, `gpus` and `ep` of more GPUs and more ranks of `ep` than any measured step.
    """

    classes: Mapping[str, Mapping[str, TimeInterval]]
    measured: Mapping[str, Measured]

    def of(self, training: Training) -> TrainingInterval:
        """Return the interval that holds all that apply to the training, with what no measured step has."""
        kind = "dense" if training.model.experts is None else "experts"
        table = self.classes[kind]
        found = list(_unlike(training, self.measured[kind], "of a dense model" if kind == "dense" else "with experts"))
        each = [table["usual"], *(table[name] for name, _ in found)]
        reasons = tuple(dict.fromkeys(reason for _, reason in found))
        return TrainingInterval(min(one.low for one in each), max(one.high for one in each), reasons)


def _unlike(training: Training, measured: Measured, kind: str) -> Iterator[tuple[str, str]]:
    """Yield each class beyond the usual one that the training is in, with its reason."""
    gpu = training.gpu
    if gpu.name not in measured.accelerators:
        new = gpu.arch not in measured.architectures
        reason = f"no published step {kind} on {gpu.name}{f' or another {gpu.arch} accelerator' if new else ''} was measured"
        yield "accelerator", reason
        if new:
            yield "architecture", reason
    if training.gpus > measured.gpus:
        yield "gpus", f"no published step {kind} on more than {measured.gpus:,} GPUs was measured"
    # A dense model with `ep` has a problem of its own.
    if training.model.experts is not None and training.degrees.ep > measured.ep:
        yield "ep", f"no published step {kind} at ep > {measured.ep} was measured"


@cache
def intervals() -> Intervals:
    """Return the committed intervals."""
    return intervals_of(read())


def read() -> dict[str, Any]:
    """intervals.yaml unchanged."""
    found: dict[str, Any] = yaml.load(FILE.read_text(encoding="utf-8"), yaml.CSafeLoader)
    return found


def intervals_of(tables: Mapping[str, Any]) -> Intervals:
    """Return the tables of intervals.yaml as records."""
    return Intervals(
        classes={
            kind: {name: TimeInterval(*row["interval"]) for name, row in table.items()}
            for kind, table in tables["classes"].items()
        },
        measured={
            kind: Measured(frozenset(row["accelerators"]), frozenset(row["architectures"]), row["gpus"], row.get("ep", 1))
            for kind, row in tables["measured"].items()
        },
    )
