"""Compares the checksums that ranks report: which ranks hold the same, which are suspected, and the message; no I/O."""

import dataclasses
import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

PARAMETERS = "parameters"
# Ranks in a text.
_LISTED = 8


@dataclass(frozen=True)
class Sum:
    """A checksum of all tensors of one `kind` (`parameters`, or the key of an optimizer's state) that `holders` ranks,
    including this one, hold identically.

    Sums of equal `name` are comparable: same kind, same ranks, and the same shape, type and place of each tensor, in
    order.
    """

    kind: str
    holders: int
    name: str
    digest: str


@dataclass(frozen=True)
class ReplicaReport:
    """A rank's report to all others. `alone`: it has made steps by itself since all were equal. `sums` is None if
    computing them failed."""

    rank: int
    step: int
    step_s: float
    alone: bool
    sums: tuple[Sum, ...] | None

    def to_json(self) -> bytes:
        return json.dumps(dataclasses.asdict(self)).encode()

    @classmethod
    def from_json(cls, text: bytes) -> "ReplicaReport":
        facts = json.loads(text)
        sums = facts.pop("sums")
        return cls(**facts, sums=None if sums is None else tuple(Sum(**each) for each in sums))


@dataclass(frozen=True)
class ReplicaHolding:
    """The reports of `ranks`, of `holders`, on what they hold identically, and `groups` of those that agree: the
    largest first."""

    kind: str
    holders: int
    groups: tuple[tuple[int, ...], ...]

    @property
    def ranks(self) -> tuple[int, ...]:
        return tuple(sorted(rank for group in self.groups for rank in group))

    @property
    def is_equal(self) -> bool:
        return len(self.groups) == 1

    @property
    def is_alike(self) -> bool:
        """Return whether any two are equal."""
        return len(self.groups[0]) > 1

    @property
    def odd(self) -> tuple[int, ...]:
        """Return the minority; empty if there is no majority."""
        usual, *others = self.groups
        return tuple(sorted(rank for group in others for rank in group)) if 2 * len(usual) > len(self.ranks) else ()


def holdings(said: Iterable[ReplicaReport]) -> list[ReplicaHolding]:
    """Return what ranks hold, parameters first."""
    by_name: dict[str, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    what: dict[str, Sum] = {}
    for each in said:
        for total in each.sums or ():
            what[total.name] = total
            by_name[total.name][total.digest].append(each.rank)
    found = [
        ReplicaHolding(
            what[name].kind,
            what[name].holders,
            tuple(sorted(map(tuple, groups.values()), key=lambda group: (-len(group), group))),
        )
        for name, groups in by_name.items()
    ]
    return sorted(found, key=lambda each: (each.kind != PARAMETERS, each.kind, each.ranks))


def suspected(differing: Iterable[ReplicaHolding]) -> list[int]:
    """Return the suspected ranks: the minorities, and all ranks of a set without a majority, unless one of them is in a
    minority elsewhere."""
    differing = list(differing)
    odd = {rank for each in differing for rank in each.odd}
    unclear = {rank for each in differing if not each.odd and odd.isdisjoint(each.ranks) for rank in each.ranks}
    return sorted(odd | unclear)


def describe(differing: Sequence[ReplicaHolding], step: int, equal_step: int | None) -> str:
    """Return one line: which ranks differ, in what, and since when."""
    first = next((each for each in differing if each.odd), differing[0])
    same = [each for each in differing if (each.ranks, each.odd) == (first.ranks, first.odd)]
    what = ", ".join(dict.fromkeys(state_name(each.kind) for each in same))
    others = [rank for rank in first.ranks if rank not in first.odd]
    if first.odd:
        text = f"{listed(first.odd)} and {listed(others)} must hold the same {what} but differ at step {step}; {listed(others)} agree"
    else:
        text = f"{listed(first.ranks)} must hold the same {what} but differ at step {step}; the wrong one cannot be identified"
    more = suspected(differing)
    if not set(more) <= set(first.odd or first.ranks):
        text += f"; other sets of ranks differ too: {listed(more)} in total"
    return f"{text}; {'none was compared before' if equal_step is None else f'all were equal at step {equal_step}'}"


def state_name(kind: str) -> str:
    return kind if kind == PARAMETERS else f"optimizer state {kind}"


def listed(ranks: Sequence[int]) -> str:
    some = ", ".join(map(str, ranks[:_LISTED]))
    more = f" and {len(ranks) - _LISTED} more" if len(ranks) > _LISTED else ""
    return f"rank {some}" if len(ranks) == 1 else f"ranks {some}{more}"
