"""Joins readings into machines: the files of one switch, a host's script; and finds the two ends of each cable."""

import ipaddress
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import PurePosixPath
from typing import Any, NamedTuple

from msgspec import Struct, field

from headway.templates.hosts.render import is_netplan, is_script
from headway.templates.reading import BgpView, DeviceView, PortView, Reading

Network = ipaddress.IPv4Network | ipaddress.IPv6Network

# Prefix lengths of links between two ends.
_OF_LINKS = (30, 31)

# Fields of a port that another file of its switch may have, by their places.
_MERGED = tuple((index, name) for index, name in enumerate(PortView._fields) if name not in {"description", "keys"})


class Port(NamedTuple):
    """A port of a machine, and its file, by `port`; by its name each field that is from another one."""

    view: PortView
    files: Mapping[str, str]

    def at(self, name: str) -> tuple[str, str]:
        """Return the file and the setting of the field, or of the port."""
        file = self.files.get(name) or self.files["port"]
        return file, self.view.keys.get(name) or self.view.keys.get("port", "")


class Machine(Struct, frozen=True):
    """A switch or host. `role` is `leaf`, `spine`, `core`, or None where neither the files nor the name show it."""

    name: str
    os: str
    role: str | None
    files: Mapping[str, Reading]
    ports: Mapping[str, Port] = field(default_factory=dict)
    bgp: BgpView | None = None
    bgp_file: str = ""

    @property
    def devices(self) -> Iterator[tuple[str, DeviceView]]:
        """Its files with what each shows of the device."""
        return ((file, reading.device) for file, reading in self.files.items() if reading.device is not None)

    @property
    def identity(self) -> tuple[object, ...]:
        """Its AS number, router ID and addresses, which no other machine has."""
        addresses = sorted(address for port in self.ports.values() for address in port.view.addresses)
        return (self.bgp.asn if self.bgp else None, self.bgp.router_id if self.bgp else None, tuple(addresses))

    def fabric_of(self, port: str) -> str | None:
        """Return the fabric that the port's file names, if it is another one than that of the collectives."""
        device = self.files[self.ports[port].at("port")[0]].device
        return None if device is None else device.fabric


class JoinedPorts(Struct, frozen=True):
    """A cable between two ports, as at least one of the ends has it."""

    a: Machine
    a_port: str
    b: Machine
    b_port: str

    @property
    def ends(self) -> tuple[tuple[Machine, str, Machine, str], ...]:
        """Both directions: a machine, its port, the other machine and its port."""
        return ((self.a, self.a_port, self.b, self.b_port), (self.b, self.b_port, self.a, self.a_port))


def machines(readings: Mapping[str, Reading]) -> list[Machine]:
    """Return the machines in the order of their files. A second copy of the same machine is left out."""
    groups: dict[object, dict[str, Reading]] = {}
    for file, reading in readings.items():
        if reading.device is not None:
            groups.setdefault(_place(file, reading.device), {})[file] = reading
    found: dict[tuple[str, object], Machine] = {}
    for files in groups.values():
        machine = _joined(files)
        found.setdefault((machine.name, machine.identity), machine)
    return list(found.values())


def links(found: list[Machine]) -> list[JoinedPorts]:
    """Return the cables with both ends among the machines, by the ends that files name, or by the network of a link."""
    by_name: dict[str, list[Machine]] = {}
    for machine in found:
        by_name.setdefault(machine.name, []).append(machine)
    known: dict[frozenset[tuple[int, str]], JoinedPorts] = {}
    networks: dict[Network, tuple[Machine, str]] = {}
    for machine in found:
        for name, port in machine.ports.items():
            peer = port.view.peer
            others = by_name.get(peer[0], []) if peer else []
            if peer and len(others) == 1 and peer[1] in others[0].ports and others[0] is not machine:
                _add(known, JoinedPorts(machine, name, others[0], peer[1]))
            for network in (each for address in port.view.addresses if (each := network_of(address)) is not None):
                if network.prefixlen in _OF_LINKS:
                    other, other_port = networks.setdefault(network, (machine, name))
                    if other is not machine and not (peer and others):
                        _add(known, JoinedPorts(other, other_port, machine, name))
    return list(known.values())


def _add(known: dict[frozenset[tuple[int, str]], JoinedPorts], link: JoinedPorts) -> None:
    known.setdefault(frozenset({(id(link.a), link.a_port), (id(link.b), link.b_port)}), link)


def is_within(inner: Network, outer: Network) -> bool:
    """Return whether the network is a part of the other one."""
    if isinstance(inner, ipaddress.IPv4Network) and isinstance(outer, ipaddress.IPv4Network):
        # `subnet_of` takes five times as long, and a fabric has thousands of links.
        differing = int(inner.network_address) ^ int(outer.network_address)
        return inner.prefixlen >= outer.prefixlen and not differing >> (outer.max_prefixlen - outer.prefixlen)
    return isinstance(inner, ipaddress.IPv6Network) and isinstance(outer, ipaddress.IPv6Network) and inner.subnet_of(outer)


@cache
def network_of(address: str) -> Network | None:
    """Return the network of an address with its prefix length; None for other texts."""
    try:
        return ipaddress.ip_network(address, strict=False) if "/" in address else None
    except ValueError:
        return None


def _place(file: str, device: DeviceView) -> object:
    """Return what the files of one machine share: SONiC has its FRR's file in a folder of its own."""
    path = PurePosixPath(file)
    if device.os == "host":
        # A host has a headway-qos for each of its fabrics, and may have a file of netplan for each.
        folder = _host_folder(path) if is_script(path.name) or is_netplan(path) else None
        return ("host", file if folder is None else str(folder))
    folder = path.parent.parent if path.parent.name == "frr" else path.parent
    if path.name in {"config_db.json", "frr.conf"}:
        return ("switch", str(folder))
    return ("switch", device.name or file, device.os if device.os not in {"sonic", "frr"} else "")


def _joined(files: Mapping[str, Reading]) -> Machine:
    devices = {file: reading.device for file, reading in files.items() if reading.device is not None}
    first = next(iter(devices.values()))
    name = next((device.name for device in devices.values() if device.name), None) or _named(next(iter(files)), first)
    role = next((device.role for device in devices.values() if device.role), None) or role_of(name)
    ports: dict[str, Port] = {}
    bgp, bgp_file = None, ""
    for file, device in devices.items():
        of_file = {"port": file}
        for port, view in device.ports.items():
            known = ports.get(port)
            ports[port] = Port(view, of_file) if known is None else _merged(known, view, file)
        if device.bgp is not None and (bgp is None or bgp.neighbors is None):
            bgp, bgp_file = device.bgp, file
    return Machine(name, first.os, role, files, ports, bgp, bgp_file)


def _merged(known: Port, view: PortView, file: str) -> Port:
    """Return the port with the fields of both files; the first one's count, except where the second one turns something off."""
    ours, files = known.view, dict[str, str]()
    changes: dict[str, Any] = {}
    for index, name in _MERGED:
        value = view[index]
        if value is not None and (value is False or (value != () and ours[index] in (None, ()))):
            changes[name] = value
            files[name] = file
    if not changes:
        return known
    keys = {**ours.keys, **{name: key for name, key in view.keys.items() if name in changes}}
    return Port(ours._replace(**changes, keys=keys), {**known.files, **files})


def _named(file: str, device: DeviceView) -> str:
    """Return a name for a file that has none: of a host, the folder below `hosts`."""
    path = PurePosixPath(file)
    folder = _host_folder(path) if device.os == "host" else None
    return path.stem if folder is None else folder.name


def _host_folder(path: PurePosixPath) -> PurePosixPath | None:
    """Return the folder below `hosts` that the file is in, or the file if there is none; None for one elsewhere."""
    parts = path.parts
    if "hosts" not in parts[:-1]:
        return None
    return PurePosixPath(*parts[: len(parts) - parts[::-1].index("hosts") + 1])


def role_of(name: str) -> str | None:
    """Return the role that a switch's name shows."""
    lower = name.lower()
    if "spine" in lower:
        return "spine"
    return "leaf" if "leaf" in lower or "tor" in lower.split("-") else None
