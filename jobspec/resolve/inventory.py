"""Resolves where every adapter's cable leads: to the port observed in an inventory, else to the formula's."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import count

from msgspec import Struct, field

from headway.jobspec.resolve.growth import growing_group, grown_count, in_places
from headway.jobspec.resolve.links import Cable, FabricShape, LeafPort
from headway.jobspec.resolve.nodes import adapters_on
from headway.jobspec.spec.fabric import Fabric
from headway.jobspec.spec.inventory import Inventory, ObservedNode, ObservedSwitch
from headway.jobspec.spec.nodes import NodeGroup


class Observed(Struct, frozen=True):
    """The observations of each node and switch, by its name in the plan."""

    nodes: Mapping[str, ObservedNode] = field(default_factory=dict)
    switches: Mapping[str, ObservedSwitch] = field(default_factory=dict)

    @classmethod
    def of(cls, inventories: Iterable[Inventory]) -> "Observed":
        """Return the inventories of one cluster together."""
        each = tuple(inventories)
        return cls(
            {node.name: node for inventory in each for node in inventory.nodes},
            {switch.name: switch for inventory in each for switch in inventory.switches},
        )


def resolve_cables(shape: FabricShape, fabric: Fabric, groups: Sequence[NodeGroup], observed: Observed) -> Iterator[Cable]:
    """Return the cables of every node with adapters on the fabric, in the order of the nodes.

    The formula counts the nodes, group after group. Unobserved adapters are where it puts them or, next to observed
    ones of their node, where those imply. If another adapter was observed in that place, the node gets the first free
    one. Observations must name ports of `shape`.
    """
    nodes = list(_attached(shape, fabric, groups, observed))
    yield from _cables(shape, nodes, _positions(shape, nodes, set()))


def all_cables(shape: FabricShape, fabric: Fabric, groups: Sequence[NodeGroup], observed: Observed) -> Iterator[Cable]:
    """Yield the cables of `resolve_cables`, and then those of nodes to come on leaves that exist."""
    nodes = list(_attached(shape, fabric, groups, observed))
    taken: set[LeafPort] = set()
    yield from _cables(shape, nodes, _positions(shape, nodes, taken))
    coming = list(_coming(shape, fabric, groups))
    for cable in _cables(shape, coming, _positions(shape, coming, taken) if coming else {}):
        if cable.place.leaf < shape.sizes.leaves:
            yield cable


class _Attached(Struct, frozen=True, dict=True):
    """Rails of a node's adapters by their names, the places of those observed, and the position that the others are to have.

    `is_sure` where no count of other nodes has a part in the position.
    """

    name: str
    adapters: Mapping[str, int]
    observed: Mapping[int, LeafPort]
    wanted: int
    is_sure: bool

    @cached_property
    def open_rails(self) -> tuple[int, ...]:
        return tuple(rail for rail in self.adapters.values() if rail not in self.observed)


def _cables(shape: FabricShape, nodes: Iterable[_Attached], positions: Mapping[str, int]) -> Iterator[Cable]:
    for node in nodes:
        position = positions[node.name]
        for adapter, rail in node.adapters.items():
            stays = rail in node.observed or (node.is_sure and position == node.wanted)
            yield Cable(node.name, adapter, node.observed.get(rail) or shape.place(position, rail), stays)


def _attached(shape: FabricShape, fabric: Fabric, groups: Sequence[NodeGroup], observed: Observed) -> Iterator[_Attached]:
    counted = 0
    for nodes in in_places(fabric, groups):
        adapters = adapters_on(nodes, fabric)
        for index in range(nodes.count if adapters else 0):
            name = f"{nodes.name}-{index + 1}"
            seen = _observed_places(shape, adapters, observed.nodes.get(name))
            wanted = shape.position(next(iter(seen.values()))) if seen else counted + index
            yield _Attached(name, adapters, seen, wanted, bool(seen) or counted == 0)
        counted += nodes.count if adapters else 0


def _coming(shape: FabricShape, fabric: Fabric, groups: Sequence[NodeGroup]) -> Iterator[_Attached]:
    """Yield the nodes to come whose places are on leaves that exist."""
    growing = growing_group(fabric, groups)
    if growing is None:
        return
    adapters = adapters_on(growing, fabric)
    before = sum(nodes.count for nodes in groups if nodes is not growing and adapters_on(nodes, fabric))
    room = shape.sizes.leaves // shape.sizes.width * shape.sizes.unit
    for index in range(growing.count, min(grown_count(fabric, groups), room - before)):
        yield _Attached(f"{growing.name}-{index + 1}", adapters, {}, before + index, is_sure=False)


def _observed_places(shape: FabricShape, adapters: Mapping[str, int], node: ObservedNode | None) -> Mapping[int, LeafPort]:
    """Places that were observed, by rail."""
    return {
        adapters[nic.name]: LeafPort(shape.leaves[nic.switch], shape.node_ports[nic.port])
        for nic in (node.nics if node else ())
        if nic.name in adapters and nic.switch is not None and nic.port is not None
    }


def _positions(shape: FabricShape, nodes: Sequence[_Attached], taken: set[LeafPort]) -> Mapping[str, int]:
    """Return the position of each node's open rails, by its name, and add their places to `taken`: requested positions first, so that no
    displaced node displaces another."""
    taken.update(place for node in nodes for place in node.observed.values())
    found: dict[str, int] = {}
    for node in nodes:
        places = [shape.place(node.wanted, rail) for rail in node.open_rails]
        if taken.isdisjoint(places):
            taken.update(places)
            found[node.name] = node.wanted
    # Positions that were passed over stay taken, so each is looked at once for nodes with the same open rails.
    untried: dict[tuple[int, ...], Iterator[int]] = defaultdict(count)
    for node in (node for node in nodes if node.name not in found):
        rails = node.open_rails
        position = next(p for p in untried[rails] if all(shape.place(p, rail) not in taken for rail in rails))
        taken.update(shape.place(position, rail) for rail in rails)
        found[node.name] = position
    return found
