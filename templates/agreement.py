"""Whether files that were read back agree: the chain DSCP -> priority -> queue -> PFC -> CNP, and each switch's routing.

Every view of every file is a set of facts. A fact has one value, which the plan says, or else most of the files; a file that
says another one disagrees. What the facts come to must then be a chain: what carries the collectives is paused and marked, and
the notifications travel apart from it.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

from headway.jobspec.plan import ClusterPlan, QosPlan
from headway.templates.reading import EcnView, QosView, Reading, RoutingView

# What is said of what, for example ("queue of DSCP", 26).
Fact = tuple[str, str | int]
Value = int | bool | str | None

_QUEUES = range(8)

# FRR as Debian and SONiC build it has room for this many (--enable-multipath).
_MOST_PATHS = 256


@dataclass(frozen=True)
class Disagreement:
    """In `file`, at `end` (a port, an adapter), something is not as it must be."""

    file: str
    end: str
    message: str
    hint: str


@dataclass(frozen=True)
class _Said:
    file: str
    end: str
    fact: Fact
    value: Value


def disagreements(readings: Mapping[str, Reading], cluster: ClusterPlan | None = None) -> Iterator[Disagreement]:
    """What is wrong between the files, each by its name; with a cluster, what is not as it says."""
    plan = cluster.scale_out.qos if cluster and cluster.scale_out else None
    said = [statement for file, reading in readings.items() for statement in _statements(file, reading)]
    agreed = _intended(plan) if plan else _majority(said)
    said += [statement for file, reading in readings.items() for statement in _left_out(file, reading, agreed)]
    yield from _dissent(said, agreed, "the cluster file" if plan else "most of the files")
    if plan is None:
        yield from _broken_chain(said, agreed)
    yield from _routing(readings, cluster)


def facts(view: QosView) -> dict[Fact, Value]:
    """What the view says, fact by fact."""
    named: dict[str, Mapping[str, Value] | Mapping[int, Value]] = {
        "DSCP that marks": view.marks,
        "priority that marks": view.marks_priority,
        "priority of DSCP": view.priorities,
        "queue of DSCP": _of_every_dscp(view.queues),
        "priority group of DSCP": _of_every_dscp(view.groups),
        "PFC of priority": view.pfc,
        "queue that PFC pauses for priority": view.paused_queues,
        "marking of queue": {queue: _thresholds(ecn) for queue, ecn in view.ecn.items()},
        "congestion control of priority": view.reacts,
        "bandwidth of queue": {queue: "strict" if share is None else share for queue, share in view.weights.items()},
    }
    return {(name, key): value for name, values in named.items() for key, value in values.items()}


def _of_every_dscp(places: Mapping[int, int]) -> dict[int, int | None]:
    """A switch has to put every packet somewhere; one that says so of some DSCPs says none of the others."""
    return {dscp: places.get(dscp) for dscp in range(64)} if places else {}


def _statements(file: str, reading: Reading) -> Iterator[_Said]:
    for end, view in reading.qos.items():
        for fact, value in facts(view).items():
            yield _Said(file, end, fact, value)


def _left_out(file: str, reading: Reading, agreed: Mapping[Fact, Value]) -> Iterator[_Said]:
    """An end that gives priorities to some DSCPs gives none to the others; it must to the one that carries the collectives."""
    dscp = _key(agreed.get(("DSCP that marks", "collectives")))
    for end, view in reading.qos.items():
        if view.priorities and dscp not in view.priorities:
            yield _Said(file, end, ("priority of DSCP", dscp), None)


def _intended(plan: QosPlan) -> dict[Fact, Value]:
    """What every file has to say that says anything of it."""
    by_queue = {each.queue: each for each in plan.classes}
    by_dscp = {dscp: plan.of_dscp(dscp) for dscp in range(64)}
    lossless = [each for each in plan.classes if each.lossless]
    cnp = plan.carrying("cnp")
    ecn = {queue: by_queue[queue].ecn if queue in by_queue else None for queue in _QUEUES}
    return facts(
        QosView(
            marks={each.carries: each.dscp for each in plan.classes},
            marks_priority={"cnp": cnp.priority} if cnp else {},
            priorities={each.dscp: each.priority for each in plan.classes},
            queues={dscp: each.queue if each else 0 for dscp, each in by_dscp.items()},
            groups={dscp: each.priority_group if each else 0 for dscp, each in by_dscp.items()},
            pfc={priority: priority in plan.lossless_priorities for priority in _QUEUES},
            paused_queues={each.priority: each.queue for each in lossless},
            ecn={queue: EcnView(at.min_bytes, at.max_bytes, at.percent) if at else None for queue, at in ecn.items()},
            reacts={priority: any(each.ecn and each.priority == priority for each in plan.classes) for priority in _QUEUES},
            weights={0: plan.rest_percent, **{each.queue: each.bandwidth_percent for each in plan.classes}},
        )
    )


def _majority(said: Iterable[_Said]) -> dict[Fact, Value]:
    """What most files say, a file counting once for each value; the first of those that are equally many."""
    votes: dict[Fact, Counter[Value]] = {}
    for fact, value, _ in dict.fromkeys((statement.fact, statement.value, statement.file) for statement in said):
        votes.setdefault(fact, Counter())[value] += 1
    return {fact: counter.most_common(1)[0][0] for fact, counter in votes.items()}


def _dissent(said: Iterable[_Said], agreed: Mapping[Fact, Value], authority: str) -> Iterator[Disagreement]:
    """One disagreement for each file and fact, whatever the number of its ends that say so."""
    ends: dict[tuple[str, Fact, Value], list[str]] = {}
    for statement in said:
        if statement.fact in agreed and statement.value != agreed[statement.fact]:
            ends.setdefault((statement.file, statement.fact, statement.value), []).append(statement.end)
    for (file, fact, value), names in ends.items():
        message = f"the {fact[0]} {fact[1]} is {_word(fact, value)}, and {_word(fact, agreed[fact])} in {authority}"
        yield Disagreement(file, _listed(names), message, _hint(fact))


def _broken_chain(said: Iterable[_Said], agreed: Mapping[Fact, Value]) -> Iterator[Disagreement]:
    """Links of the chain that all files together leave open, each told once, at the first file that shows it."""
    dscp, cnp = agreed.get(("DSCP that marks", "collectives")), agreed.get(("DSCP that marks", "cnp"))
    priority, queue = agreed.get(("priority of DSCP", _key(dscp))), agreed.get(("queue of DSCP", _key(dscp)))
    reacts: Fact = ("congestion control of priority", _key(priority))
    anyone_reacts = any(fact[0] == reacts[0] and value for fact, value in agreed.items())
    links: tuple[tuple[Fact, Value, str], ...] = (
        (("PFC of priority", _key(priority)), True, f"DSCP {dscp} carries the collectives, and PFC does not pause its priority"),
        (
            ("queue that PFC pauses for priority", _key(priority)),
            queue,
            f"DSCP {dscp} travels in queue {queue}, and PFC pauses another",
        ),
        (reacts, True if anyone_reacts else None, f"senders of DSCP {dscp} do not slow down when they are told to"),
    )
    for fact, wanted, message in links:
        if fact in agreed and wanted is not None and agreed[fact] != wanted:
            yield _first(said, fact, message)
    marking: Fact = ("marking of queue", _key(queue))
    if marking in agreed and agreed[marking] is None:
        yield _first(said, marking, f"DSCP {dscp} travels in queue {queue}, and no packet there is marked (ECN)")
    cnp_queue: Fact = ("queue of DSCP", _key(cnp))
    if cnp is not None and queue is not None and agreed.get(cnp_queue) == queue:
        yield _first(said, cnp_queue, f"notifications (DSCP {cnp}) wait in queue {queue} behind what they are to slow down")


def _first(said: Iterable[_Said], fact: Fact, message: str) -> Disagreement:
    statement = next(statement for statement in said if statement.fact == fact)
    return Disagreement(statement.file, statement.end, message, "`headway render` writes the whole chain from one cluster file")


def _routing(readings: Mapping[str, Reading], cluster: ClusterPlan | None) -> Iterator[Disagreement]:
    """Files of one folder are of one switch; where the cluster has a switch of the folder's name, they say what it says."""
    switches = {switch.name: switch for switch in cluster.switches} if cluster else {}
    seen: dict[str, tuple[str, RoutingView]] = {}
    for file, reading in readings.items():
        if reading.routing is None:
            continue
        folder = PurePosixPath(file).parent
        switch = switches.get(folder.name)
        if switch is not None:
            ports = frozenset(port.name for port in switch.uplinks)
            wanted = RoutingView(switch.asn, switch.router_id, ports, reading.routing.max_paths)
            yield from _routing_of(file, reading.routing, "the cluster file", wanted)
            yield from _too_few_paths(file, reading.routing, len(ports))
        other, view = seen.setdefault(str(folder), (file, reading.routing))
        if view is not reading.routing:
            yield from _routing_of(file, reading.routing, other, view)


def _routing_of(file: str, found: RoutingView, authority: str, wanted: RoutingView) -> Iterator[Disagreement]:
    pairs = (
        ("AS number", found.asn, wanted.asn),
        ("router id", found.router_id, wanted.router_id),
        ("neighbors", _listed(sorted(found.neighbors)), _listed(sorted(wanted.neighbors))),
        ("number of equal paths", found.max_paths, wanted.max_paths),
    )
    for what, value, expected in pairs:
        if value != expected:
            message = f"the {what} of BGP is {value}, and {expected} in {authority}"
            yield Disagreement(file, "BGP", message, "both files are of one switch: render them anew, or mend the cluster file")


def _too_few_paths(file: str, found: RoutingView, uplinks: int) -> Iterator[Disagreement]:
    if found.max_paths is not None and found.max_paths < min(uplinks, _MOST_PATHS):
        message = f"BGP uses {found.max_paths} equal paths of {uplinks}: ECMP leaves links idle"
        yield Disagreement(file, "BGP", message, f"let it use {min(uplinks, _MOST_PATHS)}")


def _hint(fact: Fact) -> str:
    senders = ("DSCP that marks", "priority that marks", "congestion control of priority")
    device = "the sender" if fact[0] in senders else "both ends of a link"
    return f"{device} and the switches must have one {fact[0]} {fact[1]}; `headway render` writes them all from the cluster file"


def _word(fact: Fact, value: Value) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return "none" if value is None else str(value)


def _thresholds(ecn: EcnView | None) -> str | None:
    if ecn is None:
        return None
    return f"{ecn.min_bytes} to {ecn.max_bytes} bytes, {ecn.percent} %"


def _key(value: Value) -> str | int:
    """The value as a fact's key; what no file says is no key of any fact."""
    return value if isinstance(value, (int, str)) else ""


def _listed(names: Iterable[str]) -> str:
    """The names, or the first three and how many more."""
    names = list(dict.fromkeys(names))
    return ", ".join(names) if len(names) <= 4 else f"{', '.join(names[:3])} and {len(names) - 3} more"
