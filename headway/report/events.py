"""Describes the events of a run other than failures and saves: hangs, corruption, stragglers, nodes lost and replaced."""

from collections.abc import Iterator, Sequence

from msgspec import Struct

from headway.report import units
from headway.report.history import GenerationHistory
from headway.runner.contract.journal import (
    Corruption,
    Entry,
    Excluded,
    Hang,
    LostNode,
    Rebound,
    RefusedFile,
    Regroup,
    Regrouped,
    ReplicaLost,
    Spike,
    Straggler,
    Takeover,
    Transient,
    Undead,
    Unread,
    Unseen,
)

# Kinds of the journal that are not events of a report: its tables and its timeline show some of them, the others explain decisions.
NOT_EVENTS = frozenset(
    {
        *("claim", "start", "section", "loaded", "finished", "end", "preempted", "failure"),
        *("committed", "retired", "refused", "waited", "compared"),
        *("standby", "warm", "adopted", "members"),
    }
)


class Event(Struct, frozen=True):
    """`kind` is the journal's, `wall` in Unix seconds. `evidence` are files of the run directory.

    `waited_s` is how long training waited for other members of its replica groups.
    """

    wall: float
    generation: int
    kind: str
    text: str
    evidence: tuple[str, ...] = ()
    waited_s: float = 0.0


def events(history: Sequence[GenerationHistory]) -> Iterator[Event]:
    """In the order of the journal."""
    for generation in history:
        for entry in generation.entries:
            if (text := sentence(entry)) is not None:
                evidence = tuple(entry.evidence) if isinstance(entry, Hang) else ()
                waited_s = entry.seconds if isinstance(entry, Regrouped) else 0.0
                yield Event(entry.wall, generation.number, entry.KIND, text, evidence, waited_s)


def sentence(entry: Entry) -> str | None:
    """Return what happened; None for a kind in `NOT_EVENTS`."""
    match entry:
        case Hang():
            return _hang(entry)
        case Straggler():
            return _straggler(entry)
        case LostNode():
            return f"{_host(entry.host, entry.node)} was lost: {entry.why}"
        case Rebound():
            return _rebound(entry)
        case Excluded():
            return f"{_host(entry.host, entry.node)} was excluded: {entry.why}"
        case Corruption() | Transient() | Spike():
            return _numbers(entry)
        case Takeover():
            return f"node {entry.node} has taken over as coordinator (term {entry.term})"
        case Regroup() | ReplicaLost() | Regrouped():
            return _groups(entry)
        case RefusedFile():
            return f"{entry.path}: {entry.why}; it was renamed to {entry.now}"
        case Undead() | Unread():
            return _alarm(entry)
        case Unseen():
            return f"not observable from outside: {'; '.join(entry.calls)}"
    # The other kinds are in NOT_EVENTS.
    return None


def _hang(hang: Hang) -> str:
    who = f"{_ranks(hang.ranks)} hung" if hang.ranks else "all ranks were stuck, none of them alone"
    return f"{who} in {hang.section} for {units.seconds(hang.silent_s)}: {hang.why}"


def _ranks(ranks: Sequence[int], shown: int = 8) -> str:
    more = f" and {len(ranks) - shown:,} more" if len(ranks) > shown else ""
    return ("rank " if len(ranks) == 1 else "ranks ") + ", ".join(map(str, ranks[:shown])) + more


def _straggler(found: Straggler) -> str:
    where = f" on {found.host}" if found.host else ""
    return f"rank {found.rank}{where} takes {found.ratio:.2f} times as long per step as the others ({units.seconds(found.own_step_s)})"


def _numbers(entry: Corruption | Transient | Spike) -> str:
    match entry:
        case Corruption():
            return f"{entry.found}{_on(entry.hosts)}"
        case Transient():
            return f"step {entry.step:,}: {entry.found}{_on(entry.hosts)}; recomputed correctly"
        case Spike():
            return f"step {entry.step:,}: {entry.found}; the same on all ranks that computed it, and applied"


def _on(hosts: Sequence[str | None]) -> str:
    named = [host for host in hosts if host]
    return f" (on {', '.join(named)})" if named else ""


def _rebound(move: Rebound) -> str:
    before = "" if move.before is None else f", in place of node {move.before}"
    outside = "; it is outside the NVLink domain of its segment" if move.outside else ""
    return f"slot {move.slot} runs on {_host(move.host, move.to)}{before}{outside}"


def _alarm(entry: Undead | Unread) -> str:
    if isinstance(entry, Undead):
        return f"SIGKILL does not end {_ranks(entry.ranks)} (state {', '.join(dict.fromkeys(entry.states))})"
    read = f"{_host(entry.host, entry.node)} could not read the checkpoint of step {entry.step:,} ({entry.tier})"
    return f"{read}: {entry.reason}; this is not counted as damage"


def _groups(entry: Regroup | ReplicaLost | Regrouped) -> str:
    if isinstance(entry, Regroup):
        return f"{_host(entry.host, entry.node)} has joined: all ranks restart with it"
    if isinstance(entry, ReplicaLost):
        where = f" on {entry.host}" if entry.host else ""
        step = "" if entry.step is None else f" at step {entry.step:,}"
        rank = "" if entry.rank is None else f", {_ranks((entry.rank,))}"
        return f"replica group {entry.replica} was lost{step}: {entry.cause}{rank}{where}"
    waited = f"training waited {units.seconds(entry.seconds)}"
    if entry.returned:
        who = f"replica group{'s' * (len(entry.returned) > 1)} {', '.join(map(str, entry.returned))}"
        return f"{who} returned at step {entry.step:,} from another one's memory: {waited}"
    return f"{units.count(len(entry.replicas), 'replica group')} went on from step {entry.step:,}: {waited}"


def _host(host: str | None, node: int | None) -> str:
    if node is None:
        return host or "a node"
    return f"{host} (node {node})" if host else f"node {node}"
