"""What failures cost, by their cause: the ledger's seconds, each given to the failure that it follows from."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from headway.report.history import Generation
from headway.report.records import Failure, LedgerLine

UNSAID = "crash"  # a runner that did not tell kinds apart

# Each of these seconds is lost to the failure that ends its generation ...
_IN_FAILING = ("detect", "hang")
# ... and each of these to the one that the generation follows; without one it is the price of a start.
_IN_RECOVERY = ("restore", "restart", "rendezvous", "queue")


@dataclass(frozen=True)
class Cost:
    """All failures of one kind. `seconds` is None where nothing tells."""

    kind: str
    count: int
    seconds: float | None


def kind_of(failure: Failure) -> str:
    return failure.cause_kind or UNSAID


def costs(
    ledger: Sequence[LedgerLine], history: Sequence[Generation], recoveries: Sequence[tuple[str, float | None]]
) -> tuple[Cost, ...]:
    """By kind, the costliest first. `recoveries` are kind and seconds of each failure until the next step: they count without a ledger."""
    spent = _by_ledger(ledger, history) if ledger else _by_recovery(recoveries)
    found = [Cost(kind, count, spent.get(kind, 0.0)) for kind, count in Counter(kind for kind, _ in recoveries).items()]
    return tuple(sorted(found, key=lambda cost: (-(cost.seconds or 0.0), cost.kind)))


def _by_recovery(recoveries: Sequence[tuple[str, float | None]]) -> Mapping[str, float | None]:
    spent: dict[str, float | None] = {}
    for kind, seconds in recoveries:
        before = spent.get(kind, 0.0)
        spent[kind] = None if before is None or seconds is None else before + seconds
    return spent


def _by_ledger(ledger: Sequence[LedgerLine], history: Sequence[Generation]) -> dict[str, float | None]:
    followed = dict(_followed(history))
    ended_by = {generation.number: kind_of(generation.failures[-1]) for generation in history if generation.failures}
    opening = {generation.attempt: generation.number for generation in reversed(history)}
    spent: dict[str, float] = {}
    for line in ledger:
        number = line.generation or opening.get(line.attempt, 0)
        after, by = followed.get(number), ended_by.get(number)
        parts = (
            (by or after, _IN_FAILING),
            (after, _IN_RECOVERY),
            (after or _newest(ended_by, number) or by, ("lost_recompute",)),
        )
        for kind, names in parts:
            if kind is not None:
                spent[kind] = spent.get(kind, 0.0) + sum(line.buckets.get(name, 0.0) for name in names)
    return dict(spent)


def _newest(ended_by: Mapping[int, str], number: int) -> str | None:
    """The kind of the last failure before the generation."""
    return next((ended_by[earlier] for earlier in sorted(ended_by, reverse=True) if earlier < number), None)


def _followed(history: Sequence[Generation]) -> Iterator[tuple[int, str]]:
    """The generations that start because of a failure, with its kind: the next one, and on until one gets its state."""
    kind: str | None = None
    for generation in history:
        if kind is not None:
            yield generation.number, kind
        if generation.failures:
            kind = kind_of(generation.failures[-1])
        elif generation.loaded:
            kind = None
