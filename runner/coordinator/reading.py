"""Parses agents' messages into the events that they report."""

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from headway.runner.checkpoint.keeper.protocol import Holding
from headway.runner.contract import SECTIONS, decode
from headway.runner.contract.journal import JOURNAL_KINDS, Entry, read_facts
from headway.runner.coordinator.causes import Ended, Raised
from headway.runner.coordinator.events import (
    Beat,
    CorruptionFound,
    Event,
    Exited,
    Joined,
    Probed,
    RankLoaded,
    RankParted,
    RankRaised,
    RankReady,
    RanksUndead,
    Recorded,
    ReplicasEqual,
    Reported,
    StopRequested,
    Surveyed,
)
from headway.runner.health.collectives import Collective, CollectiveOperation
from headway.runner.health.watch import Probe, RankBeat
from headway.runner.health.xid import Xid
from headway.runner.messages import ChannelError, Message

_SECTIONS = frozenset(SECTIONS)
# A heartbeat page has signed 64-bit words, and times in nanoseconds.
_MOST, _LONGEST_S = 1 << 63, 1e10


def event_of(message: Message) -> Event:
    """Raises ChannelError for a message that does not say what its kind promises."""
    try:
        return _READERS[message.kind](message)
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise ChannelError(f"an invalid message {message.kind!r}: {error!r}") from None


def _join(message: Message) -> Joined:
    body = message.body
    port = body.get("port")
    running = tuple(int(rank) for rank in body["running"])
    return Joined(
        message.node,
        str(body["host"]),
        message.generation,
        running,
        body.get("domain"),
        None if port is None else int(port),
        str(body.get("address", body["host"])),
    )


class _Beating(msgspec.Struct):
    """The body of a beat. Most messages are one, so all of it is read at once."""

    port: int | None
    ranks: dict[int, RankBeat]


def _beat(message: Message) -> Beat:
    body = msgspec.convert(message.body, _Beating, str_keys=True)
    for step, section, pulse, age_s, own_s in body.ranks.values():
        counts = -_MOST <= step < _MOST and -_MOST <= pulse < _MOST
        times = -_LONGEST_S < (age_s or 0) < _LONGEST_S and -_LONGEST_S < (own_s or 0) < _LONGEST_S
        if not (section in _SECTIONS and counts and times):
            raise ValueError(f"{step}, {section}, {pulse}, {age_s}, {own_s} is not a heartbeat")
    return Beat(message.node, message.generation, body.port, body.ranks)


def _exited(message: Message) -> Exited:
    return Exited(message.node, message.generation, tuple(_ended(message.node, each) for each in message.body["exits"]))


def _ended(node: int, facts: Mapping[str, Any]) -> Ended:
    rank, code, step = int(facts["rank"]), int(facts["code"]), int(facts["step"])
    xids = tuple(
        Xid(int(number), str(device), str(text), None if ours is None else bool(ours))
        for number, device, text, ours in facts.get("xids", ())
    )
    return Ended(rank, node, code, str(facts["how"]), bool(facts["asked"]), step, bool(facts.get("oom")), xids)


# Lines of the journal that a worker or an agent may report. Those a coordinator is rebuilt from are none of them.
_OF_GENERATION = frozenset({"refused", "section", "finished", "retired", "waited"})
NOTES = frozenset(kind for kind, entry in JOURNAL_KINDS.items() if entry.FROM_NODES) - _OF_GENERATION - {"committed"}


def _evidence(message: Message) -> Event:
    what = str(message.body["what"])
    if what in _OF_GENERATION:
        return Reported(message.node, message.generation, _entry(what, message.body))
    return _EVIDENCE[what](message)


def _entry(kind: str, body: Mapping[str, Any]) -> Entry:
    """The facts of a journal line. Ranks, steps and samples below 0 are refused: strikes and rollbacks follow from these."""
    entry = read_facts(kind, {name: value for name, value in body.items() if name not in ("wall", "attempt")})
    for name in ("rank", "step", "sample"):
        if (value := getattr(entry, name, None)) is not None:
            _natural(value)
    return entry


def _committed(message: Message) -> Reported:
    return Reported(message.node, message.generation, _entry("committed", message.body))


def _note(message: Message) -> Reported:
    kind = str(message.body["kind"])
    if kind not in NOTES:
        raise ValueError(f"a node may not report {kind!r}")
    # The coordinator knows where the ranks are.
    body = {name: value for name, value in message.body.items() if name not in ("hosts", "nodes")}
    entry = _entry(kind, {**body, "node": message.node})
    return Reported(message.node, message.generation, entry, of_generation=False)


def _unread(message: Message) -> Reported:
    return Reported(message.node, message.generation, _entry("unread", message.body))


def _stop_requested(message: Message) -> StopRequested:
    return StopRequested(message.node, message.generation, float(message.body.get("age_s") or 0.0))


def _surveyed(message: Message) -> Surveyed:
    holdings = tuple(decode(Holding, each) for each in message.body["holdings"])
    return Surveyed(message.node, message.generation, holdings)


def _loaded(message: Message) -> RankLoaded:
    return RankLoaded(message.node, message.generation, int(message.body["rank"]), int(message.body["step"]))


def _ready(message: Message) -> RankReady:
    body = message.body
    return RankReady(message.node, message.generation, _natural(body["rank"]), _natural(body["start"]))


def _raised(message: Message) -> RankRaised:
    body = message.body
    at, step, sample = body.get("at"), body.get("step"), body.get("sample")
    raised = Raised(
        str(body.get("type", "")),
        str(body["text"]),
        None if at is None else str(at),
        None if step is None else int(step),
        None if sample is None else int(sample),
    )
    return RankRaised(message.node, message.generation, int(body["rank"]), raised)


def _parted(message: Message) -> RankParted:
    return RankParted(message.node, message.generation, _natural(message.body["epoch"]))


def _undead(message: Message) -> RanksUndead:
    states = {int(each["rank"]): str(each.get("state") or "") for each in message.body["workers"]}
    return RanksUndead(message.node, message.generation, states)


def _corrupted(message: Message) -> CorruptionFound:
    body = message.body
    ranks = tuple(int(rank) for rank in body["ranks"])
    sound_step = None if body.get("sound_step") is None else _natural(body["sound_step"])
    return CorruptionFound(message.node, message.generation, ranks, str(body["found"]), sound_step)


def _compared(message: Message) -> ReplicasEqual:
    step = message.body.get("step")
    return ReplicasEqual(message.node, message.generation, None if step is None else _natural(step))


def _natural(value: Any) -> int:
    if (number := int(value)) < 0:
        raise ValueError(f"{number} is below 0")
    return number


def _probed(message: Message) -> Probed:
    return Probed(message.node, message.generation, {int(rank): _probe(facts) for rank, facts in message.body["ranks"].items()})


def _recorded(message: Message) -> Recorded:
    said = message.body.get("said")
    ranks = {int(rank): tuple(map(_collective, entered)) for rank, entered in message.body["ranks"].items()}
    return Recorded(message.node, message.generation, ranks, None if said is None else str(said))


def _probe(facts: Mapping[str, Any]) -> Probe:
    stack = tuple(str(frame) for frame in facts.get("stack", ()))
    used = float(facts["cpu_s"]), int(facts["io_bytes"])
    return Probe(str(facts["state"]), *used, stack, facts.get("where"), facts.get("waits_on"))


def _collective(facts: Mapping[str, Any]) -> Collective:
    recent = tuple(CollectiveOperation(int(each["number"]), str(each["name"]), str(each["before"])) for each in facts["recent"])
    return Collective(
        group=str(facts["group"]),
        label=str(facts["label"]),
        number=int(facts["number"]),
        what=str(facts["what"]),
        done=bool(facts["done"]),
        waits=int(facts["waits"]),
        recent=recent,
        on_device=bool(facts["on_device"]),
    )


_EVIDENCE: Mapping[str, Callable[[Message], Event]] = {
    "note": _note,
    "committed": _committed,
    "unread": _unread,
    "preempted": _stop_requested,
    "held": _surveyed,
    "loaded": _loaded,
    "ready": _ready,
    "parted": _parted,
    "exception": _raised,
    "undead": _undead,
    "corrupted": _corrupted,
    "compared": _compared,
    "probe": _probed,
    "recorded": _recorded,
}
_READERS: Mapping[str, Callable[[Message], Event]] = {
    "join": _join,
    "beat": _beat,
    "exited": _exited,
    "evidence": _evidence,
    "committed": _committed,
}
