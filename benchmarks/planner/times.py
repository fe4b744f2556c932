"""Measures step-time predictions: errors by kind, source and accelerator, coverage of the intervals, and transfer."""

import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence

from msgspec import Struct

from benchmarks.planner.predict import Predicted
from benchmarks.planner.spread import Errors, Pair, errors, mean_of_groups
from headway.planner.speed.calibrate import calibrate


class Timed(Struct, frozen=True):
    """A row with its measured and its predicted seconds of a step, and the stated 90 % interval."""

    predicted: Predicted
    seconds: float
    measured: float
    low: float
    high: float

    @property
    def pair(self) -> Pair:
        """Predicted and measured seconds."""
        return self.seconds, self.measured

    @property
    def covered(self) -> bool:
        """Whether the interval holds what was measured."""
        return self.low <= self.measured <= self.high


class Kind(Struct, frozen=True):
    """Rows of one kind (dense models, or those with experts): pooled, mean over sources, Hopper or newer, by source and accelerator."""

    pooled: Errors | None
    mean_over_sources: float | None
    newer: Errors | None
    by_source: Mapping[str, Errors]
    by_gpu: Mapping[str, Errors]
    covered: float | None
    width: float | None


class Transfer(Struct, frozen=True):
    """One row of a group measured, the others of the group predicted with it; mean over groups and over all predictions."""

    groups: int
    mean_over_groups: float
    pooled: float
    uncalibrated: float
    worst_group: str
    worst: float


def timed(predictions: Iterable[Predicted]) -> list[Timed]:
    """Return the complete rows that say how long a step took."""
    return [
        Timed(each, each.step.seconds, each.row.step_s, each.step.low, each.step.high)
        for each in predictions
        if each.row.timed and each.row.step_s is not None and each.step is not None
    ]


def kind(rows: Sequence[Timed]) -> Kind:
    """Scores of rows of one kind."""
    by_source = grouped(rows, lambda row: row.predicted.row.source)
    return Kind(
        pooled=errors(row.pair for row in rows),
        mean_over_sources=mean_of_groups({source: [row.pair for row in group] for source, group in by_source.items()}),
        newer=errors(row.pair for row in rows if row.predicted.training.gpu.arch != "Ampere"),
        by_source=_table(by_source),
        by_gpu=_table(grouped(rows, lambda row: row.predicted.row.gpu)),
        covered=statistics.fmean(row.covered for row in rows) if rows else None,
        width=statistics.median(row.high / row.low for row in rows) if rows else None,
    )


def grouped(rows: Iterable[Timed], key: Callable[[Timed], str]) -> dict[str, list[Timed]]:
    """Return the rows by key, the largest group first."""
    groups = defaultdict[str, list[Timed]](list)
    for row in rows:
        groups[key(row)].append(row)
    return dict(sorted(groups.items(), key=lambda item: -len(item[1])))


def _table(groups: Mapping[str, Sequence[Timed]]) -> dict[str, Errors]:
    return {name: found for name, group in groups.items() if (found := errors(row.pair for row in group)) is not None}


def transfer(rows: Sequence[Timed]) -> Transfer | None:
    """Return every row of a (source, model, accelerator) group in turn as the only measurement."""
    groups = {name: group for name, group in grouped(rows, _group).items() if len(group) > 1}
    if not groups:
        return None
    pairs = {name: list(_transferred(group)) for name, group in groups.items()}
    means = {name: found.mean for name, group in pairs.items() if (found := errors(group)) is not None}
    pooled = errors(pair for group in pairs.values() for pair in group)
    worst = max(means, key=means.__getitem__)
    return Transfer(
        groups=len(groups),
        mean_over_groups=statistics.fmean(means.values()),
        pooled=pooled.mean if pooled else 0.0,
        uncalibrated=mean_of_groups({name: [row.pair for row in group] for name, group in groups.items()}) or 0.0,
        worst_group=worst,
        worst=means[worst],
    )


def _group(row: Timed) -> str:
    return f"{row.predicted.row.source}, {row.predicted.row.model}, {row.predicted.row.gpu}"


def _transferred(group: Sequence[Timed]) -> Iterable[Pair]:
    for known in group:
        calibration = calibrate([(known.predicted.training, known.measured)])
        for other in group:
            if other is not known:
                yield calibration.factor(other.predicted.training) * other.seconds, other.measured
