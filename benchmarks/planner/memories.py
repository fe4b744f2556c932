"""Measures memory predictions: peaks by source and by profile, and the verdicts against runs that ran out of memory."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from benchmarks.planner.predict import Predicted
from benchmarks.planner.spread import Errors, Pair, errors
from headway.planner.memory.ledger import GIB, MemoryUse


class Peaks(Struct, frozen=True):
    """Errors of the printed peaks. `known` are of sources whose framework has a profile, `other` of those where it was guessed."""

    known: Errors | None
    other: Errors | None
    by_kind: Mapping[str, Errors]
    by_framework: Mapping[str, Errors]
    by_source: Mapping[str, Errors]


class Verdicts(Struct, frozen=True):
    """`right` of those that were called `fits` or `does not fit`; of the rows that ran out of memory, `missed` were called `fits`."""

    rows: int
    out_of_memory: int
    right: float | None
    missed: float | None
    tight: float


def comparable(use: MemoryUse, kind: str) -> float:
    """GiB of what a printed peak of this kind counts: `device` includes what is outside of torch's allocator."""
    counted = {"allocated": use.allocated, "reserved": use.reserved}.get(kind, use.reserved + use.outside)
    return counted / GIB


def measured_peaks(predictions: Iterable[Predicted]) -> list[tuple[Predicted, Pair]]:
    """Return rows with a printed peak: complete ones, and those that miss only the batch."""
    return [
        (each, (comparable(each.memory, each.row.peak.kind), each.row.peak.gib))
        for each in predictions
        if each.row.peak is not None
        and each.memory is not None
        and not each.row.out_of_memory
        and each.row.lacks in {"", "not printed"}
        and "offload" not in each.row.not_modelled
    ]


def peaks(predictions: Iterable[Predicted]) -> Peaks:
    """Scores of the printed peaks."""
    rows = measured_peaks(predictions)
    guessed = [any(text.startswith("framework") for text in each.row.assumed) for each, _ in rows]
    return Peaks(
        known=errors(pair for (_, pair), guess in zip(rows, guessed, strict=True) if not guess),
        other=errors(pair for (_, pair), guess in zip(rows, guessed, strict=True) if guess),
        by_kind=_table((each.row.peak.kind if each.row.peak else "", pair) for each, pair in rows),
        by_framework=_table((each.training.framework, pair) for each, pair in rows),
        by_source=_table((each.row.source, pair) for each, pair in rows),
    )


def _table(rows: Iterable[tuple[str, Pair]]) -> dict[str, Errors]:
    groups = defaultdict[str, list[Pair]](list)
    for name, pair in rows:
        groups[name].append(pair)
    ordered = sorted(groups.items(), key=lambda item: -len(item[1]))
    return {name: found for name, pairs in ordered if (found := errors(pairs)) is not None}


def labelled(predictions: Sequence[Predicted]) -> list[Predicted]:
    """Return rows of sources that print both what ran and what ran out of memory."""
    usable = [each for each in predictions if each.memory is not None and each.row.lacks in {"", "not printed"}]
    both = {each.row.source for each in usable if each.row.out_of_memory} & {
        each.row.source for each in usable if not each.row.out_of_memory
    }
    return [each for each in usable if each.row.source in both]


def verdicts(rows: Sequence[Predicted]) -> Verdicts | None:
    """Return the planner's verdicts against the outcomes of labelled rows; None where there are none."""
    said = [(each.memory.verdict, each.row.out_of_memory) for each in rows if each.memory is not None]
    if not said:
        return None
    sure = [(verdict == "does not fit") == failed for verdict, failed in said if verdict != "tight"]
    failed = [verdict for verdict, failed in said if failed]
    return Verdicts(
        rows=len(said),
        out_of_memory=len(failed),
        right=sum(sure) / len(sure) if sure else None,
        missed=failed.count("fits") / len(failed) if failed else None,
        tight=sum(verdict == "tight" for verdict, _ in said) / len(said),
    )
