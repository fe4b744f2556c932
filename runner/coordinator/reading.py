"""Parses agents' messages into the events that they report."""

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from headway.runner.contract import SECTIONS
from headway.runner.coordinator.causes import Ended
from headway.runner.coordinator.events import Beat, Event, EvidenceEvent, Exited, Joined, Probed, Recorded
from headway.runner.health.collectives import Collective, CollectiveOperation
from headway.runner.health.watch import Probe, RankBeat
from headway.runner.health.xid import Xid
from headway.runner.messages import ChannelError, Message

_SECTIONS = frozenset(SECTIONS)
# A heartbeat page has signed 64-bit words, and times in nanoseconds.
_MOST, _LONGEST_S = 1 << 63, 1e10
# What the coordinator's decisions read of each kind of evidence.
_FACTS: Mapping[str, tuple[str, ...]] = {
    "loaded": ("rank", "step"),
    "committed": ("step",),
    "refused": ("step", "generation", "tier"),
    "unread": ("rank", "step", "generation", "tier", "name", "reason"),
    "exception": ("rank", "text"),
    "held": ("holdings",),
    "undead": ("workers",),
    "corrupted": ("ranks", "found"),
    "note": ("kind",),
}


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


_DOUBTS = frozenset({"transient", "spike"})
# What a node may put into the journal: lines that a coordinator is rebuilt from are none of them.
NOTES = frozenset({"standby", "warm", "refused file", "unseen"}) | _DOUBTS


def _evidence(message: Message) -> EvidenceEvent | Probed | Recorded:
    body = message.body
    what = str(body["what"])
    if what == "probe":
        return Probed(message.node, message.generation, {int(rank): _probe(facts) for rank, facts in body["ranks"].items()})
    if what == "recorded":
        said = body.get("said")
        ranks = {int(rank): tuple(map(_collective, entered)) for rank, entered in body["ranks"].items()}
        return Recorded(message.node, message.generation, ranks, None if said is None else str(said))
    if what == "note" and body.get("kind") not in NOTES:
        raise KeyError("kind")
    if missing := [name for name in _FACTS.get(what, ()) if name not in body]:
        raise KeyError(*missing)
    if what == "undead":
        workers = [{"rank": int(each["rank"]), "state": str(each.get("state") or "")} for each in body["workers"]]
        body = {**body, "workers": workers}
    return EvidenceEvent(message.node, message.generation, _of_numbers(body) if _is_of_numbers(body) else body)


def _is_of_numbers(body: Mapping[str, Any]) -> bool:
    """Whether it tells of wrong numbers, or of a doubt about some: strikes and rollbacks follow from these."""
    return body["what"] == "corrupted" or (body["what"] == "note" and body["kind"] in _DOUBTS)


def _of_numbers(body: Mapping[str, Any]) -> dict[str, Any]:
    """Where the ranks are the coordinator knows better."""
    own = {name: value for name, value in body.items() if name not in ("hosts", "nodes")}
    own |= {"ranks": [int(rank) for rank in body.get("ranks", ())], "found": str(body["found"])}
    for name in ("step", "sound_step"):
        if body.get(name) is not None:
            own[name] = _natural(body[name])
    return own


def _natural(value: Any) -> int:
    if (number := int(value)) < 0:
        raise ValueError(f"{number} is below 0")
    return number


def _probe(facts: Mapping[str, Any]) -> Probe:
    stack = tuple(str(frame) for frame in facts.get("stack", ()))
    used = float(facts["cpu_s"]), int(facts["io_bytes"])
    return Probe(str(facts["state"]), *used, stack, facts.get("where"), facts.get("waits_on"))


def _collective(facts: Mapping[str, Any]) -> Collective:
    recent = tuple(CollectiveOperation(int(each["number"]), str(each["name"]), str(each["before"])) for each in facts["recent"])
    named = str(facts["group"]), str(facts["label"])
    return Collective(*named, int(facts["number"]), str(facts["what"]), bool(facts["done"]), int(facts["waits"]), recent)


def _committed(message: Message) -> EvidenceEvent:
    return EvidenceEvent(
        message.node, message.generation, {**message.body, "what": "committed", "step": int(message.body["step"])}
    )


_READERS: Mapping[str, Callable[[Message], Event]] = {
    "join": _join,
    "beat": _beat,
    "exited": _exited,
    "evidence": _evidence,
    "committed": _committed,
}
