"""Collects everything that one run measures of the planner and of its peers, as one record."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import asdict

from benchmarks.planner import unseen
from benchmarks.planner.intervals import Coverage, coverages
from benchmarks.planner.layouts import Choices, Sweep, by_source, choices, choices_by_verdict, summed, sweeps
from benchmarks.planner.memories import Peaks, Verdicts, comparable, labelled, peaks, verdicts
from benchmarks.planner.naive import naive_seconds
from benchmarks.planner.peers import NAME, llm_analysis_seconds, takes
from benchmarks.planner.predict import Predicted, predict
from benchmarks.planner.rows import OWN_LINE, Row
from benchmarks.planner.spread import Errors, errors, mean_of_groups
from benchmarks.planner.times import Kind, Timed, Transfer, grouped, kind, timed, transfer


class Counts(Struct, frozen=True):
    """Rows by what becomes of them: `left_out` by kind and reason with their ids, `not_modelled` and `assumed` texts with how often."""

    rows: int
    complete: int
    timed: int
    left_out: Mapping[str, tuple[str, ...]]
    not_modelled: Mapping[str, int]
    assumed: Mapping[str, int]
    refused: Mapping[str, tuple[str, ...]]


class Beside(Struct, frozen=True):
    """A peer and the planner on the rows that the peer takes; `refused` of `rows` it does not. `ratio` is its mean error over ours."""

    name: str
    rows: int
    refused: int
    peer: Errors | None
    peer_over_sources: float | None
    ours: Errors | None
    ours_over_sources: float | None
    ratio: float | None


class ByLayout(Struct, frozen=True):
    """Choices of layouts, over sweeps: of the layouts that ran by the planner, the naive model and chance; of all layouts those that the
    planner does not call too large, and those that it calls fitting."""

    ours: Choices | None
    naive: Choices | None
    chance: Choices | None
    not_too_large: Choices | None
    fitting: Choices | None


class OutOfMemory(Struct, frozen=True):
    """Verdicts on labelled rows: all, the source with most of them, and the others."""

    all: Verdicts | None
    largest: str
    largest_source: Verdicts | None
    others: Verdicts | None


class Score(Struct, frozen=True):
    """One run. `unseen_sources`, `left_one_out` and `coverage` were measured when the constants were fitted (unseen.py, intervals.py):
    sources that no constant saw, fifths and models that none saw, and how many steps of such sources intervals hold."""

    counts: Counts
    dense: Kind
    experts: Kind
    own_line: Kind
    transfer: Transfer | None
    transfer_experts: Transfer | None
    unseen_sources: Mapping[str, Any]
    left_one_out: Mapping[str, Any] | None
    coverage: tuple[Coverage, ...]
    peaks: Peaks
    out_of_memory: OutOfMemory
    layouts: ByLayout
    layouts_by_source: Mapping[str, ByLayout]
    layouts_own_line: ByLayout
    beside: tuple[Beside, ...]


def score(rows: Sequence[Row], peers: bool = True) -> tuple[Score, list[Predicted]]:
    """Score the rows, and with `peers` also llm-analysis. Raises MeasureError where that is not installed."""
    predictions = predict(rows)
    times = timed(predictions)
    counted = [row for row in times if row.predicted.row.source != OWN_LINE]
    dense = [row for row in counted if not row.predicted.row.moe]
    experts = [row for row in counted if row.predicted.row.moe]
    found = sweeps(predictions)
    return Score(
        counts=_counts(rows, predictions),
        dense=kind(dense),
        experts=kind(experts),
        own_line=kind([row for row in times if row.predicted.row.source == OWN_LINE]),
        transfer=transfer(dense),
        transfer_experts=transfer(experts),
        unseen_sources=unseen.sources(),
        left_one_out=unseen.read(),
        coverage=coverages(),
        peaks=peaks(predictions),
        out_of_memory=_out_of_memory(labelled(predictions)),
        layouts=_by_layout([sweep for sweep in found if sweep.source != OWN_LINE]),
        layouts_by_source={source: _by_layout(group) for source, group in by_source(found).items() if source != OWN_LINE},
        layouts_own_line=_by_layout([sweep for sweep in found if sweep.source == OWN_LINE]),
        beside=(_naive("naive", dense), _naive("naive, experts", experts), *([_llm_analysis(dense)] if peers else [])),
    ), predictions


def _counts(rows: Sequence[Row], predictions: Sequence[Predicted]) -> Counts:
    return Counts(
        rows=len(rows),
        complete=sum(row.complete for row in rows),
        timed=sum(row.timed for row in rows),
        left_out=_by_reason((f"{row.lacks}: {row.source}: {row.reason}", row) for row in rows if row.lacks),
        not_modelled=Counter(f"{row.source}: {text}" for row in rows for text in row.not_modelled),
        assumed=Counter(f"{row.source}, {row.model}: {text}" for row in rows for text in row.assumed),
        refused=_by_reason((each.refused, each.row) for each in predictions if each.refused),
    )


def _by_reason(reasons: Any) -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    for reason, row in reasons:
        found[reason] = (*found.get(reason, ()), row.id)
    return dict(sorted(found.items()))


def _out_of_memory(rows: Sequence[Predicted]) -> OutOfMemory:
    sizes = Counter(each.row.source for each in rows)
    largest = max(sizes, key=sizes.__getitem__, default="")
    return OutOfMemory(
        all=verdicts(rows),
        largest=largest,
        largest_source=verdicts([each for each in rows if each.row.source == largest]),
        others=verdicts([each for each in rows if each.row.source != largest]),
    )


def _by_layout(found: Sequence[Sweep]) -> ByLayout:
    return ByLayout(
        ours=summed(choices(found, _seconds)),
        naive=summed(choices(found, lambda each: naive_seconds(each.training))),
        chance=summed(choices(found, lambda each: 1.0)),
        not_too_large=summed(choices_by_verdict(found, _seconds, {"fits", "tight"})),
        fitting=summed(choices_by_verdict(found, _seconds, {"fits"})),
    )


def _seconds(each: Predicted) -> float:
    return each.step.seconds if each.step is not None else float("inf")


def _naive(name: str, rows: Sequence[Timed]) -> Beside:
    return _beside(
        f"{name}: one utilization per accelerator and format", rows, [naive_seconds(row.predicted.training) for row in rows]
    )


def _llm_analysis(rows: Sequence[Timed]) -> Beside:
    taken = [row for row in rows if takes(row.predicted.training)]
    said = dict(zip(map(id, taken), llm_analysis_seconds([row.predicted.training for row in taken]), strict=True))
    return _beside(NAME, rows, [said.get(id(row)) for row in rows])


def _beside(name: str, rows: Sequence[Timed], said: Sequence[float | None]) -> Beside:
    both = [(row, seconds) for row, seconds in zip(rows, said, strict=True) if seconds is not None]
    theirs = {id(row): (seconds, row.measured) for row, seconds in both}
    groups = grouped([row for row, _ in both], lambda row: row.predicted.row.source)
    peer, ours = errors(theirs.values()), errors(row.pair for row, _ in both)
    return Beside(
        name=name,
        rows=len(both),
        refused=len(rows) - len(both),
        peer=peer,
        peer_over_sources=mean_of_groups({source: [theirs[id(row)] for row in group] for source, group in groups.items()}),
        ours=ours,
        ours_over_sources=mean_of_groups({source: [row.pair for row in group] for source, group in groups.items()}),
        ratio=peer.mean / ours.mean if peer and ours and ours.mean else None,
    )


def each_row(each: Predicted) -> dict[str, Any]:
    """Return one row: the measurement next to the planner's estimate."""
    row, step, memory = each.row, each.step, each.memory
    return {
        "id": row.id,
        "lacks": row.lacks,
        "step_s": row.step_s,
        "predicted_step_s": step.seconds if step else None,
        "interval_s": [step.low, step.high] if step else None,
        "peak_gib": row.peak.gib if row.peak else None,
        "predicted_peak_gib": comparable(memory, row.peak.kind) if memory and row.peak else None,
        "out_of_memory": row.out_of_memory,
        "verdict": memory.verdict if memory else None,
    }


def as_json(record: Any) -> Any:
    """Return a record of records as what json.dumps takes."""
    if isinstance(record, Struct):
        return as_json(asdict(record))
    if isinstance(record, Mapping):
        return {str(name): as_json(value) for name, value in record.items()}
    if isinstance(record, tuple | list):
        return [as_json(value) for value in record]
    return record
