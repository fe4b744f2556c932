"""Checks whether files that were read back agree: the chain DSCP -> priority -> queue -> PFC -> CNP, and each switch's routing.

Every view of every file is a set of facts. With a cluster, each fact must match its plan. Without one, it must match
most files, and every end must keep its part of the chain: the collectives' traffic is paused and marked, and the
notifications travel apart from it.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import PurePosixPath

from headway.jobspec.plan import ClusterPlan, FabricPlan, NodePlan, QosPlan, SwitchPlan
from headway.templates.audit.fabrics import other_fabrics
from headway.templates.audit.plan import RENAMES_PORTS
from headway.templates.reading import EcnView, QosView, Reading, RoutingView

# A subject and its key, for example ("queue of DSCP", 26).
Fact = tuple[str, str | int]
Value = int | bool | str | None

_EIGHT = range(8)
_CHAIN_HINT = "`headway render` writes the whole chain from one cluster file"
_COLLECTIVES: Fact = ("DSCP that marks", "collectives")
_STORAGE: Fact = ("DSCP that marks", "storage")
_CNP: Fact = ("DSCP that marks", "cnp")

# Facts about a switch's own queues.
_OF_DEVICES = frozenset(
    {"queue of DSCP", "priority group of DSCP", "queue that PFC pauses for priority", "marking of queue", "bandwidth of queue"}
)

# That of upper tiers in FRR's files (templates/switches/frr/render.py); Debian's FRR has no more than 256.
_MOST_PATHS = 255


@dataclass(frozen=True)
class Disagreement:
    """In `file`, at `end` (a port, an adapter), a setting is wrong; `doubtful` if it may be intended."""

    file: str
    end: str
    message: str
    hint: str
    doubtful: bool = False


@dataclass(frozen=True)
class _Said:
    """A fact that some ends of each of the files share."""

    files: tuple[str, ...]
    ends: tuple[str, ...]
    fact: Fact
    value: Value


def disagreements(readings: Mapping[str, Reading], cluster: ClusterPlan | None = None) -> Iterator[Disagreement]:
    """Yield the errors between the files, each by its name; with a cluster, also the differences from its plan."""
    if cluster is not None:
        yield from _against(readings, cluster)
        return
    fabrics = other_fabrics(readings)
    yield from _among({file: each for file, each in readings.items() if file not in fabrics})
    for fabric in dict.fromkeys(fabrics.values()):
        yield from _among({file: each for file, each in readings.items() if fabrics.get(file) == fabric})
    yield from _pairs(readings)


def carries_collectives(readings: Iterable[Reading]) -> bool:
    """Return whether any file sets the collectives' DSCP; without it the chain has no beginning."""
    return any("collectives" in view.marks for reading in readings for view in reading.qos.values())


def facts(view: QosView) -> dict[Fact, Value]:
    """Return the facts of the view."""
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
    """Return a place for every DSCP. A switch has to put every packet into one; a file that maps some DSCPs maps the
    others to none."""
    return {dscp: places.get(dscp) for dscp in range(64)} if places else {}


def _distinct(reading: Reading) -> list[tuple[QosView, tuple[str, ...]]]:
    """Return the views of the file, each with its ends: most ports of a switch are equal, and there are thousands of them."""
    found: list[tuple[QosView, list[str]]] = []
    for end, view in reading.qos.items():
        ends = next((ends for other, ends in found if other is view or other == view), None)
        if ends is None:
            found.append((view, ends := []))
        ends.append(end)
    return [(view, tuple(ends)) for view, ends in found]


def _statements(files: tuple[str, ...], reading: Reading) -> Iterator[_Said]:
    """Yield what each of the files states, which have equal views of ends with equal names."""
    for view, ends in _distinct(reading):
        for fact, value in facts(view).items():
            yield _Said(files, ends, fact, value)


def _alike(readings: Mapping[str, Reading]) -> Iterator[tuple[tuple[str, ...], Reading]]:
    """Yield a reading for all files of one kind of device that share its views, as the switches of a tier do."""
    groups: dict[object, dict[str, Reading]] = {}
    for file, reading in readings.items():
        groups.setdefault((_scope(reading), id(reading.qos)), {})[file] = reading
    for group in groups.values():
        yield tuple(group), next(iter(group.values()))


def _against(readings: Mapping[str, Reading], cluster: ClusterPlan) -> Iterator[Disagreement]:
    """Compare each file with the cluster: what it states, must state, and its ends. Files with the same views are compared together."""
    switches = {switch.name: switch for switch in cluster.switches}
    nodes = {node.name: node for node in cluster.nodes}
    # The file and its folders, the nearest one first.
    names = {file: PurePosixPath(file).parts[::-1] for file in readings}
    owners = {file: next((switches[each] for each in parts[1:] if each in switches), None) for file, parts in names.items()}
    intended = cache(_intended)
    for files, reading in _alike(readings):
        if _is_foreign(reading):
            # templates/audit/plan.py compares them: their ports and queues have other names than the plan's.
            continue
        groups: dict[str, tuple[FabricPlan, QosPlan, list[str]]] = {}
        for file in files if reading.qos else ():
            fabric = _fabric_of(reading, owners[file], cluster)
            if fabric is not None and fabric.qos is not None:
                groups.setdefault(fabric.name, (fabric, fabric.qos, []))[2].append(file)
        for planned, qos, own in groups.values():
            agreed = intended(qos)
            said = [*_statements(tuple(own), reading), *_unsaid(tuple(own), reading, agreed)]
            yield from _dissent(said, agreed, dict.fromkeys(agreed, "the cluster file"))
            for file in own:
                node = next((nodes[each] for each in names[file] if each in nodes), None)
                yield from _absent(file, reading, _ends_of(reading, owners[file], node, planned, cluster))
    for file, reading in readings.items():
        switch = owners[file]
        if switch is not None and reading.routing is not None and not _is_foreign(reading):
            yield from _routing_of_plan(file, reading.routing, switch, cluster)


def _is_foreign(reading: Reading) -> bool:
    return reading.device is not None and reading.device.os in RENAMES_PORTS


def _fabric_of(reading: Reading, switch: SwitchPlan | None, cluster: ClusterPlan) -> FabricPlan | None:
    """Return the fabric of a switch's file, or the one that a host's file names; else the scale-out one."""
    if switch is not None:
        return cluster.fabric(switch.fabric)
    named = None if reading.device is None else reading.device.fabric
    return next((fabric for fabric in cluster.fabrics if fabric.name == named), cluster.scale_out)


def _ends_of(
    reading: Reading, switch: SwitchPlan | None, node: NodePlan | None, fabric: FabricPlan, cluster: ClusterPlan
) -> Iterable[str]:
    """Return the ports and adapters that the plan has in the file of a switch or node."""
    if switch is not None:
        return [port.name for port in cluster.cabled(switch)]
    is_adapters = any("congestion control of priority" in view.says for view in reading.qos.values())
    return cluster.nics_on(node, fabric.name) if node is not None and is_adapters else ()


def _among(readings: Mapping[str, Reading]) -> Iterator[Disagreement]:
    """Compare the files with each other, then every end with the chain."""
    said = [(_scope(reading), each) for files, reading in _alike(readings) for each in _statements(files, reading)]
    by_end = len(readings) == 1
    agreed, authorities = _majority([each for _, each in said], by_end)
    of_all = [each for _, each in said if each.fact[0] not in _OF_DEVICES and _counts(each.fact, agreed)]
    yield from _dissent(of_all, agreed, authorities)
    for scope in dict.fromkeys(scope for scope, _ in said):
        own = [each for other, each in said if other == scope and each.fact[0] in _OF_DEVICES]
        for found in _dissent(own, *_majority(own, by_end or len({file for each in own for file in each.files}) == 1)):
            # On these an engineer gives ports a profile one by one, and storage or management ports none.
            yield replace(found, doubtful=True) if scope[0] in RENAMES_PORTS else found
    yield from _chain(readings, agreed)


def _scope(reading: Reading) -> tuple[str, str | None]:
    """Return the kind of device: the numbers of queues are an operating system's own, and spines may mark later than leaves."""
    device = reading.device
    if device is None:
        return ("", None)
    name = (device.name or "").lower()
    return (device.os, device.role or next((role for role in ("spine", "leaf") if role in name), None))


def _counts(fact: Fact, agreed: Mapping[Fact, Value]) -> bool:
    """Return whether the fact matters. Devices differ in unused classes: switches come with PFC on 3 and 4, and mlx5
    with a priority for every DSCP.

    Used are the DSCP and priority of the collectives or of storage, of the notifications, and of everything else, which are 0.
    """
    marked = {agreed[mark] for mark in (_COLLECTIVES, _STORAGE, _CNP) if mark in agreed}
    dscps = {0, *marked}
    # The queue of everything else is numbered by a switch (SONiC's default is 1), its 802.1p priority by an adapter.
    if fact[0] == "priority of DSCP":
        return fact[1] in marked
    if fact[0] in {"PFC of priority", "congestion control of priority"}:
        return fact[1] in {0, *(agreed.get(("priority of DSCP", _key(dscp))) for dscp in dscps)}
    return True


def _intended(plan: QosPlan) -> dict[Fact, Value]:
    """Return the planned facts, for every file that states any of them."""
    by_queue = {each.queue: each for each in plan.classes}
    by_dscp = {dscp: plan.of_dscp(dscp) for dscp in range(64)}
    cnp = plan.carrying("cnp")
    ecn = {queue: by_queue[queue].ecn if queue in by_queue else None for queue in _EIGHT}
    return facts(
        QosView(
            # The keeper marks the copies of checkpoints itself.
            marks={each.carries: each.dscp for each in plan.classes if each.carries != "checkpoints"},
            marks_priority={"cnp": cnp.priority} if cnp else {},
            priorities={each.dscp: each.priority for each in plan.classes},
            queues={dscp: each.queue if each else 0 for dscp, each in by_dscp.items()},
            groups={dscp: each.priority_group if each else 0 for dscp, each in by_dscp.items()},
            pfc={priority: priority in plan.lossless_priorities for priority in _EIGHT},
            paused_queues={each.priority: each.queue for each in plan.classes if each.lossless},
            ecn={queue: EcnView(at.min_bytes, at.max_bytes, at.percent) if at else None for queue, at in ecn.items()},
            reacts={priority: any(each.ecn and each.priority == priority for each in plan.classes) for priority in _EIGHT},
            weights={0: plan.rest_percent, **{each.queue: each.bandwidth_percent for each in plan.classes}},
        )
    )


def _unsaid(files: tuple[str, ...], reading: Reading, agreed: Mapping[Fact, Value]) -> Iterator[_Said]:
    """Yield facts that an end must state and does not, where it matters: a class's place, not that of everything else."""
    wanted = [fact for fact, value in agreed.items() if value]
    for view, ends in _distinct(reading):
        said = facts(view)
        for fact in wanted:
            if fact[0] in view.says and fact not in said:
                yield _Said(files, ends, fact, None)


def _absent(file: str, reading: Reading, ends: Iterable[str]) -> Iterator[Disagreement]:
    """Yield the plan's ports and adapters that are missing in the file of their switch or node."""
    missing = [end for end in ends if end not in reading.qos]
    if missing:
        yield Disagreement(file, _listed(missing), "no traffic class is configured there", "render the file again and apply it")


def _majority(said: Iterable[_Said], by_end: bool) -> tuple[dict[Fact, Value], dict[Fact, str]]:
    """Return the facts of most files, and these files: a file counts once for each value. In one file, return the facts
    of most of its ends."""
    voters: dict[Fact, dict[Value, list[str]]] = {}
    votes = dict.fromkeys((each.fact, each.value, voter) for each in said for voter in (each.ends if by_end else each.files))
    for fact, value, voter in votes:
        voters.setdefault(fact, {}).setdefault(value, []).append(voter)
    agreed, authorities = {}, {}
    for fact, by_value in voters.items():
        (value, first), *others = Counter({value: len(names) for value, names in by_value.items()}).most_common(2)
        agreed[fact] = value
        tied = bool(others) and others[0][1] == first
        authorities[fact] = by_value[value][0] if tied else f"most of the {'ends' if by_end else 'files'}"
    return agreed, authorities


def _dissent(said: Iterable[_Said], agreed: Mapping[Fact, Value], authorities: Mapping[Fact, str]) -> Iterator[Disagreement]:
    """Yield one disagreement for each file and fact, whatever the number of its ends."""
    ends: dict[tuple[str, Fact, Value], list[str]] = {}
    for statement in said:
        if statement.fact in agreed and statement.value != agreed[statement.fact]:
            for file in statement.files:
                ends.setdefault((file, statement.fact, statement.value), []).extend(statement.ends)
    for (file, fact, value), names in ends.items():
        message = f"the {fact[0]} {fact[1]} is {_word(value)}, but {_word(agreed[fact])} in {authorities[fact]}"
        yield Disagreement(file, _listed(names), message, _hint(fact))


def _chain(readings: Mapping[str, Reading], agreed: Mapping[Fact, Value]) -> Iterator[Disagreement]:
    """Yield ends that do not keep their part of the chain, one for each file and message; a fabric carries collectives or storage."""
    dscp, cnp = agreed.get(_COLLECTIVES, agreed.get(_STORAGE)), agreed.get(_CNP)
    if not isinstance(dscp, int):
        return
    views = [view for _, reading in _alike(readings) for view in reading.qos.values()]
    others = _Others(
        load="the collectives" if _COLLECTIVES in agreed else "storage",
        pause=any(on for view in views for on in view.pfc.values()),
        mark=any(ecn is not None for view in views for ecn in view.ecn.values())
        or any(any(view.reacts.values()) for view in views),
    )
    for files, reading in _alike(readings):
        for file in (file for file in files if _is_unmarked(readings[file])):
            message = f"its RDMA traffic has no DSCP (`NCCL_IB_TC`), but other senders have {dscp}: switches treat it as ordinary traffic"
            yield Disagreement(file, "NCCL", message, _CHAIN_HINT)
        found: dict[tuple[str, bool], list[str]] = {}
        for view, ends in _distinct(reading):
            for link in _open_links(view, dscp, cnp if isinstance(cnp, int) else None, others):
                found.setdefault(link, []).extend(ends)
        for (message, doubtful), names in found.items():
            yield from (Disagreement(file, _listed(names), message, _CHAIN_HINT, doubtful) for file in files)


def _is_unmarked(reading: Reading) -> bool:
    """Return whether it is the environment of a job that uses RDMA adapters and sets no traffic class."""
    # Only a job's variables are few; a switch's settings are read from its text when they are asked for.
    setting = reading.settings if "NCCL" in reading.qos else {}
    uses_rdma = "NCCL_IB_HCA" in setting or ("NCCL_NET" in setting and setting["NCCL_NET"].value == "IB")
    return uses_rdma and "NCCL_IB_TC" not in setting


@dataclass(frozen=True)
class _Others:
    """The load of RDMA, and whether any end pauses, or marks, at all. If none does, the fabric may be meant to be without."""

    load: str
    pause: bool
    mark: bool


def _open_links(view: QosView, dscp: int, cnp: int | None, others: _Others) -> Iterator[tuple[str, bool]]:
    """Yield the missing parts of the chain at an end, and whether each is doubtful."""
    if view.queues or "queue of DSCP" in view.says:
        yield from _open_in_switch(view, dscp, cnp, others)
    elif view.priorities or "priority of DSCP" in view.says:
        yield from _open_in_adapter(view, dscp, others)


def _open_in_switch(view: QosView, dscp: int, cnp: int | None, others: _Others) -> Iterator[tuple[str, bool]]:
    queue = view.queues.get(dscp)
    if queue is None:
        yield f"DSCP {dscp} carries {others.load}, but is not mapped to a queue", False
        return
    if not any(on and view.paused_queues.get(priority) == queue for priority, on in view.pfc.items()):
        yield f"DSCP {dscp} carries {others.load} in queue {queue}, which PFC does not pause", not others.pause
    if view.ecn.get(queue) is None:
        yield f"DSCP {dscp} carries {others.load} in queue {queue}, where packets are not ECN-marked", not others.mark
    if cnp is not None and view.queues.get(cnp) == queue:
        yield f"notifications (DSCP {cnp}) wait in queue {queue} behind the traffic that they should slow down", False


def _open_in_adapter(view: QosView, dscp: int, others: _Others) -> Iterator[tuple[str, bool]]:
    priority = view.priorities.get(dscp)
    if priority is None:
        yield f"DSCP {dscp} carries {others.load}, but is not mapped to a priority", False
        return
    if not view.pfc.get(priority, False):
        yield f"DSCP {dscp} carries {others.load} with priority {priority}, which PFC does not pause", not others.pause
    if others.mark and view.reacts and not view.reacts.get(priority, False):
        yield f"senders of DSCP {dscp} do not react to congestion notifications", False


def _pairs(readings: Mapping[str, Reading]) -> Iterator[Disagreement]:
    """Compare two files of different names in one folder, which are of one switch."""
    seen: dict[PurePosixPath, tuple[str, RoutingView]] = {}
    for file, reading in readings.items():
        if reading.routing is None:
            continue
        path = PurePosixPath(file)
        # SONiC keeps its frr.conf in a folder next to config_db.json.
        folder = path.parent.parent if path.parent.name == "frr" else path.parent
        other, view = seen.setdefault(folder, (file, reading.routing))
        names = {device.name for each in (file, other) if (device := readings[each].device) is not None and device.name}
        kinds = {device.os for each in (file, other) if (device := readings[each].device) is not None}
        if path.suffix != PurePosixPath(other).suffix and len(names) < 2 and not kinds & RENAMES_PORTS:
            yield from _routing_of(file, reading.routing, other, view)


def _routing_of_plan(file: str, found: RoutingView, switch: SwitchPlan, cluster: ClusterPlan) -> Iterator[Disagreement]:
    uplinks = frozenset(port.name for port in cluster.cabled(switch) if port.role == "fabric")
    # Ports to switches that do not exist yet may have neighbors.
    coming = frozenset(port.name for port in switch.uplinks) - uplinks
    wanted_neighbors = uplinks | (coming & (found.neighbors or frozenset()))
    yield from _routing_of(file, found, "the cluster file", RoutingView(switch.asn, switch.router_id, wanted_neighbors))
    wanted = min(len(uplinks), _MOST_PATHS)
    if found.max_paths is not None and found.max_paths < wanted:
        message = f"BGP uses {found.max_paths} of {len(uplinks)} equal paths: ECMP leaves links idle"
        yield Disagreement(file, "BGP", message, f"set the number of equal paths to {wanted}")


def _routing_of(file: str, found: RoutingView, authority: str, wanted: RoutingView) -> Iterator[Disagreement]:
    """Yield the facts that both state differently."""
    pairs = (
        ("AS number is", found.asn, wanted.asn),
        ("router id is", found.router_id, wanted.router_id),
        ("neighbors are", _neighbors(found), _neighbors(wanted)),
        ("number of equal paths is", found.max_paths, wanted.max_paths),
    )
    for what, value, expected in pairs:
        if value is not None and expected is not None and value != expected:
            hint = "both files are of one switch: render them again, or fix the cluster file"
            yield Disagreement(file, "BGP", f"the {what} {value}, but {expected} in {authority}", hint)


def _neighbors(view: RoutingView) -> str | None:
    """Return the neighbors that can exchange routes, `none` where there are none, and None where the file does not set them."""
    if view.neighbors is None:
        return None
    return _listed(sorted(view.neighbors)) or "none"


def _hint(fact: Fact) -> str:
    if fact[0] in {"DSCP that marks", "priority that marks", "congestion control of priority"}:
        return "make all senders and switches agree; `headway render` writes their files from one cluster file"
    return "make all ends of a packet's path agree; `headway render` writes their files from one cluster file"


def _word(value: Value) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return "none" if value is None else str(value)


def _thresholds(ecn: EcnView | None) -> str | None:
    if ecn is None:
        return None
    return f"{ecn.min_bytes} to {ecn.max_bytes} bytes, {ecn.percent} %"


def _key(value: Value) -> str | int:
    """Return the value as a fact's key; a value that no file states is no key of any fact."""
    return value if isinstance(value, (int, str)) else ""


def _listed(names: Iterable[str]) -> str:
    """Return the names, or the first three and the number of the rest."""
    names = list(dict.fromkeys(names))
    return ", ".join(names) if len(names) <= 4 else f"{', '.join(names[:3])} and {len(names) - 3} more"
