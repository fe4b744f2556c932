"""Computes a fabric's switches, cables, addresses and AS numbers by formulas: adding a node, leaf or pod moves no other.

Nodes come in units of as many as a leaf has ports for, and the leaf for rail r in unit u is leaf u x width + the rail's place in a unit.
Rail r is in plane r modulo the planes, spine s in plane s modulo the planes; each leaf is linked to the spines of its pod and plane,
spine i of each pod to the i-th group of cores. Pods have whole units, or one rail of all units; then neighboring spines of a pod share a
group of cores. All switches of the top tier have one AS number, and so have the spines of a pod: no path of one plane comes
into another, and it keeps a switch from being a way between two of the tier above (RFC 7938, section 5.2.1).

A switch has the ports of all devices that `grow_to` plans from the first day on: its file does not change when they come. A cable is
only planned between devices that exist.
"""

from collections.abc import Container, Iterator, Mapping, Sequence
from functools import cached_property
from ipaddress import IPv4Address, IPv4Network
from typing import NamedTuple

from msgspec import Struct

from headway.jobspec.plan import ComingSwitch, LinkPlan, PortPlan, SwitchPlan
from headway.jobspec.resolve.sizes import LeafPorts, Sizes, ports_and_speeds, sizes_of
from headway.jobspec.spec.fabric import GBPS, Fabric, Switches
from headway.jobspec.spec.nodes import NodeGroup

# Leaves have the AS numbers before those of the pods' spines.
POD_ASNS = 32768

# Tiers from the nodes up.
RANKS: Mapping[str, int] = {"leaf": 0, "spine": 1, "core": 2}


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


class FabricShape(Struct, frozen=True, dict=True):
    """Where everything of one fabric is, from the indices of switches and nodes alone. `is_routed` where switches have addresses."""

    fabric: str
    spec: Switches
    sizes: Sizes
    ports: LeafPorts
    is_routed: bool = True

    @property
    def rails(self) -> int:
        """Networks that the adapters of a node are spread over."""
        return self.sizes.rails

    @property
    def planes(self) -> int:
        """Parts with separate spines."""
        return self.sizes.planes

    @property
    def down(self) -> int:
        """Ports of a leaf that are for nodes."""
        return self.sizes.down

    @cached_property
    def _loopbacks(self) -> IPv4Network:
        return IPv4Network(self.spec.loopbacks)

    @cached_property
    def _addresses(self) -> IPv4Address:
        return IPv4Network(self.spec.addresses)[0]

    @cached_property
    def leaves(self) -> Mapping[str, int]:
        """Index of each leaf by its name."""
        return {self.leaf(index): index for index in range(self.sizes.leaves)}

    @cached_property
    def node_ports(self) -> Mapping[str, int]:
        """Index of each port of a leaf that is for nodes, by its name."""
        return {self.port_name(index): index for index in range(self.down)}

    def leaf(self, index: int) -> str:
        return f"{self.fabric}-leaf-{index + 1}"

    def spine(self, index: int) -> str:
        return f"{self.fabric}-spine-{index + 1}"

    def core(self, index: int) -> str:
        return f"{self.fabric}-core-{index + 1}"

    def port_name(self, index: int) -> str:
        """Return the name of a leaf's port for a node. SONiC's ports count by their lanes, whichever lanes those are, and FRR on any
        Linux accepts the same; InfiniBand's have numbers from 1 on."""
        return self._name(index, index * self.ports.lanes)

    def uplink_name(self, index: int) -> str:
        """Return the name of a leaf's port for a spine, with the index that counts those for nodes too."""
        return self._name(index, self.ports.lanes_below(self.down) + (index - self.down) * self.ports.up_lanes)

    def upper_name(self, index: int) -> str:
        """Return the name of a port of a spine or core."""
        return self._name(index, index * self.ports.up_lanes)

    def _name(self, index: int, lanes: int) -> str:
        return f"Ethernet{lanes}" if self.is_routed else str(index + 1)

    def rails_of(self, leaf: int) -> Sequence[int]:
        """Return the rails that the leaf is for."""
        place = leaf % self.sizes.width
        return [rail for rail in range(self.rails) if self.sizes.leaf_of_rail(rail) == place]

    def plane_of(self, leaf: int) -> int:
        return leaf % self.sizes.width % self.planes

    def place(self, position: int, rail: int) -> LeafPort:
        """Return the port for the adapter of that rail, of the node in that position: a node has neighbouring ports for the rails
        that share a leaf."""
        unit, slot = divmod(position, self.sizes.unit)
        shared = self.sizes.leaf_rails
        leaf = unit * self.sizes.width + self.sizes.leaf_of_rail(rail)
        return LeafPort(leaf, slot * shared + rail // self.planes % shared)

    def position(self, place: LeafPort) -> int:
        """Return the position of a node that has an adapter there."""
        return place.leaf // self.sizes.width * self.sizes.unit + place.port // self.sizes.leaf_rails

    def ports_of(self, role: str) -> int:
        """Return the ports of a switch, with and without a cable."""
        if role == "leaf":
            return max(self.ports.every if self.ports.lanes == self.ports.up_lanes else 0, self.down + self.sizes.leaf_up)
        return max(self.spec.spine_ports or 0 if role == "spine" else 0, self.ports.every_up)

    def pod_of(self, leaf: int) -> int:
        if self.sizes.has_rail_pods:
            return leaf % self.sizes.width
        return 0 if self.sizes.tiers < 3 else leaf // self.sizes.width // self.sizes.pod_units

    def spines_of(self, leaf: int) -> range:
        """Return spines that the leaf is linked to."""
        first = self.pod_of(leaf) * self.sizes.pod_spines
        return range(first + self.plane_of(leaf), first + self.sizes.pod_spines, self.planes)

    def leaves_of(self, spine: int) -> list[int]:
        """Return leaves that the spine is linked to, those to come too."""
        pod, place = divmod(spine, self.sizes.pod_spines)
        if self.sizes.has_rail_pods:
            return list(range(pod, self.sizes.most_leaves, self.sizes.width))
        plane, of_pod = place % self.planes, self.sizes.pod_units * self.sizes.width
        first = pod * of_pod
        last = min(first + of_pod, self.sizes.most_leaves) if self.sizes.tiers > 2 else self.sizes.most_leaves
        return [leaf for leaf in range(first, last) if self.plane_of(leaf) == plane]

    def cores_of(self, spine: int) -> range:
        """Return cores that the spine is linked to."""
        group = self.sizes.core_group
        first = spine % self.sizes.pod_spines // self.sizes.core_share * group if group else 0
        return range(first, first + group)

    def spines_of_core(self, core: int) -> list[int]:
        """Return spines that the core is linked to: those of one place in every pod, those to come too."""
        share = self.sizes.core_share
        first = core // self.sizes.core_group * share
        pods = range(first, self.sizes.most_spines, self.sizes.pod_spines)
        return [spine + place for spine in pods for place in range(share)]

    def uplink_port(self, spine: int, link: int) -> int:
        """Return port of a leaf."""
        return self.down + spine % self.sizes.pod_spines // self.planes * self.sizes.uplinks + link

    def downlink_port(self, leaf: int, link: int) -> int:
        """Return port of a spine."""
        unit, place = divmod(leaf, self.sizes.width)
        of_plane = len(range(place % self.planes, self.sizes.width, self.planes))
        if self.sizes.has_rail_pods:
            return unit * self.sizes.uplinks + link
        below = unit % self.sizes.pod_units if self.sizes.tiers > 2 else unit
        return (below * of_plane + place // self.planes) * self.sizes.uplinks + link

    def core_port(self, core: int, link: int) -> int:
        """Return port of a spine."""
        return self.sizes.spine_down + core % self.sizes.core_group * self.sizes.core_uplinks + link

    def pod_port(self, spine: int, link: int) -> int:
        """Return port of a core."""
        pod, place = divmod(spine, self.sizes.pod_spines)
        share = self.sizes.core_share
        return (pod * share + place % share) * self.sizes.core_uplinks + link

    def leaf_loopback(self, index: int) -> str:
        return str(self._loopbacks[self._loopbacks.num_addresses // 2 + index + 1])

    def spine_loopback(self, index: int) -> str:
        return str(self._loopbacks[index + 1])

    def core_loopback(self, index: int) -> str:
        return str(self._loopbacks[self._loopbacks.num_addresses // 4 + index + 1])

    def leaf_asn(self, leaf: int) -> int:
        return self.spec.asn + 1 + leaf

    def spine_asn(self, spine: int) -> int:
        return self.spec.asn if self.sizes.tiers < 3 else self.spec.asn + POD_ASNS + spine // self.sizes.pod_spines

    def leaf_address(self, place: LeafPort) -> str:
        """Return the leaf's end of a link to a node: the even address of a /31 (RFC 3021)."""
        return f"{self._addresses + 2 * (place.leaf * self.down + place.port)}/31"

    def leaf_block(self, index: int) -> str | None:
        """Return the network of the leaf's links to nodes; None where their addresses are no network of their own."""
        size, first = 2 * self.down, self._addresses + 2 * index * self.down
        if size & (size - 1) or int(first) % size:
            return None
        return f"{first}/{32 - (size.bit_length() - 1)}"


def shape_of(fabric: Fabric, groups: Sequence[NodeGroup]) -> FabricShape:
    """Return the shape of a fabric with switches. Raises SizeError if no fabric has its sizes."""
    assert fabric.switches is not None  # noqa: S101 (for mypy: the caller asks for switched fabrics only)
    is_routed = fabric.transport != "infiniband"
    return FabricShape(fabric.name, fabric.switches, sizes_of(fabric, groups), ports_and_speeds(fabric, groups), is_routed)


def last_asn(switches: Switches, sizes: Sizes) -> int:
    """Return the highest AS number of a fabric at the size that it may grow to."""
    return switches.asn + (sizes.most_leaves if sizes.tiers < 3 else POD_ASNS + sizes.most_pods)


def resolve_switches(shape: FabricShape, cables: Sequence[Cable]) -> Iterator[SwitchPlan]:
    """Yield leaves, spines, then cores, of a fabric that passed its checks; `cables` are those of nodes to come too."""
    of_leaf: dict[int, list[Cable]] = {}
    for cable in sorted(cables, key=lambda cable: cable.place):
        of_leaf.setdefault(cable.place.leaf, []).append(cable)
    for leaf in range(shape.sizes.leaves):
        ports = (*_node_ports(shape, of_leaf.get(leaf, [])), *_uplinks(shape, leaf))
        yield _switch(shape, shape.leaf(leaf), "leaf", leaf, ports)
    for spine in range(shape.sizes.spines):
        yield _switch(shape, shape.spine(spine), "spine", spine, (*_downlinks(shape, spine), *_core_links(shape, spine)))
    for core in range(shape.sizes.cores):
        yield _switch(shape, shape.core(core), "core", core, tuple(_pod_links(shape, core)))


def coming_switches(shape: FabricShape) -> Iterator[ComingSwitch]:
    """Yield the switches to come that those which exist have ports for: leaves of their pods, and spines of more pods."""
    sizes = shape.sizes
    of_pods = sizes.pods * sizes.pod_units * sizes.width
    for leaf in range(sizes.leaves, min(sizes.most_leaves, of_pods) if sizes.tiers > 1 else 0):
        yield ComingSwitch(shape.leaf(leaf), shape.fabric, "leaf", shape.leaf_asn(leaf) if shape.is_routed else None)
    for spine in range(sizes.spines, sizes.most_spines if sizes.cores else 0):
        yield ComingSwitch(shape.spine(spine), shape.fabric, "spine", shape.spine_asn(spine) if shape.is_routed else None)


def _switch(shape: FabricShape, name: str, role: str, index: int, ports: tuple[PortPlan, ...]) -> SwitchPlan:
    """Return the switch with its AS number, loopback and network; InfiniBand's have none."""
    if not shape.is_routed:
        return SwitchPlan(name, shape.fabric, role, index, None, None, ports, port_count=shape.ports_of(role))
    if role == "leaf":
        asn, loopback, block = shape.leaf_asn(index), shape.leaf_loopback(index), shape.leaf_block(index)
        return SwitchPlan(name, shape.fabric, role, index, asn, loopback, ports, block)
    if role == "spine":
        return SwitchPlan(name, shape.fabric, role, index, shape.spine_asn(index), shape.spine_loopback(index), ports)
    return SwitchPlan(name, shape.fabric, role, index, shape.spec.asn, shape.core_loopback(index), ports)


def resolve_links(switches: Sequence[SwitchPlan], nodes: Container[str]) -> Iterator[LinkPlan]:
    """Return each cable between devices that exist once, from its upper end of a node's cable and the lower end of any other: a leaf is
    end a of both. `nodes` are the names of those that exist."""
    ranks = {switch.name: RANKS[switch.role] for switch in switches}
    for switch in switches:
        rank = RANKS[switch.role]
        for port in switch.ports:
            if port.peer in nodes if port.role == "node" else ranks.get(port.peer, 0) > rank:
                address = _other_end(port.address) if port.address else None
                yield LinkPlan(switch.name, port.name, port.peer, port.peer_port, port.gbps, port.metres, address)


def _node_ports(shape: FabricShape, cables: Sequence[Cable]) -> Iterator[PortPlan]:
    """Yield the leaf's ports with these cables in them."""
    lanes, gbps, metres = shape.ports.lanes, shape.ports.speed // GBPS, shape.spec.node_cable
    for cable in cables:
        index = cable.place.port
        address = shape.leaf_address(cable.place) if shape.is_routed else None
        yield PortPlan(index, shape.port_name(index), lanes, "node", cable.node, cable.adapter, gbps, metres, address)


def _uplinks(shape: FabricShape, leaf: int) -> Iterator[PortPlan]:
    for spine in shape.spines_of(leaf) if shape.sizes.spines else ():
        name = shape.spine(spine)
        for link in range(shape.sizes.uplinks):
            index = shape.uplink_port(spine, link)
            far = shape.upper_name(shape.downlink_port(leaf, link))
            yield _fabric_port(shape, index, shape.uplink_name(index), name, far, shape.spec.spine_cable)


def _downlinks(shape: FabricShape, spine: int) -> Iterator[PortPlan]:
    fars = [shape.uplink_name(shape.uplink_port(spine, link)) for link in range(shape.sizes.uplinks)]
    for leaf in shape.leaves_of(spine):
        name = shape.leaf(leaf)
        for link, far in enumerate(fars):
            index = shape.downlink_port(leaf, link)
            yield _fabric_port(shape, index, shape.upper_name(index), name, far, shape.spec.spine_cable)


def _core_links(shape: FabricShape, spine: int) -> Iterator[PortPlan]:
    for core in shape.cores_of(spine):
        for link in range(shape.sizes.core_uplinks):
            index = shape.core_port(core, link)
            far = shape.upper_name(shape.pod_port(spine, link))
            yield _fabric_port(shape, index, shape.upper_name(index), shape.core(core), far, shape.spec.core_cable)


def _pod_links(shape: FabricShape, core: int) -> Iterator[PortPlan]:
    for spine in shape.spines_of_core(core):
        for link in range(shape.sizes.core_uplinks):
            index = shape.pod_port(spine, link)
            far = shape.upper_name(shape.core_port(core, link))
            yield _fabric_port(shape, index, shape.upper_name(index), shape.spine(spine), far, shape.spec.core_cable)


def _fabric_port(shape: FabricShape, index: int, name: str, peer: str, peer_port: str, metres: int) -> PortPlan:
    return PortPlan(index, name, shape.ports.up_lanes, "fabric", peer, peer_port, shape.ports.up_speed // GBPS, metres, None)


def _other_end(address: str) -> str:
    """Return the odd address of the /31 whose even one is given."""
    head, _, last = address.removesuffix("/31").rpartition(".")
    return f"{head}.{int(last) + 1}/31"
