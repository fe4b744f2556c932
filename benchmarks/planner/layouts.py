"""Measures the planner's choices on published layout sweeps: what each choice loses against the best."""

import statistics
from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Mapping, Sequence

from msgspec import Struct

from benchmarks.planner.predict import Predicted
from benchmarks.planner.spread import rank_correlation
from headway.planner.training import Verdict

Seconds = Callable[[Predicted], float]

_LAYOUTS = 3
_EQUAL = 1e-9


class Sweep(Struct, frozen=True):
    """Layouts of one model, batch, sequence and number of GPUs of one source; `failed` ran out of memory."""

    source: str
    name: str
    measured: tuple[Predicted, ...]
    failed: tuple[Predicted, ...]


class Choice(Struct, frozen=True):
    """The share of the best measured throughput that a predictor's choice of a sweep loses: 1 for what ran out of
    memory, `out_of_memory` its chance.

    Of layouts that a predictor holds equally fast each is as likely.
    """

    sweep: Sweep
    loss: float
    out_of_memory: float
    correlation: float | None


class Choices(Struct, frozen=True):
    """Over sweeps: mean and worst loss, median rank correlation, and how many choices ran out of memory."""

    sweeps: int
    mean: float
    worst: float
    correlation: float | None
    out_of_memory: float


def sweeps(predictions: Iterable[Predicted]) -> list[Sweep]:
    """Return rows that differ in nothing but the layout, kernels and recomputation, where three or more were measured."""
    groups = defaultdict[tuple[str, str], list[Predicted]](list)
    for each in predictions:
        if each.row.complete and each.step is not None and (each.row.out_of_memory or each.row.timed):
            groups[each.row.source, _name(each)].append(each)
    found = [
        Sweep(source, name, *(tuple(row for row in rows if row.row.out_of_memory is failed) for failed in (False, True)))
        for (source, name), rows in groups.items()
    ]
    return [sweep for sweep in found if len({_layout(row) for row in sweep.measured}) >= _LAYOUTS]


def _name(each: Predicted) -> str:
    training = each.training
    return f"{each.row.model} on {training.gpus} {each.row.gpu}, {training.sequences} x {training.sequence}, {training.formats.compute}"


def _layout(each: Predicted) -> object:
    training = each.training
    return training.degrees, training.micro, training.recompute, training.recomputed_share, training.recomputed_parts


def choices(found: Iterable[Sweep], seconds: Seconds) -> list[Choice]:
    """Return a predictor's choices among the layouts that ran."""
    return [_choice(sweep, sweep.measured, seconds) for sweep in found]


def choices_by_verdict(found: Iterable[Sweep], seconds: Seconds, verdicts: Container[Verdict]) -> list[Choice]:
    """Return the planner's choices among all layouts, also those that ran out of memory, that it gives one of the
    verdicts (if any)."""
    chosen = []
    for sweep in found:
        everything = (*sweep.measured, *sweep.failed)
        allowed = [row for row in everything if row.memory is not None and row.memory.verdict in verdicts]
        chosen.append(_choice(sweep, allowed or everything, seconds))
    return chosen


def _choice(sweep: Sweep, candidates: Sequence[Predicted], seconds: Seconds) -> Choice:
    fastest = min(map(seconds, candidates))
    chosen = [row for row in candidates if seconds(row) <= fastest * (1 + _EQUAL)]
    best = min(_measured(row) for row in sweep.measured)
    return Choice(
        sweep,
        loss=statistics.fmean(1.0 if row.row.out_of_memory else 1 - best / _measured(row) for row in chosen),
        out_of_memory=statistics.fmean(row.row.out_of_memory for row in chosen),
        correlation=rank_correlation([(seconds(row), _measured(row)) for row in sweep.measured]),
    )


def _measured(row: Predicted) -> float:
    return row.row.step_s or float("inf")


def summed(chosen: Sequence[Choice]) -> Choices | None:
    """None where there is no sweep."""
    if not chosen:
        return None
    correlations = [choice.correlation for choice in chosen if choice.correlation is not None]
    return Choices(
        sweeps=len(chosen),
        mean=statistics.fmean(choice.loss for choice in chosen),
        worst=max(choice.loss for choice in chosen),
        correlation=statistics.median(correlations) if correlations else None,
        out_of_memory=sum(choice.out_of_memory for choice in chosen),
    )


def by_source(found: Iterable[Sweep]) -> Mapping[str, list[Sweep]]:
    """Return the sweeps of each source, the source of the largest sweep first."""
    groups = defaultdict[str, list[Sweep]](list)
    for sweep in found:
        groups[sweep.source].append(sweep)
    return dict(sorted(groups.items(), key=lambda item: -max(len(sweep.measured) for sweep in item[1])))
