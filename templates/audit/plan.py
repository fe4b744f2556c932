"""Compares the configuration of a switch whose ports have names of its own with its plan: ports, addresses, BGP, classes."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from pathlib import PurePosixPath

from headway.jobspec.plan import ClassPlan, ClusterPlan, PortPlan, SwitchPlan
from headway.templates.audit.finding import Finding
from headway.templates.audit.machines import Machine, Port, machines, network_of
from headway.templates.audit.queues import port_key
from headway.templates.audit.routing import hold_of
from headway.templates.ports import named
from headway.templates.reading import BgpView, EcnView, NeighborView, QosView, Reading
from headway.templates.switches import SWITCHES

RENAMES_PORTS = frozenset(name for name, kind in SWITCHES.items() if kind.port_name is not None)
# As the renderer of SONiC sets them; EOS's largest is 9214, without the Ethernet header and checksum.
_MTUS = (9216, 9214)
_FEC_FROM_MBPS = 100_000
_SLOWEST_HOLD_S = 10
_HINT = "configure it as in the cluster file, or fix the cluster file"


def planned_as(switch: SwitchPlan, cluster: ClusterPlan, os: str) -> SwitchPlan:
    """Return the switch with the operating system's names of ports."""
    port_name = SWITCHES[os].port_name
    return switch if port_name is None else named(switch, cluster, port_name)


def switch_of(file: str, reading: Reading, cluster: ClusterPlan) -> SwitchPlan | None:
    """Return the planned switch of a file: that of the host name in it, else of its own name or that of the innermost folder."""
    path, planned = PurePosixPath(file), cluster.switch_of_name
    names = [path.stem, *(parent.name for parent in path.parents)]
    if reading.device is not None and reading.device.name is not None:
        names = [reading.device.name, *names]
    return next((planned[name] for name in names if name in planned), None)


def differences(readings: Mapping[str, Reading], cluster: ClusterPlan) -> Iterator[Finding]:
    """Yield what differs from the plan in files whose ports have names of the operating system's own."""
    for file, machine, switch in _planned(readings, cluster):
        if switch is None:
            hint = "give its hostname a name of the cluster's switches"
            yield Finding("HW605", file, "", f"the cluster has no switch {machine.name}; only the file itself was checked", hint)
            continue
        there = replace(switch, ports=cluster.cabled(switch))
        for port in switch.ports:
            if port.peer in cluster.devices or _is_set_up(machine, port):
                yield from _port(file, machine, port)
        yield from _unplanned(file, machine, switch)
        yield from _bgp(file, machine, there)
        qos = cluster.fabric(switch.fabric).qos
        if qos is not None:
            yield from _classes(file, machine, there, qos.classes, qos.lossless_priorities)


def slow_sessions(readings: Mapping[str, Reading], cluster: ClusterPlan, without_bfd: Collection[str]) -> Iterator[Finding]:
    """Yield neighbors whose loss is found late, but for BFD in the fabrics whose options turn it off."""
    for file, machine, switch in _planned(readings, cluster):
        for name, neighbor in (machine.bgp.neighbors or {}).items() if machine.bgp and switch else ():
            if neighbor.is_up and switch is not None and machine.bgp is not None and switch.fabric not in without_bfd:
                yield from _session(file, name, neighbor, hold_of(machine.bgp, neighbor))


def _session(file: str, name: str, neighbor: NeighborView, hold: int | None) -> Iterator[Finding]:
    if not neighbor.bfd:
        yield Finding("HW603", file, neighbor.key, f"BFD is off for {name}, but on in the cluster file", _HINT)
        if hold is not None and not 0 < hold <= _SLOWEST_HOLD_S:
            yield Finding("HW603", file, neighbor.key, f"the hold time of {name} is {hold} s, but 9 in the cluster file", _HINT)


def _planned(readings: Mapping[str, Reading], cluster: ClusterPlan) -> Iterator[tuple[str, Machine, SwitchPlan | None]]:
    """Yield each such switch with its file, and its plan in its own names; None for one that the cluster does not have."""
    for machine in machines(
        {file: each for file, each in readings.items() if each.device is not None and each.device.os in RENAMES_PORTS}
    ):
        (file, reading), *_ = machine.files.items()
        switch = switch_of(file, reading, cluster)
        yield file, machine, None if switch is None else planned_as(switch, cluster, machine.os)


def _is_set_up(machine: Machine, planned: PortPlan) -> bool:
    """Whether a port for a device to come has an address, or leads to something: it may as well be shut until then."""
    port = machine.ports.get(planned.name) or machine.ports.get(planned.name.removesuffix("/1"))
    return port is not None and port.view.enabled is not False and bool(port.view.addresses or port.view.peer)


def _port(file: str, machine: Machine, planned: PortPlan) -> Iterator[Finding]:
    name = planned.name
    found = machine.ports.get(name) or machine.ports.get(name.removesuffix("/1"))
    if found is None:
        yield Finding(
            "HW603", file, "", f"{name} is missing; it leads to {planned.peer} {planned.peer_port} in the cluster file", _HINT
        )
        return
    view = found.view
    if view.enabled is False:
        yield _changed(file, found, "enabled", f"{name} is shut, but leads to {planned.peer} in the cluster file")
    if view.mtu not in _MTUS and not (view.mtu is None and machine.os == "nvue"):
        yield _changed(
            file, found, "mtu", f"the MTU of {name} is {view.mtu or 'the default'}, but {_MTUS[0]} in the cluster file"
        )
    if view.mbps is not None and view.mbps != planned.gbps * 1000:
        yield _changed(
            file, found, "mbps", f"the speed of {name} is {view.mbps // 1000} Gb/s, but {planned.gbps} in the cluster file"
        )
    if planned.gbps * 1000 >= _FEC_FROM_MBPS and view.fec not in (None, "rs", "auto"):
        yield _changed(file, found, "fec", f"FEC of {name} is {view.fec}, but rs in the cluster file")
    if view.pauses:
        yield _changed(file, found, "pauses", f"{name} has global pause, which the cluster file does not set")
    wanted = {planned.address} if planned.address else set()
    addresses = set(view.addresses)
    if addresses != wanted and not (not wanted and _is_link(view.addresses)):
        ours = ", ".join(sorted(addresses)) or "none"
        yield _changed(
            file, found, "addresses", f"the address of {name} is {ours}, but {planned.address or 'none'} in the cluster file"
        )
    if view.peer is not None and view.peer[0] != planned.peer:
        yield _changed(
            file, found, "peer", f"{name} leads to {view.peer[0]}, but to {planned.peer} {planned.peer_port} in the cluster file"
        )


def _is_link(addresses: tuple[str, ...]) -> bool:
    """Whether the ends of a link between switches are numbered, where the plan has none."""
    return all((network := network_of(each)) is not None and network.prefixlen >= 30 for each in addresses)


def _changed(file: str, port: Port, name: str, message: str) -> Finding:
    return Finding("HW603", file, port.at(name)[1], message, _HINT)


def _unplanned(file: str, machine: Machine, switch: SwitchPlan) -> Iterator[Finding]:
    planned = {port.name for port in switch.ports}
    for name, port in machine.ports.items():
        is_front = name.startswith(("swp", "Ethernet"))
        if is_front and name not in planned and f"{name}/1" not in planned and port.view.addresses:
            yield _changed(
                file, port, "addresses", f"{name} has {port.view.addresses[0]}, and the cluster file has no cable there"
            )


def _bgp(file: str, machine: Machine, switch: SwitchPlan) -> Iterator[Finding]:
    bgp = machine.bgp
    if bgp is None:
        yield Finding("HW603", file, "", f"BGP is missing; the cluster file has AS {switch.asn}", _HINT)
        return
    for what, name, ours, theirs in (
        ("AS number", "asn", bgp.asn, switch.asn),
        ("router ID", "router_id", bgp.router_id, switch.router_id),
    ):
        if ours != theirs:
            yield Finding(
                "HW603", file, bgp.keys.get(name, bgp.key), f"the {what} is {ours}, but {theirs} in the cluster file", _HINT
            )
    yield from _sessions(file, machine, bgp, switch)
    uplinks = switch.uplinks
    if bgp.max_paths is not None and bgp.max_paths < len(uplinks):
        message = f"BGP uses {bgp.max_paths} of {len(uplinks)} equal paths: ECMP leaves links idle"
        yield Finding("HW603", file, bgp.keys.get("max_paths", bgp.key), message, _HINT)
    if bgp.relaxes is False:
        message = "paths through different AS numbers are not used together, but the cluster file relaxes them"
        yield Finding("HW603", file, bgp.keys.get("relaxes", bgp.key), message, _HINT)


def _sessions(file: str, machine: Machine, bgp: BgpView, switch: SwitchPlan) -> Iterator[Finding]:
    up = {name: each for name, each in (bgp.neighbors or {}).items() if each.is_up}
    uplinks = [port.name for port in switch.uplinks]
    numbered = {
        network
        for name in uplinks
        if name in machine.ports
        for each in machine.ports[name].view.addresses
        if (network := network_of(each))
    }
    for name in uplinks:
        if name not in up and name.removesuffix("/1") not in up and not numbered:
            yield Finding("HW603", file, bgp.key, f"BGP has no session on {name}, which is an uplink in the cluster file", _HINT)
    if numbered and len(up) < len(uplinks):
        yield Finding(
            "HW603", file, bgp.key, f"BGP has {len(up)} sessions, and the cluster file has {len(uplinks)} uplinks", _HINT
        )
    for name, neighbor in up.items():
        if neighbor.policies:
            message = f"{name} has the route map {next(iter(neighbor.policies.values()))}, which the cluster file does not set"
            yield Finding("HW603", file, neighbor.key, message, _HINT)
        others = [title for _, title in neighbor.lists] + [*neighbor.ranks] + (["a password"] if neighbor.signs else [])
        if others:
            yield Finding("HW603", file, neighbor.key, f"{name} has {others[0]}, which the cluster file does not set", _HINT)


def _classes(
    file: str, machine: Machine, switch: SwitchPlan, classes: tuple[ClassPlan, ...], lossless: tuple[int, ...]
) -> Iterator[Finding]:
    views = machine.files[file].qos
    seen: dict[str, list[str]] = {}
    for port in switch.ports:
        name = port.name
        view = views.get(name) or views.get(name.removesuffix("/1"))
        for message in ("no traffic class is configured",) if view is None else _of_view(view, classes, lossless):
            seen.setdefault(message, []).append(name)
    for message, names in seen.items():
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        yield Finding("HW602", file, port_key(names[0], machine.os), f"{names[0]}{more}: {message}", _HINT)


def _of_view(view: QosView, classes: tuple[ClassPlan, ...], lossless: tuple[int, ...]) -> Iterator[str]:
    for each in classes:
        queue = view.queues.get(each.dscp)
        if queue != each.queue:
            yield f"the queue of DSCP {each.dscp} is {queue if queue is not None else 'none'}, but {each.queue} in the cluster file"
        marking = view.ecn.get(each.queue)
        if each.ecn is None and marking is not None:
            yield f"queue {each.queue} marks, and the class {each.name} does not in the cluster file"
        elif each.ecn is not None and marking is None:
            yield f"queue {each.queue} does not mark, and the class {each.name} does in the cluster file"
        elif each.ecn is not None and marking is not None and not _same(marking, each):
            yield (
                f"the marking of queue {each.queue} is {marking.min_bytes} to {marking.max_bytes} bytes, {marking.percent} %, "
                f"but {each.ecn.min_bytes} to {each.ecn.max_bytes} bytes, {each.ecn.percent} % in the cluster file"
            )
        if each.queue in view.weights and view.weights[each.queue] != each.bandwidth_percent:
            ours, theirs = (
                "strict" if share is None else f"{share} %" for share in (view.weights[each.queue], each.bandwidth_percent)
            )
            yield f"the bandwidth of queue {each.queue} is {ours}, but {theirs} in the cluster file"
    for priority in range(8):
        if view.pfc.get(priority, False) != (priority in lossless):
            ours, theirs = ("on", "off") if view.pfc.get(priority) else ("off", "on")
            yield f"the PFC of priority {priority} is {ours}, but {theirs} in the cluster file"


def _same(found: EcnView, planned: ClassPlan) -> bool:
    """Whether the marking is the planned one; what a file leaves to the device, or has in units of the platform, is not compared."""
    ecn = planned.ecn
    pairs = ((found.min_bytes, ecn.min_bytes), (found.max_bytes, ecn.max_bytes), (found.percent, ecn.percent)) if ecn else ()
    return all(ours is None or ours == theirs for ours, theirs in pairs)
