"""Finds ranks that are missing in a collective, or wait in another one, from torch's flight recorder of each rank; no I/O."""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

# torch's name for the group of all ranks (torch/distributed/distributed_c10d.py, init_process_group).
_EVERYBODY = "default_pg"
# A rank may have finished these before others have begun.
_ROOTED = frozenset({"broadcast", "reduce", "gather", "scatter"})
# Ranks in a text.
_LISTED = 8


@dataclass(frozen=True)
class CollectiveOperation:
    """The operation that a rank has entered under a number.

    `name` includes what must be the same on all ranks; `before` is a digest of the group's earlier operations: two
    ranks with equal digests count alike.
    """

    number: int
    name: str
    before: str


@dataclass(frozen=True)
class Collective:
    """The newest collective that a rank has entered in a process group.

    `group` is the group's name, the same on all its ranks and on no others, `label` its description. `number` counts
    the group's collectives from 1. `what` is the operation and its sizes. `done`: it has completed. `waits` is the
    first one that has not, after the last that has, 0 for none; `recent` are those about it. `on_device`: a device computes it, and
    the process need not wait for it.
    """

    group: str
    label: str
    number: int
    what: str
    done: bool
    waits: int = 0
    recent: tuple[CollectiveOperation, ...] = ()
    on_device: bool = False


@dataclass(frozen=True)
class Missing:
    """`ranks` block the others, empty if none is in the minority; `why` names the collective."""

    ranks: tuple[int, ...]
    why: str


def missing(entered: Mapping[int, Sequence[Collective]]) -> Missing | None:
    """Return the ranks that have not entered a collective in which others wait.

    `entered` is by rank, for the known ranks. None if no rank is missing, or more are missing than wait. A rank that is
    late in one group because it waits in another is itself blocked, and named only if no other rank is.
    """
    found = [each for group in _by_group(entered).values() for each in _missing_in(group, entered.keys())]
    waiting = {rank for rank, newest in entered.items() if any(not each.done for each in newest)}
    named = [each for each in found if not waiting.issuperset(each.ranks)] or found
    if not named:
        return None
    ranks = {rank for each in named for rank in each.ranks}
    return Missing(tuple(sorted(ranks - waiting or ranks)), named[0].why)


def entered_by_all(entered: Mapping[int, Sequence[Collective]], ranks: Collection[int]) -> dict[int, str]:
    """Return the ranks that wait in a collective on devices in which all ranks of its group wait, and which one.

    `ranks` are all of the job. No rank is missing there: a device or the network does not complete it. One of gloo's waits in the
    process, which its stack shows.
    """
    found: dict[int, str] = {}
    for group in _by_group(entered).values():
        newest = max(group.values(), key=lambda each: each.number)
        members = ranks if newest.label == _EVERYBODY else group.keys()
        is_one = len({each.waits for each in group.values()}) == 1 and newest.waits
        if is_one and group.keys() >= set(members) and all(each.on_device for each in group.values()):
            what = _named(newest) if newest.waits == newest.number else f"number {newest.waits:,} of group {_name(newest)}"
            found |= dict.fromkeys(group, what)
    return found


def at_odds(entered: Mapping[int, Sequence[Collective]]) -> tuple[Missing, frozenset[int]] | None:
    """Return ranks that wait forever because others have entered another operation of the group under the same number:
    the minority, and all of them.

    Only waiting ranks with the same earlier operations are compared; none if one has completed the operation in which
    others wait, because then the ranks do not count alike.
    """
    for group in _by_group(entered).values():
        waiting = {rank: each for rank, each in group.items() if each.waits}
        for number in sorted({each.waits for each in waiting.values()}):
            if any(_has_met(each, number) for each in waiting.values()):
                break
            alike: dict[str, dict[int, str]] = {}
            for rank, each in waiting.items():
                for operation in each.recent:
                    if operation.number == number:
                        alike.setdefault(operation.before, {})[rank] = operation.name
            for names in alike.values():
                if len(set(names.values())) > 1 and any(group[rank].waits == number for rank in names):
                    of = f"number {number:,} of group {_name(group[min(names)])}"
                    return _odd(names, of), frozenset(names)
    return None


def _has_met(each: Collective, number: int) -> bool:
    """Return whether a rank has completed an operation that takes all of its group."""
    return each.waits > number and any(found.number == number and found.name not in _ROOTED for found in each.recent)


def _odd(names: Mapping[int, str], of: str) -> Missing:
    usual, most = Counter(names[rank] for rank in sorted(names)).most_common(1)[0]
    odd = tuple(sorted(rank for rank, name in names.items() if name != usual))
    others = "1 other" if most == 1 else f"{most:,} others"
    why = f"{_ranks(odd)} entered {names[odd[0]]} as {of}, and {others} {usual}: they will never match"
    return Missing(odd if len(odd) < most else (), why)


def _by_group(entered: Mapping[int, Sequence[Collective]]) -> dict[str, dict[int, Collective]]:
    by_group: dict[str, dict[int, Collective]] = {}
    for rank, newest in entered.items():
        for each in newest:
            by_group.setdefault(each.group, {})[rank] = each
    return by_group


def _missing_in(group: Mapping[int, Collective], known: Collection[int]) -> Iterator[Missing]:
    """Yield the missing ranks of one group; in the group of all ranks, those are members too that have entered nothing yet."""
    newest = max(group.values(), key=lambda each: each.number)
    members = known if newest.label == _EVERYBODY else group.keys()
    there = {rank: each for rank, each in group.items() if each.number == newest.number}
    wait = [rank for rank, each in there.items() if not each.done]
    late = tuple(sorted(rank for rank in members if rank not in there))
    if wait and late and len(late) <= len(wait):
        yield Missing(late, f"{_ranks(late)} not entered {_named(newest)}, in which {_others(len(wait))}")


def _named(each: Collective) -> str:
    return f"{each.what}, number {each.number:,} of group {_name(each)}"


def _name(each: Collective) -> str:
    return each.label if each.label not in ("", "undefined") else each.group


def _ranks(ranks: Sequence[int]) -> str:
    listed = ", ".join(map(str, ranks[:_LISTED]))
    more = f" and {len(ranks) - _LISTED} more" if len(ranks) > _LISTED else ""
    return f"rank {listed} has" if len(ranks) == 1 else f"ranks {listed}{more} have"


def _others(count: int) -> str:
    return "1 other waits" if count == 1 else f"{count:,} others wait"
