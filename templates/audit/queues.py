"""Rules about queues: when they mark, which are paused, and whether a pause can last without a limit."""

from collections.abc import Iterator

from headway.templates.audit.finding import Finding
from headway.templates.audit.machines import Machine
from headway.templates.reading import MarkingView, QosView

# Five packets of 4096 bytes: fewer are in a queue of any healthy link. DCQCN's paper has 5 kB at 40 Gb/s, with packets of 1024 bytes.
_LEAST_MAX_BYTES = 20_000
# More than any switch of the catalogue has as a shared buffer (Tomahawk 5: 165 MB).
_MOST_BYTES = 200_000_000
# A fabric's round trip is about 10 us.
_LONGEST_MS = 1.0
# DSCP of BGP's packets and of mlx5's notifications: CS6.
_CONTROL = 48


def check_queues(machine: Machine) -> Iterator[Finding]:
    """Yield findings about marking and pauses."""
    for file, device in machine.devices:
        fastest = max((port.mbps for port in device.ports.values() if port.mbps is not None), default=None)
        for name, marking in device.marking.items():
            yield from _marking(file, name, marking)
            yield from _late(file, name, marking, fastest)
        views = machine.files[file].qos
        if machine.os == "host":
            for adapter, view in views.items():
                yield from _paused_by_host(file, adapter, view)
            continue
        seen: set[int] = set()
        for port, view in views.items():
            if id(view) in seen:
                continue
            seen.add(id(view))
            yield from _paused(file, port, view, device.os)
        paused = next((port for port, view in views.items() if any(view.pfc.values())), None)
        if paused is not None and device.watches is False:
            message = (
                "PFC is on, and no watchdog is; one adapter that sends pauses without end stops its leaf, then the fabric, "
                "until somebody finds it"
            )
            yield Finding("HW810", file, "", message, "turn the PFC watchdog on", doubtful=True)


def _paused_by_host(file: str, adapter: str, view: QosView) -> Iterator[Finding]:
    """Compare the priorities that an adapter pauses with those of its DSCPs."""
    paused = {priority for priority, on in view.pfc.items() if on}
    if not view.priorities or not paused:
        return
    if view.priorities.get(0) in paused:
        message = (
            f"{adapter} gives unmarked packets priority {view.priorities[0]}, which it pauses; storage and TCP stop "
            "collectives, and the other way round"
        )
        yield Finding("HW812", file, "", message, "give RDMA a priority of its own", doubtful=True)
    used = paused & set(view.priorities.values())
    for priority in sorted(paused - used) if used else ():
        message = f"{adapter} pauses priority {priority}, and gives it to no DSCP; a pause from a switch stops what else has it"
        yield Finding("HW812", file, "", message, "enable PFC for the priority of the RDMA traffic alone", doubtful=True)


def _marking(file: str, name: str, marking: MarkingView) -> Iterator[Finding]:
    ecn = marking.ecn
    lowest, highest, percent = ecn.min_bytes, ecn.max_bytes, ecn.percent
    if not marking.marks:
        message = f"{name} drops and does not mark: RDMA senders see no congestion, and send lost packets again by whole windows"
        yield Finding("HW804", file, marking.key, message, "turn ECN on for it (SONiC: `ecn_all` and `wred_green_enable`)")
    if lowest is not None and highest is not None and lowest > highest:
        message = (
            f"{name} marks from {lowest} to {highest} bytes, which is not a range; the switch refuses it or marks at once, and "
            "senders slow down too late or always"
        )
        yield Finding("HW801", file, marking.key, message, "set the minimum below the maximum")
    elif highest is not None and highest < _LEAST_MAX_BYTES:
        message = (
            f"{name} marks all packets from {highest} bytes on, fewer than five RDMA packets; senders slow down on an idle "
            "link. Is it cells or kilobytes?"
        )
        yield Finding("HW802", file, marking.key, message, "set bytes: 150000 to 1500000, for example")
    elif lowest is not None and lowest < _LEAST_MAX_BYTES // 20:
        message = (
            f"{name} marks from {lowest} bytes on, less than one RDMA packet; senders slow down on an idle link. Is it cells "
            "or kilobytes?"
        )
        yield Finding("HW802", file, marking.key, message, "set bytes: 150000, for example")
    elif highest is not None and highest > _MOST_BYTES:
        message = (
            f"{name} marks all packets from {highest} bytes on, more than a switch's whole buffer; PFC stops links before "
            "senders slow down"
        )
        yield Finding("HW802", file, marking.key, message, "set bytes: 1500000, for example")
    if percent is not None and not 0 < percent <= 100:
        message = f"{name} marks {percent} % of the packets: " + (
            "below the maximum none is, and senders slow down too late" if percent == 0 else "there is no such share"
        )
        yield Finding("HW803", file, marking.key, message, "set 1 to 100")


def _late(file: str, name: str, marking: MarkingView, mbps: int | None) -> Iterator[Finding]:
    """Find a maximum that is a long time of the fastest port: a queue that long delays every packet behind it."""
    highest = marking.ecn.max_bytes
    wait_ms = None if highest is None or not mbps else highest * 8 / (mbps * 1e3)
    if highest is not None and wait_ms is not None and wait_ms >= _LONGEST_MS and highest <= _MOST_BYTES:
        message = (
            f"{name} marks all packets from {highest} bytes on, {wait_ms:.1f} ms at {(mbps or 0) // 1000} Gb/s; senders slow down after a "
            "hundred round trips, and PFC stops links first"
        )
        yield Finding("HW802", file, marking.key, message, "set bytes: 1500000, for example", doubtful=True)


def _paused(file: str, port: str, view: QosView, os: str) -> Iterator[Finding]:
    queues = {view.paused_queues.get(priority) for priority, on in view.pfc.items() if on} - {None}
    marked = {queue for queue, ecn in view.ecn.items() if ecn is not None}
    if queues and marked and not queues & marked:
        message = (
            f"{port} pauses queue {', '.join(map(str, sorted(each for each in queues if each is not None)))} and marks queue "
            f"{', '.join(map(str, sorted(marked)))}; RDMA senders see no marks, and every congestion stops whole links"
        )
        yield Finding("HW805", file, port_key(port, os), message, "mark the queue that PFC pauses")
    if os == "sonic":
        return
    for priority, on in view.pfc.items():
        queue = view.paused_queues.get(priority)
        if on and view.queues and queue is not None and queue == view.queues.get(_CONTROL) and queue != view.queues.get(0):
            message = (
                f"{port} pauses priority {priority}, which has DSCP {_CONTROL} in it: BGP and congestion notifications; a "
                "pause then ends sessions"
            )
            yield Finding("HW812", file, port_key(port, os), message, "pause the priority of the RDMA traffic alone")
        elif on and view.queues and queue is not None and queue not in view.queues.values():
            message = (
                f"{port} pauses priority {priority}, and no DSCP leads to its queue {queue}; the packets that it should "
                "protect are dropped elsewhere"
            )
            yield Finding(
                "HW812", file, port_key(port, os), message, "enable PFC for the priority of the RDMA traffic", doubtful=True
            )
        elif on and queue is not None and queue == view.queues.get(0):
            message = (
                f"{port} pauses queue {queue}, which has all unmarked traffic in it; storage and TCP stop collectives, and "
                "the other way round"
            )
            yield Finding("HW812", file, port_key(port, os), message, "give RDMA a queue of its own", doubtful=True)


def port_key(port: str, os: str) -> str:
    """Return the setting that begins what a file has about the port."""
    return {"sonic": f"PORT_QOS_MAP|{port}", "nvue": f"interface|{port}"}.get(os, f"interface {port}")
