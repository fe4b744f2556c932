"""Describes cables, ports and adapters, and the commands that build them from namespaces and veth pairs."""

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

MTU = 9216
SINK = "sink"

# of every namespace; those that forward packets are configured by their frr.conf
SETTINGS = {
    # a link-local address can be used at once
    "ipv6/conf/all/accept_dad": 0,
    "ipv6/conf/default/accept_dad": 0,
    # one path for a 5-tuple, as switches choose it; the kernel's default is one path for two addresses
    "ipv4/fib_multipath_hash_policy": 1,
    "ipv4/conf/all/ignore_routes_with_linkdown": 1,
    "ipv4/conf/default/ignore_routes_with_linkdown": 1,
    # an answer may arrive on another link
    "ipv4/conf/all/rp_filter": 0,
    "ipv4/conf/default/rp_filter": 0,
}


class Port(NamedTuple):
    """A network interface of a switch or a host."""

    device: str
    interface: str


class Link(NamedTuple):
    """A cable between two ports."""

    a: Port
    b: Port


@dataclass(frozen=True)
class Nic:
    """A host's adapter: its address with the prefix length, and the switch's address at the other end."""

    address: str
    gateway: str

    @property
    def ip(self) -> str:
        return self.address.partition("/")[0]


def device_commands(name: str) -> Iterator[str]:
    """A namespace; `ip netns` shows it only to processes that share /run/netns."""
    settings = "; ".join(f"echo {value} >/proc/sys/net/{key}" for key, value in SETTINGS.items())
    yield shlex.join(["ip", "netns", "add", name])
    yield shlex.join(["ip", "netns", "exec", name, "bash", "-c", f"set -e; {settings}; ip link set lo up"])


def link_commands(link: Link) -> Iterator[str]:
    """A veth pair whose ends are created directly in their namespaces, where the names of interfaces are free."""
    a, b = link
    ends = ["ip", "link", "add", a.interface, "netns", a.device, "mtu", str(MTU), "type", "veth"]
    yield shlex.join([*ends, "peer", "name", b.interface, "netns", b.device, "mtu", str(MTU)])
    yield from (set_command(port, "up") for port in link)


def set_command(port: Port, state: str) -> str:
    return shlex.join(["ip", "-n", port.device, "link", "set", port.interface, state])


def host_commands(name: str, nics: Mapping[str, Nic]) -> Iterator[str]:
    """Addresses, and for each adapter a default route that a socket bound to the adapter takes."""
    for metric, (interface, nic) in enumerate(nics.items(), start=1):
        yield shlex.join(["ip", "-n", name, "address", "add", nic.address, "dev", interface])
        route = ["default", "via", nic.gateway, "dev", interface, "metric", str(metric)]
        yield shlex.join(["ip", "-n", name, "route", "add", *route])


def silence_commands(port: Port) -> Iterator[str]:
    """Redirect everything that arrives into an interface that is down."""
    into_the_sink = ["u32", "match", "u32", "0", "0", "action", "mirred", "egress", "redirect", "dev", SINK]
    tc = ["tc", "-n", port.device]
    yield shlex.join(["ip", "-n", port.device, "link", "add", SINK, "type", "ifb"])
    yield shlex.join([*tc, "qdisc", "add", "dev", port.interface, "ingress"])
    yield shlex.join([*tc, "filter", "add", "dev", port.interface, "parent", "ffff:", "protocol", "all", *into_the_sink])


def hear_commands(port: Port) -> Iterator[str]:
    """The end of a silence, if there is one."""
    yield shlex.join(["ip", "-n", port.device, "link", "del", SINK]) + " 2>/dev/null || :"
    yield shlex.join(["tc", "-n", port.device, "qdisc", "del", "dev", port.interface, "ingress"]) + " 2>/dev/null || :"
