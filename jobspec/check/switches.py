"""Switches: as many as the nodes and rails need, and ports and addresses for every cable."""

from collections.abc import Generator, Iterator, Sequence
from ipaddress import AddressValueError, IPv4Address, IPv4Network, NetmaskValueError

from headway.jobspec.document import Path
from headway.jobspec.problem import CLUSTER, Problem
from headway.jobspec.resolve.links import nodes_per_leaf
from headway.jobspec.spec.cluster import NodeGroup
from headway.jobspec.spec.fabric import Switches

# RFC 7607, 4893, 7300: 0, AS_TRANS and the last of both lengths are reserved.
_RESERVED_ASNS = (23456, 65535, 4294967295)


def check_switches(path: Path, switches: Switches, groups: Sequence[NodeGroup]) -> Iterator[Problem]:
    """The switches at `path` against the nodes that hang on them."""
    yield from _check_leaves(path, switches, groups)
    yield from _check_ports(path, switches)
    yield from _check_pools(path, switches)
    for reserved in _RESERVED_ASNS:
        if switches.asn <= reserved <= switches.asn + switches.leaves:
            message = f"{switches.leaves} leaves count on from {switches.asn}, over the reserved AS number {reserved}"
            yield Problem("HW511", CLUSTER, (*path, "asn"), message, "start elsewhere, for example at 4200000000")


def leaves_wanted(switches: Switches, groups: Sequence[NodeGroup]) -> int:
    """Leaves for all nodes with adapters: one a rail for each unit of as many nodes as a leaf has ports for."""
    attached = [nodes for nodes in groups if nodes.nics]
    rails = max((len(nodes.nics) for nodes in attached), default=0)
    units = -(-sum(nodes.count for nodes in attached) // nodes_per_leaf(switches))
    return units * rails


def _check_leaves(path: Path, switches: Switches, groups: Sequence[NodeGroup]) -> Iterator[Problem]:
    rails = max((len(nodes.nics) for nodes in groups), default=0)
    wanted = leaves_wanted(switches, groups)
    if rails == 0:
        hint = "list the adapters that hang on it, for example `nics: [mlx5_0, mlx5_1]`"
        yield Problem("HW510", CLUSTER, (*path, "leaves"), "no node has an adapter for these switches", hint)
    elif switches.leaves < wanted or switches.leaves % rails:
        message = f"{switches.leaves} leaves are no multiple of the {rails} rails (`nics`)"
        if switches.leaves < wanted:
            message = (
                f"{switches.leaves} leaves are too few: a leaf has room for {nodes_per_leaf(switches)} nodes, half of its `ports`"
            )
        hint = f"the nodes need {wanted}: one for each of the {rails} rails, for every {nodes_per_leaf(switches)} nodes"
        yield Problem("HW510", CLUSTER, (*path, "leaves"), message, hint)


def _check_ports(path: Path, switches: Switches) -> Iterator[Problem]:
    up = switches.ports - nodes_per_leaf(switches)
    if switches.spines * switches.uplinks > up:
        message = f"{switches.spines} spines with {switches.uplinks} uplinks each want more than a leaf's {up} upper ports"
        yield Problem("HW510", CLUSTER, (*path, "spines"), message, "take fewer spines or uplinks, or switches with more ports")
    if switches.leaves * switches.uplinks > switches.ports:
        message = f"{switches.leaves} leaves with {switches.uplinks} uplinks each want more than a spine's {switches.ports} ports"
        yield Problem("HW510", CLUSTER, (*path, "leaves"), message, "take fewer leaves, or switches with more ports")


def _check_pools(path: Path, switches: Switches) -> Iterator[Problem]:
    """Both pools are networks, large enough, and apart."""
    loopbacks = yield from _check_pool((*path, "loopbacks"), switches.loopbacks, 2 * max(switches.spines + 1, switches.leaves))
    addresses = yield from _check_pool((*path, "addresses"), switches.addresses, 2 * switches.leaves * nodes_per_leaf(switches))
    if loopbacks and addresses and loopbacks.overlaps(addresses):
        message = f"`loopbacks` {switches.loopbacks} and `addresses` {switches.addresses} overlap"
        yield Problem("HW511", CLUSTER, (*path, "loopbacks"), message, "give the switches and the links networks of their own")


def _check_pool(path: Path, text: str, wanted: int) -> Generator[Problem, None, IPv4Network | None]:
    """Yields what is wrong with the pool; returns its network, or None."""
    try:
        network = IPv4Network(text)
    except (AddressValueError, NetmaskValueError, ValueError):
        hint = "write the network's first address and its prefix length, for example `10.255.0.0/16`"
        yield Problem("HW511", CLUSTER, path, f"`{text}` is not an IPv4 network", hint)
        return None
    if not _is_unicast(network):
        message = f"`{text}` is not for the addresses of devices: it is loopback, multicast, link-local or reserved"
        yield Problem("HW511", CLUSTER, path, message, "take one of 10.0.0.0/8, 172.16.0.0/12 or 192.168.0.0/16, or of your own")
        return None
    if network.num_addresses < wanted:
        message = f"`{text}` has {network.num_addresses} addresses, and {wanted} are wanted"
        yield Problem("HW511", CLUSTER, path, message, "take a shorter prefix")
        return None
    return network


def _is_unicast(network: IPv4Network) -> bool:
    special = (IPv4Network(each) for each in ("0.0.0.0/8", "127.0.0.0/8", "169.254.0.0/16", "224.0.0.0/3"))
    return not any(network.overlaps(each) for each in special)


def in_network(address: str, network: str) -> bool:
    """Whether it is an address of the network; a name is not, and nothing is of what is no network."""
    try:
        return IPv4Address(address) in IPv4Network(network)
    except ValueError:
        return False
