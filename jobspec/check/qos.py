"""Checks traffic classes: their numbers must be distinct, consistent, and supported by switches."""

from collections.abc import Callable, Iterator, Sequence

from headway.jobspec.check.names import check_unique
from headway.jobspec.document import Path
from headway.jobspec.problem import CLUSTER, Problem, Severity
from headway.jobspec.resolve.qos import RDMA, priority_of, queue_of, share_of
from headway.jobspec.spec.fabric import TrafficClass
from headway.jobspec.units import format_bytes

# Marks that vendors' guides to RoCE use (docs/fabric.md).
_USUAL_DSCP = {"collectives": 26, "storage": 26, "cnp": 48, "checkpoints": 10}
_LOADS = ("collectives", "checkpoints", "cnp")
# CS6 and CS7 (RFC 4594), and the queue of both.
_CONTROL = (48, 56)
_CONTROL_QUEUE = 7
_LEAST_SHARE = 10
# A third of a millisecond at 800 Gb/s, thirty round trips of a fabric.
_MOST_BYTES = 32 << 20
_PACKET_BYTES = 4096
_USUAL_MIN_BYTES = 1 << 20
_FAST_BPS = 400e9

_PLACES: tuple[tuple[str, Callable[[TrafficClass], object]], ...] = (
    ("carries", lambda each: each.carries),
    ("dscp", lambda each: each.dscp),
    ("priority", priority_of),
    ("queue", queue_of),
)


def check_classes(
    path: Path, classes: Sequence[TrafficClass], *, are_rendered: bool, are_judged: bool = False
) -> Iterator[Problem]:
    """Check each of the classes at `path`, and all against each other; `are_rendered` if headway configures the switches, and
    `are_judged` if these refuse a class in the queue of their control plane."""
    yield from check_unique(CLUSTER, path, "name", [each.name for each in classes])
    for key, value in _PLACES:
        yield from _check_apart(path, classes, key, value)
    for index, each in enumerate(classes):
        yield from _check_class((*path, index), each)
        yield from _check_place((*path, index), each, are_judged)
        yield from _check_thresholds((*path, index, "ecn"), each)
    yield from _check_shares(path, classes)
    yield from _check_notifications(path, classes, are_rendered)


def _check_apart(
    path: Path, classes: Sequence[TrafficClass], key: str, value: Callable[[TrafficClass], object]
) -> Iterator[Problem]:
    """Report two classes that switches could not distinguish; queues that follow from one priority are reported as that."""
    first: dict[object, TrafficClass] = {}
    for index, each in enumerate(classes):
        other = first.setdefault(value(each), each)
        follows = key == "queue" and priority_of(other) == priority_of(each) and each.queue is None
        # One DSCP of two classes is reported as that.
        from_dscp = other.dscp == each.dscp and None in (other.priority, each.priority)
        follows = follows or (key in ("priority", "queue") and from_dscp and value(each) == each.dscp >> 3)
        if other.name != each.name and not follows:
            shared = f"both carry {value(each)}" if key == "carries" else f"share the {key} {value(each)}"
            message = f"the classes `{other.name}` and `{each.name}` {shared}"
            hint = f"give each a different `{key}`"
            free = _free(key, each, [value(every) for every in classes])
            if free is not None and not (key == "priority" and each.priority is None):
                hint = f"write `{key}: {free}` there"
            if key == "priority" and other.priority is None and each.priority is None:
                message += f": the upper three bits of their DSCPs, {other.dscp} and {each.dscp}"
                hint = "set `priority` of one of them, or give it a DSCP with other upper bits, for example 48"
            if key == "carries":
                hint = f"remove one of the two, or write what `{each.name}` carries: each kind of traffic is in one class"
            yield Problem("HW506", CLUSTER, (*path, index, key), message, hint)


def _free(key: str, each: TrafficClass, taken: Sequence[object]) -> object | None:
    """Return the usual number for what the class carries, if no class has it; the load that its name begins with."""
    if key == "carries":
        return next((load for load in _LOADS if load.startswith(each.name[:4].lower()) and load not in taken), None)
    usual = _USUAL_DSCP.get(each.carries)
    if usual is None:
        return None
    found = {"dscp": usual, "priority": each.dscp >> 3, "queue": priority_of(each)}[key]
    return found if found and found not in taken else None


def _check_class(path: Path, each: TrafficClass) -> Iterator[Problem]:
    if each.dscp == 0:
        message = "DSCP 0 is the mark of unmarked packets"
        yield Problem("HW507", CLUSTER, (*path, "dscp"), message, "give the class another DSCP, for example 26")
    elif each.priority is None and priority_of(each) == 0:
        message = f"DSCP {each.dscp} has the upper bits of priority 0, which is for traffic outside all classes"
        yield Problem("HW507", CLUSTER, (*path, "dscp"), message, "give the class a `priority` from 1 to 7")
    if each.ecn is not None and each.ecn.min > each.ecn.max:
        message = f"marking begins at {format_bytes(each.ecn.min)}, above the {format_bytes(each.ecn.max)} of `max`"
        hint = f"exchange them: `min: {format_bytes(each.ecn.max)}, max: {format_bytes(each.ecn.min)}`"
        yield Problem("HW507", CLUSTER, (*path, "ecn", "min"), message, hint)
    if each.carries == "cnp" and (each.lossless or each.ecn is not None):
        message = "congestion notifications must be neither paused nor marked: they would arrive too late"
        yield Problem("HW507", CLUSTER, path, message, "leave `lossless` and `ecn` out of the class that carries `cnp`")


def _check_place(path: Path, each: TrafficClass, is_judged: bool) -> Iterator[Problem]:
    """Warn about places that the control plane has, and shares with which a class waits behind all others."""
    share = share_of(each)
    if each.carries != "cnp" and each.dscp in _CONTROL:
        message = f"DSCP {each.dscp} is that of routing protocols: BGP's packets have it, and share the queue of `{each.name}`"
        yield Problem("HW532", CLUSTER, (*path, "dscp"), message, "give the class another DSCP, for example 26", Severity.WARNING)
    if not is_judged and _CONTROL_QUEUE in (queue_of(each), priority_of(each)):
        message = f"`{each.name}` is in queue or priority 7, which switches keep for their control plane"
        yield Problem("HW532", CLUSTER, path, message, "use a priority from 1 to 6", Severity.WARNING, at_key=True)
    if each.carries == "cnp" and share is not None:
        message = (
            f"the congestion notifications get {share} % of a full link, and wait behind the packets that they are to slow down"
        )
        hint = "leave `bandwidth_percent` out, so that they go first"
        yield Problem("HW532", CLUSTER, (*path, "bandwidth_percent"), message, hint, Severity.WARNING)
    elif each.carries in RDMA and share is not None and share < _LEAST_SHARE:
        message = f"`{each.name}` gets {share} % of a full link; any other traffic slows it down"
        yield Problem(
            "HW532", CLUSTER, (*path, "bandwidth_percent"), message, "give it a larger share, for example `60`", Severity.WARNING
        )


def _check_thresholds(path: Path, each: TrafficClass) -> Iterator[Problem]:
    """Warn about thresholds that a healthy queue exceeds, or that none reaches before PFC pauses."""
    if each.ecn is None or each.ecn.min > each.ecn.max:
        return
    if each.ecn.max > _MOST_BYTES:
        message = (
            f"packets are all marked from a queue of {format_bytes(each.ecn.max)} on, which takes "
            f"{each.ecn.max * 8 / _FAST_BPS * 1e3:.1f} ms at 400Gb/s: PFC stops links before senders slow down"
        )
        yield Problem("HW532", CLUSTER, (*path, "max"), message, "use about 2MiB at 400Gb/s", Severity.WARNING)
    if each.ecn.min < _PACKET_BYTES:
        message = f"marking begins at {format_bytes(each.ecn.min)}, less than one RDMA packet: senders slow down on an idle link"
        hint = "use about 1MiB at 400Gb/s"
        if each.ecn.max < _USUAL_MIN_BYTES:
            hint = f"use about `min: {format_bytes(_USUAL_MIN_BYTES)}, max: {format_bytes(2 * _USUAL_MIN_BYTES)}` at 400Gb/s"
        yield Problem("HW532", CLUSTER, (*path, "min"), message, hint, Severity.WARNING)


def _check_shares(path: Path, classes: Sequence[TrafficClass]) -> Iterator[Problem]:
    """Check that a share is left for traffic without a class."""
    total = sum(share_of(each) or 0 for each in classes)
    if total > 99:
        message = f"the classes take {total} % of a link and leave nothing for other traffic"
        yield Problem("HW508", CLUSTER, path, message, "reduce the shares to a total of 99 or less", at_key=True)


def _check_notifications(path: Path, classes: Sequence[TrafficClass], are_rendered: bool) -> Iterator[Problem]:
    """Check that notifications, which carry marks to the sender, have a separate queue; switches that headway does not configure
    may have one that the document does not name."""
    for index, each in enumerate(classes):
        if each.ecn is not None and not any(other.carries == "cnp" for other in classes):
            message = f"switches mark `{each.name}`, but no class carries the congestion notifications that answer the marks"
            severity = Severity.ERROR if are_rendered else Severity.WARNING
            hint = "add `{name: cnp, carries: cnp, dscp: 48}`"
            yield Problem("HW509", CLUSTER, (*path, index, "ecn"), message, hint, severity, at_key=True)
