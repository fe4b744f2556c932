"""A fabric's switches, cables, addresses and AS numbers, all by formulas: another node or leaf moves nothing that was there.

Rail-optimised leaf and spine: nodes come in units of as many as a leaf has ports for them; adapter i of the nodes of unit u hangs
on leaf u x rails + i. Every leaf is linked to every spine.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from ipaddress import IPv4Network

from headway.jobspec.plan import LinkPlan, NodePlan, PortPlan, SwitchPlan
from headway.jobspec.spec.fabric import Fabric, Switches


@dataclass(frozen=True)
class _Shape:
    """Where everything of one fabric is, from the indices of switches and nodes alone."""

    fabric: str
    spec: Switches
    rails: int

    @property
    def down(self) -> int:
        """Ports of a leaf that are for nodes."""
        return nodes_per_leaf(self.spec)

    @cached_property
    def _loopbacks(self) -> IPv4Network:
        return IPv4Network(self.spec.loopbacks)

    @cached_property
    def _addresses(self) -> IPv4Network:
        return IPv4Network(self.spec.addresses)

    def leaf(self, index: int) -> str:
        return f"{self.fabric}-leaf-{index + 1}"

    def spine(self, index: int) -> str:
        return f"{self.fabric}-spine-{index + 1}"

    def port_name(self, index: int) -> str:
        """SONiC's name, by the first lane; FRR on any Linux takes the same."""
        return f"Ethernet{index * self.spec.lanes}"

    def uplink_port(self, spine: int, link: int) -> int:
        """Port of a leaf."""
        return self.down + spine * self.spec.uplinks + link

    def downlink_port(self, leaf: int, link: int) -> int:
        """Port of a spine."""
        return leaf * self.spec.uplinks + link

    def leaf_loopback(self, index: int) -> str:
        return str(self._loopbacks[self._loopbacks.num_addresses // 2 + index])

    def spine_loopback(self, index: int) -> str:
        return str(self._loopbacks[index + 1])

    def leaf_address(self, leaf: int, port: int) -> str:
        """The leaf's end of a link to a node: the even address of a /31 (RFC 3021)."""
        return f"{self._addresses[2 * (leaf * self.down + port)]}/31"


def nodes_per_leaf(switches: Switches) -> int:
    """Ports of a leaf that are for nodes: the lower half."""
    return switches.ports // 2


def resolve_switches(fabric: Fabric, nodes: Sequence[NodePlan]) -> Iterator[SwitchPlan]:
    """Leaves, then spines, of a fabric that passed its checks; only nodes with adapters hang on it."""
    assert fabric.switches is not None  # noqa: S101 (for mypy: the caller asks for switched fabrics only)
    attached = [node for node in nodes if node.nics]
    shape = _Shape(fabric.name, fabric.switches, rails_of(attached))
    for index in range(shape.spec.leaves):
        ports = (*_node_ports(shape, index, attached), *_uplinks(shape, index))
        yield SwitchPlan(
            shape.leaf(index), fabric.name, "leaf", index, shape.spec.asn + 1 + index, shape.leaf_loopback(index), ports
        )
    for index in range(shape.spec.spines):
        ports = tuple(_downlinks(shape, index))
        yield SwitchPlan(shape.spine(index), fabric.name, "spine", index, shape.spec.asn, shape.spine_loopback(index), ports)


def resolve_links(switches: Sequence[SwitchPlan]) -> Iterator[LinkPlan]:
    """Each cable once, as its leaf sees it: the leaf is end a, the node or spine end b."""
    for switch in (switch for switch in switches if switch.role == "leaf"):
        for port in switch.ports:
            address = _other_end(port.address) if port.address else None
            yield LinkPlan(switch.name, port.name, port.peer, port.peer_port, port.gbps, port.metres, address)


def rails_of(nodes: Sequence[NodePlan]) -> int:
    """Adapters of a node."""
    return max((len(node.nics) for node in nodes), default=0)


def _node_ports(shape: _Shape, leaf: int, nodes: Sequence[NodePlan]) -> Iterator[PortPlan]:
    """The nodes of the leaf's unit, by the adapter of the leaf's rail."""
    if not shape.rails:
        return
    unit, rail = divmod(leaf, shape.rails)
    for port, node in enumerate(nodes[unit * shape.down : (unit + 1) * shape.down]):
        if rail < len(node.nics):
            address = shape.leaf_address(leaf, port)
            yield _port(shape, port, "node", node.name, node.nics[rail], shape.spec.node_metres, address)


def _uplinks(shape: _Shape, leaf: int) -> Iterator[PortPlan]:
    for spine in range(shape.spec.spines):
        for link in range(shape.spec.uplinks):
            far = shape.port_name(shape.downlink_port(leaf, link))
            yield _port(shape, shape.uplink_port(spine, link), "fabric", shape.spine(spine), far, shape.spec.spine_metres)


def _downlinks(shape: _Shape, spine: int) -> Iterator[PortPlan]:
    for leaf in range(shape.spec.leaves):
        for link in range(shape.spec.uplinks):
            far = shape.port_name(shape.uplink_port(spine, link))
            yield _port(shape, shape.downlink_port(leaf, link), "fabric", shape.leaf(leaf), far, shape.spec.spine_metres)


def _port(shape: _Shape, index: int, role: str, peer: str, peer_port: str, metres: int, address: str | None = None) -> PortPlan:
    return PortPlan(index, shape.port_name(index), shape.spec.lanes, role, peer, peer_port, shape.spec.gbps, metres, address)


def _other_end(address: str) -> str:
    """The odd address of the /31 whose even one is given."""
    network = IPv4Network(address)
    return f"{network[1]}/31"
