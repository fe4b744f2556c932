"""Who is missing in a collective: the newest ones that each rank has entered, as torch's flight recorder has them; no I/O."""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

_EVERYBODY = "default_pg"  # what torch calls the group of all ranks (torch/distributed/distributed_c10d.py, init_process_group)
_LISTED = 8  # ranks in a text


@dataclass(frozen=True)
class Collective:
    """The newest collective that a rank has entered in a process group. `group` is the group's name, the same on all its ranks, `label`
    its description. `number` counts the group's collectives from 1. `what` is the operation and its sizes. `done`: it has completed."""

    group: str
    label: str
    number: int
    what: str
    done: bool


@dataclass(frozen=True)
class Missing:
    """`ranks` hold the others up; `why` says in which collective."""

    ranks: tuple[int, ...]
    why: str


def missing(entered: Mapping[int, Sequence[Collective]]) -> Missing | None:
    """The ranks that have not entered a collective in which others wait, or have entered another one in its place.

    `entered` is by rank, for the ranks that are known. None where nobody is missing, or more are than wait. A rank that is late in one
    group because it waits in another is held up itself, and not named where anybody else is.
    """
    by_group: dict[str, dict[int, Collective]] = {}
    for rank, newest in entered.items():
        for each in newest:
            by_group.setdefault(each.group, {})[rank] = each
    found = [each for group in by_group.values() for each in _missing_in(group, entered.keys())]
    waiting = {rank for rank, newest in entered.items() if any(not each.done for each in newest)}
    named = [each for each in found if not waiting.issuperset(each.ranks)] or found
    if not named:
        return None
    ranks = {rank for each in named for rank in each.ranks}
    return Missing(tuple(sorted(ranks - waiting or ranks)), named[0].why)


def _missing_in(group: Mapping[int, Collective], known: Collection[int]) -> Iterator[Missing]:
    """Of one group; of that of all ranks, those are members too that have entered nothing yet."""
    newest = max(group.values(), key=lambda each: each.number)
    members = known if newest.label == _EVERYBODY else group.keys()
    there = {rank: each for rank, each in group.items() if each.number == newest.number}
    wait = [rank for rank, each in there.items() if not each.done]
    late = tuple(sorted(rank for rank in members if rank not in there))
    if wait and late and len(late) <= len(wait):
        yield Missing(late, f"{_ranks(late)} not entered {_named(newest)}, in which {_others(len(wait))}")
    usual, count = Counter(there[rank].what for rank in wait).most_common(1)[0] if wait else ("", 0)
    odd = tuple(sorted(rank for rank in wait if there[rank].what != usual))
    if odd and len(odd) < count:
        what = there[odd[0]].what
        yield Missing(odd, f"{_ranks(odd)} entered {what} where {_others(count)} in {_named(there[wait[0]], usual)}")


def _named(each: Collective, what: str = "") -> str:
    group = each.label if each.label not in ("", "undefined") else each.group
    return f"{what or each.what}, number {each.number:,} of group {group}"


def _ranks(ranks: Sequence[int]) -> str:
    listed = ", ".join(map(str, ranks[:_LISTED]))
    more = f" and {len(ranks) - _LISTED} more" if len(ranks) > _LISTED else ""
    return f"rank {listed} has" if len(ranks) == 1 else f"ranks {listed}{more} have"


def _others(count: int) -> str:
    return "1 other waits" if count == 1 else f"{count:,} others wait"
