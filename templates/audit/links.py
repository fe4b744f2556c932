"""Rules about ports and cables: what one end needs, and what the two ends must share."""

import ipaddress
import re
from collections.abc import Iterator

from headway.templates.audit.finding import Finding
from headway.templates.audit.machines import JoinedPorts, Machine, Port, network_of

# A packet of 4096 bytes and its RoCE v2 headers.
_LEAST_MTU = 4200
# Lanes of 50 Gb/s and more are PAM4, which IEEE 802.3bs and later define with RS-FEC only.
_FEC_FROM_MBPS = 200_000


def check_ports(machine: Machine) -> Iterator[Finding]:
    """Yield findings about single ports."""
    lossless = {end for reading in machine.files.values() for end, view in reading.qos.items() if any(view.pfc.values())}
    neighbors = (machine.bgp.neighbors or {}) if machine.bgp else {}
    if machine.os == "host":
        return
    for name, port in machine.ports.items():
        view = port.view
        in_use = name in neighbors or bool(view.peer) or bool(view.addresses)
        if view.enabled is False and in_use and "enabled" in view.keys:
            file, key = port.at("enabled")
            if name in neighbors or view.peer:
                message = (
                    f"{name} is shut, and it has a cable to {view.peer[0] if view.peer else 'a BGP neighbor'}; a rail or a "
                    "path of the collectives is missing"
                )
                yield Finding(
                    "HW823",
                    file,
                    key,
                    message,
                    "bring it up, or remove its neighbor",
                    doubtful=name not in neighbors and not view.addresses,
                )
        if view.mtu is not None and view.mtu < _LEAST_MTU and view.enabled is not False and name in lossless:
            file, key = port.at("mtu")
            message = (
                f"the MTU of {name} is {view.mtu}, and PFC is on there; RDMA packets of 4096 bytes are dropped, and every "
                "transfer times out"
            )
            yield Finding("HW820", file, key, message, "set 9216")
        if view.fec == "none" and view.mbps is not None and view.mbps >= _FEC_FROM_MBPS and in_use:
            file, key = port.at("fec")
            message = (
                f"{name} has no FEC at {view.mbps // 1000} Gb/s; the link does not come up, or loses packets that RDMA sends "
                "again by whole windows"
            )
            yield Finding("HW822", file, key, message, "set Reed-Solomon FEC (`rs`) at both ends")
        words = (view.description or "").split()
        if (
            len(words) == 2
            and view.peer is not None
            and view.peer[1]
            and tuple(words) != view.peer
            and _names_a_device(words[0], machine)
        ):
            file, key = port.at("description")
            message = (
                f"{name} leads to {' '.join(view.peer)}, and its description has {view.description}; people who follow it pull the wrong "
                "cable"
            )
            yield Finding("HW826", file, key, message, "follow the cable (LLDP shows it), and correct the text", doubtful=True)
        if view.pauses and name in lossless:
            file, key = port.at("pauses")
            message = (
                f"{name} has global pause beside PFC; it stops all priorities, so one slow receiver stops collectives, "
                "storage and BGP"
            )
            yield Finding("HW809", file, key, message, "turn global pause off")
        yield from _neighbor(machine, name, port, name in neighbors)
    yield from _unknown_neighbors(machine)
    yield from _unlike_peers(machine)


def _unlike_peers(machine: Machine) -> Iterator[Finding]:
    """Find ports whose other end two files of the machine name differently."""
    named: dict[str, tuple[str, str]] = {}
    for file, device in machine.devices:
        for name, port in device.ports.items():
            first = named.setdefault(name, port.peer) if port.peer is not None else None
            if first is not None and port.peer is not None and first != port.peer and _names_a_device(port.peer[0], machine):
                message = (
                    f"{name} leads to {' '.join(port.peer)} here and to {' '.join(first)} in the switch's other file; people who follow it "
                    "pull the wrong cable"
                )
                yield Finding(
                    "HW826", file, port.keys.get("peer", ""), message, "follow the cable (LLDP shows it)", doubtful=True
                )


def _names_a_device(name: str, machine: Machine) -> bool:
    """Return whether the name is that of a neighbor of the machine."""
    return any(port.view.peer is not None and port.view.peer[0] == name for port in machine.ports.values())


def _neighbor(machine: Machine, name: str, port: Port, has_session: bool) -> Iterator[Finding]:
    """An unnumbered session needs IPv6 link-local addresses."""
    if has_session and port.view.has_link_local is False and not any(":" in address for address in port.view.addresses):
        file, key = port.at("has_link_local")
        message = (
            f"BGP runs unnumbered on {name}, which has no IPv6 link-local address or does not advertise it; the session stays "
            "down, and the link idles"
        )
        yield Finding("HW839", file, key, message, "enable IPv6 link-local addresses and router advertisements on the port")


def _unknown_neighbors(machine: Machine) -> Iterator[Finding]:
    ports_known = any(device.os in {"sonic", "eos", "nvue"} and device.ports for _, device in machine.devices)
    for name, neighbor in ((machine.bgp.neighbors or {}) if machine.bgp and ports_known else {}).items():
        if name not in machine.ports and not _is_address(name):
            base = name.partition(".")[0]
            if base not in machine.ports and base[:2] not in {"Po", "Vl", "vl", "pe", "bo"}:
                message = f"BGP has a neighbor on {name}, and the switch has no such port; the session stays down"
                yield Finding("HW845", machine.bgp_file, neighbor.key, message, "correct the name of the port")


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name.partition("%")[0])
    except ValueError:
        return False
    return True


def check_cables(found: list[Machine], cables: list[JoinedPorts]) -> Iterator[Finding]:
    """Yield findings about the two ends of each cable."""
    for link in cables:
        a, b = link.a.ports[link.a_port], link.b.ports[link.b_port]
        where = f"{link.a.name} {link.a_port} and {link.b.name} {link.b_port}"
        yield from _unequal(link, a, b, where)
        if link.a.os != "host" and link.b.os != "host":
            yield from _networks(link, a, b, where)
            yield from _one_sided(link, a, b, where)
        for machine, name, other, other_port in link.ends:
            port, end = machine.ports[name], other.ports[other_port]
            if machine.os == "host":
                yield from _of_host(machine, name, port, other, other_port, end)
            elif (
                end.view.peer is not None and port.view.peer == (other.name, other_port) and end.view.peer != (machine.name, name)
            ):
                file, key = end.at("peer")
                message = (
                    f"{machine.name} {name} leads to {other.name} {other_port}, which names {' '.join(end.view.peer)}; one "
                    "cable or one file is wrong, and traffic takes another path than is planned"
                )
                yield Finding("HW826", file, key, message, "follow the cable (LLDP shows it), and correct the file")
    yield from _missing_ends(found)


def _unequal(link: JoinedPorts, a: Port, b: Port, where: str) -> Iterator[Finding]:
    ours, theirs = a.view, b.view
    is_host = "host" in (link.a.os, link.b.os)
    if ours.mtu is not None and theirs.mtu is not None and ours.mtu != theirs.mtu:
        host, switch = (ours, theirs) if link.a.os == "host" else (theirs, ours)
        if not is_host or (host.mtu or 0) > (switch.mtu or 0):
            file, key = (a if ours.mtu < theirs.mtu else b).at("mtu")
            message = (
                f"the MTU is {ours.mtu} and {theirs.mtu} at the ends {where}; the larger packets are dropped without a "
                "message, and transfers time out"
            )
            yield Finding("HW820", file, key, message, "set the same MTU at both ends")
    if ours.mbps is not None and theirs.mbps is not None and ours.mbps != theirs.mbps:
        file, key = b.at("mbps")
        message = f"the speed is {ours.mbps // 1000} and {theirs.mbps // 1000} Gb/s at the ends {where}; the link stays down"
        yield Finding("HW821", file, key, message, "set the same speed at both ends")
    if ours.fec != theirs.fec and {ours.fec, theirs.fec} <= {"rs", "fc", "none"}:
        file, key = b.at("fec")
        message = f"FEC is {ours.fec} and {theirs.fec} at the ends {where}; the link stays down"
        yield Finding("HW822", file, key, message, "set the same FEC at both ends")
    if ours.metres is not None and theirs.metres is not None and ours.metres != theirs.metres:
        shorter = a if ours.metres < theirs.metres else b
        file, key = shorter.at("metres")
        message = (
            f"the cable has {ours.metres} and {theirs.metres} metres at the ends {where}; the end with too few keeps too "
            "little headroom, and drops after a pause"
        )
        yield Finding("HW808", file, key, message, "set the cable's length at both ends")


def _one_sided(link: JoinedPorts, a: Port, b: Port, where: str) -> Iterator[Finding]:
    """Find an address at one end of a link between switches, whose other end has none."""
    for port, other, machine in ((a, b, link.b), (b, a, link.a)):
        is_odd = port.view.addresses and not other.view.addresses and not any(":" in each for each in port.view.addresses)
        if is_odd and any(each.view.addresses for each in machine.ports.values()):
            file, key = port.at("addresses")
            message = f"of the ends {where}, one alone has an address, {port.view.addresses[0]}; it reaches no one"
            yield Finding("HW826", file, key, message, "give both ends addresses of one network, or none", doubtful=True)


def _networks(link: JoinedPorts, a: Port, b: Port, where: str) -> Iterator[Finding]:
    ours, theirs = ({network_of(address) for address in port.view.addresses} - {None} for port in (a, b))
    if ours and theirs and not ours & theirs:
        file, key = b.at("addresses")
        message = (
            f"the ends {where} are in different networks, {a.view.addresses[0]} and {b.view.addresses[0]}; they do not reach "
            "each other"
        )
        yield Finding("HW826", file, key, message, "give both ends addresses of one network")


def _of_host(machine: Machine, name: str, port: Port, other: Machine, other_port: str, end: Port) -> Iterator[Finding]:
    """A host's address must be in its leaf port's network, and its gateway that port."""
    ours = {network_of(address) for address in port.view.addresses} - {None}
    theirs = {network_of(address) for address in end.view.addresses} - {None}
    if ours and theirs and not ours & theirs:
        file, key = port.at("addresses")
        message = (
            f"{name} has {port.view.addresses[0]}, and its port {other.name} {other_port} has {end.view.addresses[0]}; "
            "the rail reaches no one, and NCCL fails when it connects"
        )
        yield Finding("HW826", file, key, message, "give the adapter the other address of the port's network")
    gateways = {address.partition("/")[0] for address in end.view.addresses}
    if port.view.gateway is not None and gateways and port.view.gateway not in gateways and ours & theirs:
        file, key = port.at("gateway")
        message = (
            f"the gateway of {name} is {port.view.gateway}, and its port {other.name} {other_port} has "
            f"{', '.join(sorted(gateways))}; the rail reaches no other leaf"
        )
        yield Finding("HW851", file, key, message, "set the address of the leaf's port")


def _stem(name: str) -> str:
    """Return the letters that a name of an adapter or interface begins with: `mlx`, `enp`."""
    found = re.match(r"[a-z]*", name)
    return found[0] if found else ""


def _missing_ends(found: list[Machine]) -> Iterator[Finding]:
    """Find ends that a file names and that the named machine's own file does not have."""
    by_name: dict[str, list[Machine]] = {}
    for machine in found:
        by_name.setdefault(machine.name, []).append(machine)
    taken: dict[tuple[str, str], str] = {}
    for machine in found:
        for name, port in machine.ports.items():
            peer = port.view.peer
            if peer is None or not peer[1] or len(by_name.get(peer[0], [])) != 1:
                continue
            other = by_name[peer[0]][0]
            file, key = port.at("peer")
            has_ports = other.os != "frr" or peer[1] in other.ports
            # A file of netplan names network interfaces, where a description may name RDMA devices.
            has_ports &= other.os != "host" or any(_stem(each) == _stem(peer[1]) for each in other.ports)
            if has_ports and peer[1] not in other.ports and other.ports:
                what = "adapter" if other.os == "host" else "port"
                message = (
                    f"{machine.name} {name} leads to {what} {peer[1]} of {peer[0]}, and its own file has none of this name; "
                    "this end is not set up, and the link carries nothing"
                )
                yield Finding("HW826", file, key, message, f"set the {what} up there, or correct the name")
            first = taken.setdefault(peer, f"{machine.name} {name}")
            if first != f"{machine.name} {name}":
                message = (
                    f"{machine.name} {name} leads to {peer[0]} {peer[1]}, as {first} does; one of the two cables goes elsewhere"
                )
                yield Finding("HW826", file, key, message, "follow the cables (LLDP shows them), and correct the file")


def _bases(machine: Machine, bases: dict[str, str]) -> Iterator[Finding]:
    """Yield a base MAC address that another switch has, and a role that the switch's name contradicts."""
    for file, device in machine.devices:
        if device.mac is not None and bases.setdefault(device.mac.lower(), machine.name) != machine.name:
            message = (
                f"its base MAC address is {bases[device.mac.lower()]}'s too; their link-local addresses and LLDP names are the same, and "
                "sessions between them fail"
            )
            yield Finding("HW825", file, device.keys.get("mac", ""), message, "set the address that the switch's EEPROM has")
        named = next((role for role in ("leaf", "spine", "core") if role in machine.name.lower()), None)
        if (
            device.role is not None
            and "role" in device.keys
            and named is not None
            and named != device.role
            and _is_leaf(machine, named)
        ):
            message = (
                f"its type is that of a {device.role}, and its name a {named}'s; SONiC chooses buffers and lengths of cables "
                "by the type"
            )
            yield Finding("HW846", file, device.keys["role"], message, "set the type of its tier", doubtful=True)


def _is_leaf(machine: Machine, named: str) -> bool:
    """Return whether the machine is a leaf by its name, its type, and not both: other tiers have many names."""
    return (named == "leaf") != (machine.role == "leaf")


def check_identities(found: list[Machine]) -> Iterator[Finding]:
    """Yield addresses, router IDs and names that two machines have."""
    addresses: dict[str, str] = {}
    routers: dict[str, str] = {}
    names: dict[str, Machine] = {}
    bases: dict[str, str] = {}
    for machine in found:
        yield from _bases(machine, bases)
        other = names.setdefault(machine.name, machine)
        if other is not machine and machine.os != "host" and other.os != "host":
            file, device = next(iter(machine.devices))
            message = (
                f"two switches are called {machine.name}, {next(iter(other.files))} and this one; LLDP, telemetry and cabling "
                "checks take one for the other"
            )
            yield Finding("HW825", file, device.keys.get("name", ""), message, "give each its own name")
        names_of_files = {device.name: file for file, device in machine.devices if device.name}
        if len(names_of_files) > 1:
            (first, _), (second, file) = list(names_of_files.items())[:2]
            message = f"the switch is called {second} here, and {first} in its other file; one of the files is another switch's"
            yield Finding("HW825", file, "hostname", message, "load the files of one switch")
        for name, port in machine.ports.items():
            for address in dict.fromkeys(port.view.addresses):
                # NVUE and EOS print addresses of several VRFs alike; management addresses are no part of the fabric.
                bare, place = address.partition("/")[0], f"{machine.name} {name}"
                first_place = addresses.setdefault(bare, place)
                if first_place != place and not name.startswith(("eth", "Management", "mgmt")):
                    file, key = port.at("addresses")
                    message = (
                        f"{bare} is the address of {first_place} too; packets for one arrive at the other, and connections of "
                        "a rail break"
                    )
                    yield Finding("HW825", file, key, message, "give each its own address")
        router = machine.bgp.router_id if machine.bgp else None
        if machine.bgp is not None and router is not None and routers.setdefault(router, machine.name) != machine.name:
            message = (
                f"the router ID {router} is {routers[router]}'s too; BGP refuses their session, or takes routes for its own "
                "and drops them"
            )
            yield Finding(
                "HW825",
                machine.bgp_file,
                machine.bgp.keys.get("router_id", machine.bgp.key),
                message,
                "set the switch's own loopback address",
            )
