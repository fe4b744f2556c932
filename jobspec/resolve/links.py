"""Computes a fabric's switches, cables, addresses and AS numbers by formulas: adding a node or leaf moves no other.

Rail-optimised leaf and spine: nodes come in units of as many as a leaf has ports for them, and the leaf of rail r in unit u is leaf
u x rails + r. Rail r is in plane r modulo the planes, spine s in plane s modulo the planes; each leaf is linked to the spines of its
plane. All spines have one AS number: no path of one plane comes into another, and within a plane it keeps a leaf from being a way
between two spines (RFC 7938, section 5.2.1).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from ipaddress import IPv4Address, IPv4Network
from typing import NamedTuple

from headway.jobspec.catalog.switches import switches as models
from headway.jobspec.plan import LinkPlan, PortPlan, SwitchPlan
from headway.jobspec.resolve.nodes import adapters_on
from headway.jobspec.spec.fabric import GBPS, Fabric, Switches
from headway.jobspec.spec.nodes import NodeGroup

# Of a port of 400 Gb/s over lanes of 50 Gb/s, without a model.
_LANES = 8
_PORTS = 64


class LeafPort(NamedTuple):
    """A port of a leaf, both counted from 0."""

    leaf: int
    port: int


class Cable(NamedTuple):
    """From an adapter of a node to its place. It `stays` if no change of other nodes can move it."""

    node: str
    adapter: str
    place: LeafPort
    stays: bool


@dataclass(frozen=True)
class FabricShape:
    """Where everything of one fabric is, from the indices of switches and nodes alone."""

    fabric: str
    spec: Switches
    rails: int
    planes: int

    @cached_property
    def down(self) -> int:
        """Ports of a leaf that are for nodes."""
        return nodes_per_leaf(self.spec)

    @cached_property
    def lanes(self) -> int:
        """Lanes of a port."""
        return lanes_of(self.spec)

    @cached_property
    def _loopbacks(self) -> IPv4Network:
        return IPv4Network(self.spec.loopbacks)

    @cached_property
    def _addresses(self) -> IPv4Address:
        return IPv4Network(self.spec.addresses)[0]

    @cached_property
    def leaves(self) -> Mapping[str, int]:
        """Index of each leaf by its name."""
        return {self.leaf(index): index for index in range(self.spec.leaves)}

    @cached_property
    def node_ports(self) -> Mapping[str, int]:
        """Index of each port of a leaf that is for nodes, by its name."""
        return {self.port_name(index): index for index in range(self.down)}

    def leaf(self, index: int) -> str:
        return f"{self.fabric}-leaf-{index + 1}"

    def spine(self, index: int) -> str:
        return f"{self.fabric}-spine-{index + 1}"

    def port_name(self, index: int) -> str:
        """Return SONiC's name: ports count by their lanes, whichever lanes those are. FRR on any Linux accepts the same."""
        return f"Ethernet{index * self.lanes}"

    def rail_of(self, leaf: int) -> int:
        return leaf % self.rails

    def place(self, position: int, rail: int) -> LeafPort:
        """Return the port for the adapter of that rail, of the node in that position: the positions of a unit are the
        ports of its leaves."""
        unit, port = divmod(position, self.down)
        return LeafPort(unit * self.rails + rail, port)

    def position(self, place: LeafPort) -> int:
        """Return the position of a node that has an adapter there."""
        return place.leaf // self.rails * self.down + place.port

    def spines_of(self, leaf: int) -> range:
        """Return spines that the leaf is linked to."""
        return range(self.rail_of(leaf) % self.planes, self.spec.spines, self.planes)

    def leaves_of(self, spine: int) -> list[int]:
        """Return leaves that the spine is linked to."""
        plane = spine % self.planes
        return [leaf for leaf in range(self.spec.leaves) if self.rail_of(leaf) % self.planes == plane]

    def uplink_port(self, spine: int, link: int) -> int:
        """Return port of a leaf."""
        return self.down + spine // self.planes * self.spec.uplinks + link

    def downlink_port(self, leaf: int, link: int) -> int:
        """Return port of a spine."""
        unit, rail = divmod(leaf, self.rails)
        rails_of_plane = len(range(rail % self.planes, self.rails, self.planes))
        return (unit * rails_of_plane + rail // self.planes) * self.spec.uplinks + link

    def leaf_loopback(self, index: int) -> str:
        return str(self._loopbacks[self._loopbacks.num_addresses // 2 + index + 1])

    def spine_loopback(self, index: int) -> str:
        return str(self._loopbacks[index + 1])

    def leaf_address(self, place: LeafPort) -> str:
        """Return the leaf's end of a link to a node: the even address of a /31 (RFC 3021)."""
        return f"{self._addresses + 2 * (place.leaf * self.down + place.port)}/31"

    def leaf_block(self, index: int) -> str | None:
        """Return the network of the leaf's links to nodes; None where their addresses are no network of their own."""
        size, first = 2 * self.down, self._addresses + 2 * index * self.down
        if size & (size - 1) or int(first) % size:
            return None
        return f"{first}/{32 - (size.bit_length() - 1)}"


def nodes_per_leaf(switches: Switches) -> int:
    """Return ports of a leaf that are for nodes: the lower half."""
    return ports_of(switches) // 2


def ports_of(switches: Switches) -> int:
    """Return the ports of a switch: those that are set, else all of the model with so many lanes."""
    model = models().get(switches.model or "")
    if switches.ports is not None or model is None:
        return switches.ports or _PORTS
    return max(2, model.ports * model.lanes // lanes_of(switches))


def lanes_of(switches: Switches) -> int:
    """Return the lanes of a port: those that are set, else the fewest of the model that carry the speed."""
    model = models().get(switches.model or "")
    if switches.lanes is not None or model is None:
        return switches.lanes or _LANES
    per_lane = model.gbps * GBPS // model.lanes
    return next((lanes for lanes in (1, 2, 4) if switches.speed <= lanes * per_lane), model.lanes)


def rails_of(fabric: Fabric, groups: Sequence[NodeGroup]) -> int:
    """Return the rails of the fabric: its setting, else the number of a node's adapters on it; 0 when none has one."""
    return fabric.rails or max((len(adapters_on(nodes, fabric)) for nodes in groups), default=0)


def shape_of(fabric: Fabric, groups: Sequence[NodeGroup]) -> FabricShape:
    """Return the shape of a fabric with switches."""
    assert fabric.switches is not None  # noqa: S101 (for mypy: the caller asks for switched fabrics only)
    return FabricShape(fabric.name, fabric.switches, rails_of(fabric, groups) or 1, fabric.planes)


def resolve_switches(shape: FabricShape, cables: Sequence[Cable]) -> Iterator[SwitchPlan]:
    """Yield leaves, then spines, of a fabric that passed its checks."""
    of_leaf: dict[int, list[Cable]] = {}
    for cable in sorted(cables, key=lambda cable: cable.place):
        of_leaf.setdefault(cable.place.leaf, []).append(cable)
    spec = shape.spec
    for leaf in range(spec.leaves):
        ports = (*_node_ports(shape, of_leaf.get(leaf, [])), *_uplinks(shape, leaf))
        asn, loopback, block = spec.asn + 1 + leaf, shape.leaf_loopback(leaf), shape.leaf_block(leaf)
        yield SwitchPlan(shape.leaf(leaf), shape.fabric, "leaf", leaf, asn, loopback, ports, block)
    for spine in range(spec.spines):
        ports = tuple(_downlinks(shape, spine))
        yield SwitchPlan(shape.spine(spine), shape.fabric, "spine", spine, spec.asn, shape.spine_loopback(spine), ports)


def resolve_links(switches: Sequence[SwitchPlan]) -> Iterator[LinkPlan]:
    """Return each cable once, from its leaf's side: the leaf is end a, the node or spine end b."""
    for switch in (switch for switch in switches if switch.role == "leaf"):
        for port in switch.ports:
            address = _other_end(port.address) if port.address else None
            yield LinkPlan(switch.name, port.name, port.peer, port.peer_port, port.gbps, port.metres, address)


def _node_ports(shape: FabricShape, cables: Sequence[Cable]) -> Iterator[PortPlan]:
    """Yield the leaf's ports with these cables in them."""
    for cable in cables:
        address = shape.leaf_address(cable.place)
        yield _port(shape, cable.place.port, "node", cable.node, cable.adapter, shape.spec.node_cable, address)


def _uplinks(shape: FabricShape, leaf: int) -> Iterator[PortPlan]:
    for spine in shape.spines_of(leaf):
        for link in range(shape.spec.uplinks):
            far = shape.port_name(shape.downlink_port(leaf, link))
            yield _port(shape, shape.uplink_port(spine, link), "fabric", shape.spine(spine), far, shape.spec.spine_cable)


def _downlinks(shape: FabricShape, spine: int) -> Iterator[PortPlan]:
    for leaf in shape.leaves_of(spine):
        for link in range(shape.spec.uplinks):
            far = shape.port_name(shape.uplink_port(spine, link))
            yield _port(shape, shape.downlink_port(leaf, link), "fabric", shape.leaf(leaf), far, shape.spec.spine_cable)


def _port(
    shape: FabricShape, index: int, role: str, peer: str, peer_port: str, metres: int, address: str | None = None
) -> PortPlan:
    return PortPlan(index, shape.port_name(index), shape.lanes, role, peer, peer_port, shape.spec.speed // GBPS, metres, address)


def _other_end(address: str) -> str:
    """Return the odd address of the /31 whose even one is given."""
    head, _, last = address.removesuffix("/31").rpartition(".")
    return f"{head}.{int(last) + 1}/31"
