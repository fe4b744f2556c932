"""Sums the cost of failures by cause: each second of the ledger is attributed to the failure that caused it."""

from collections import Counter
from collections.abc import Mapping, Sequence

from msgspec import Struct

from headway.report.history import GenerationHistory
from headway.report.records import LedgerLine
from headway.runner.contract import cost_by_kind
from headway.runner.contract.journal import Failure

# For a runner that records no kinds.
UNSAID = "crash"


class FailureCost(Struct, frozen=True):
    """All failures of one kind. `seconds` is None if unknown."""

    kind: str
    count: int
    seconds: float | None


def kind_of(failure: Failure) -> str:
    return failure.cause_kind or UNSAID


def costs(
    ledger: Sequence[LedgerLine], history: Sequence[GenerationHistory], recoveries: Sequence[tuple[str, float | None]]
) -> tuple[FailureCost, ...]:
    """By kind, the costliest first. `recoveries` are kind and seconds of each failure until the next step: they count without a ledger."""
    spent = _by_ledger(ledger, history) if ledger else _by_recovery(recoveries)
    found = [FailureCost(kind, count, spent.get(kind, 0.0)) for kind, count in Counter(kind for kind, _ in recoveries).items()]
    return tuple(sorted(found, key=lambda cost: (-(cost.seconds or 0.0), cost.kind)))


def _by_recovery(recoveries: Sequence[tuple[str, float | None]]) -> Mapping[str, float | None]:
    spent: dict[str, float | None] = {}
    for kind, seconds in recoveries:
        before = spent.get(kind, 0.0)
        spent[kind] = None if before is None or seconds is None else before + seconds
    return spent


def _by_ledger(ledger: Sequence[LedgerLine], history: Sequence[GenerationHistory]) -> Mapping[str, float | None]:
    ended_by = {generation.number: kind_of(generation.failures[-1]) for generation in history if generation.failures}
    loaded = {generation.number for generation in history if generation.loaded}
    return cost_by_kind(((line.generation, line.buckets) for line in ledger), ended_by, loaded)
