"""Checks observed cables against the cluster's document: leaf, port, rail and free ports."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property

from msgspec import Struct

from headway.jobspec.document import Path
from headway.jobspec.problem import CLUSTER, Problem, Severity
from headway.jobspec.resolve.inventory import Observed, resolve_cables
from headway.jobspec.resolve.links import Cable, FabricShape, LeafPort, shape_of
from headway.jobspec.resolve.nodes import adapters_on
from headway.jobspec.resolve.sizes import ports_of
from headway.jobspec.spec.cluster import Cluster
from headway.jobspec.spec.fabric import Fabric
from headway.jobspec.spec.inventory import ObservedNic
from headway.jobspec.spec.nodes import NodeGroup
from headway.jobspec.suggest import Hint, did_you_mean, listed_some, nearest

# Names of switches that differ by a letter or two.
MISSPELT = 0.85


class Cabling(Struct, frozen=True, dict=True):
    """Which adapters of a cluster hang on planned switches, and on which rail; nothing is known of the others' switches."""

    cluster: Cluster

    @cached_property
    def shapes(self) -> Mapping[str, FabricShape]:
        """The fabrics whose switches are planned, by name."""
        fabrics = [fabric for fabric in self.cluster.fabrics if fabric.switches is not None]
        return {fabric.name: shape_of(fabric, self.cluster.node_groups) for fabric in fabrics}

    @cached_property
    def switches(self) -> frozenset[str]:
        """Names of all planned switches."""
        spines = {shape.spine(index) for shape in self.shapes.values() for index in range(shape.sizes.spines)}
        cores = {shape.core(index) for shape in self.shapes.values() for index in range(shape.sizes.cores)}
        return frozenset(spines.union(cores, *(shape.leaves for shape in self.shapes.values())))

    @cached_property
    def rails(self) -> Mapping[tuple[str, str], tuple[FabricShape, int]]:
        """Shape and rail of each adapter, by its group and name."""
        return {
            (nodes.name, adapter): (self.shapes[fabric.name], rail)
            for fabric in self.cluster.fabrics
            if fabric.name in self.shapes
            for nodes in self.cluster.node_groups
            for adapter, rail in adapters_on(nodes, fabric).items()
        }


class _Found(Struct, frozen=True):
    """A cable that was observed in a port that there is."""

    index: int
    nic: ObservedNic
    shape: FabricShape
    rail: int
    place: LeafPort

    @property
    def is_crossed(self) -> bool:
        return self.rail not in self.shape.rails_of(self.place.leaf)


def check_nics(cabling: Cabling, nodes: NodeGroup, document: str, path: Path, nics: Sequence[ObservedNic]) -> Iterator[Problem]:
    """Check the observed adapters at `path`, those of one node of the group."""
    found = []
    for index, nic in enumerate(nics):
        problem = _unknown(cabling, nodes, document, (*path, index), nic, nics)
        if problem is not None:
            yield problem
        elif nic.switch is not None and nic.port is not None and (nodes.name, nic.name) in cabling.rails:
            shape, rail = cabling.rails[nodes.name, nic.name]
            found.append(_Found(index, nic, shape, rail, LeafPort(shape.leaves[nic.switch], shape.node_ports[nic.port])))
    for fabric in dict.fromkeys(each.shape.fabric for each in found):
        own = [each for each in found if each.shape.fabric == fabric]
        yield from _check_rails(document, path, own)
        yield from _check_straight(document, path, [each for each in own if not each.is_crossed])


def check_room(path: Path, fabric: Fabric, cluster: Cluster, observed: Observed) -> Iterator[Problem]:
    """Check that the cables of all nodes on the switches of the fabric at `path` have ports and keep them."""
    shape = shape_of(fabric, cluster.node_groups)
    cables = list(resolve_cables(shape, fabric, cluster.node_groups, observed))
    outside = list(dict.fromkeys(cable.node for cable in cables if cable.place.leaf >= shape.sizes.leaves))
    if outside:
        count = "one node finds" if len(outside) == 1 else f"{len(outside)} nodes find"
        message = (
            f"{count} no port, starting with `{outside[0]}`: its cables do not fit into the ports that observed cables leave free"
        )
        hint = f"add {shape.sizes.width} leaves for every {shape.sizes.unit} nodes"
        yield Problem("HW510", CLUSTER, (*path, "switches", "leaves"), message, hint)
        return
    for index, nodes in enumerate(cluster.node_groups):
        yield from _check_stay(("node_groups", index), nodes, cables)


def _unknown(
    cabling: Cabling, nodes: NodeGroup, document: str, path: Path, nic: ObservedNic, nics: Sequence[ObservedNic]
) -> Problem | None:
    """Yield the unknown names among the adapter, its switch and its port."""
    names = [each.name for each in nodes.nics]
    if nic.name not in names:
        message = f"the nodes `{nodes.name}` have no adapter `{nic.name}`"
        near = did_you_mean(nic.name, names, "adapters")
        unnamed = [name for name in names if name not in {each.name for each in nics}]
        if near.fix is None and len(unnamed) == 1:
            near = Hint(f"write `{unnamed[0]}`, which has no entry here", unnamed[0])
        return Problem("HW520", document, (*path, "name"), message, near.text, fix=near.fix)
    if nic.switch is None or nic.port is None or (nodes.name, nic.name) not in cabling.rails:
        return None
    shape, rail = cabling.rails[nodes.name, nic.name]
    if nic.switch not in shape.leaves:
        # Another leaf than those of its rail would be refused next.
        leaves = [name for name, index in shape.leaves.items() if rail in shape.rails_of(index)] or list(shape.leaves)
        message = f"`{nic.name}` is on the fabric `{shape.fabric}`, and `{nic.switch}` is not one of its leaves"
        leaf = nearest(nic.switch, leaves, MISSPELT)
        hint = f"use one of its leaves, {listed_some(leaves)}"
        if leaf is None and shape.sizes.leaves > 1 and nic.switch in cabling.switches:
            # The leaf of the other fabric that has the same number.
            number = nic.switch.rpartition("-")[2]
            leaf = next((each for each in leaves if each.rpartition("-")[2] == number), None)
        leaf = leaves[0] if len(leaves) == 1 else leaf
        hint = hint if leaf is None else f"did you mean `{leaf}`?"
        return Problem("HW520", document, (*path, "switch"), message, hint, fix=leaf)
    if nic.port not in shape.node_ports:
        message = f"`{nic.port}` is not a port of a leaf for nodes"
        last = shape.port_name(shape.down - 1)
        hint = f"use one of the lower half, `{shape.port_name(0)}` to `{last}`, one for every {shape.ports.lanes} lanes"
        if shape.sizes.down * 2 != ports_of(shape.spec, shape.ports.speed):
            hint = f"use one of `{shape.port_name(0)}` to `{last}`"
        return Problem("HW520", document, (*path, "port"), message, hint)
    return None


def _check_rails(document: str, path: Path, found: Sequence[_Found]) -> Iterator[Problem]:
    """Check that adapter and leaf are of one rail, on one fabric; two adapters on each other's have exchanged cables."""
    crossed = {each.rail: each for each in found if each.is_crossed}
    for each in crossed.values():
        shape, leaf_rails = each.shape, each.shape.rails_of(each.place.leaf)
        of_rails = f"rail {leaf_rails[0]}" if len(leaf_rails) == 1 else f"rails {', '.join(map(str, leaf_rails))}"
        message = f"`{each.nic.name}` is on rail {each.rail}, and its cable leads to `{each.nic.switch}`, a leaf of {of_rails}"
        other = next((crossed[rail] for rail in leaf_rails if rail in crossed), None)
        if other is not None and each.rail in shape.rails_of(other.place.leaf):
            hint = f"the cables of `{each.nic.name}` and `{other.nic.name}` are swapped: swap them back"
        else:
            right = shape.leaf(shape.place(shape.position(each.place), each.rail).leaf)
            hint = f"plug it into a leaf of rail {each.rail}, for example `{right}`"
        yield Problem("HW522", document, (*path, each.index, "switch"), message, hint)


def _check_straight(document: str, path: Path, found: Sequence[_Found]) -> Iterator[Problem]:
    """Check that the adapters of a node on one fabric use ports of one number on the leaves of one unit; a different one may be
    another node's cable.

    On running hosts the same check uses LLDP: https://github.com/scitix/sichek/pull/133
    """
    if not found:
        return
    positions = {each.index: each.shape.position(each.place) for each in found}
    usual, _ = Counter(positions.values()).most_common(1)[0]
    one = next(each for each in found if positions[each.index] == usual)
    for each in found:
        if positions[each.index] != usual:
            straight = each.shape.place(positions[one.index], each.rail)
            message = (
                f"`{each.nic.name}` is connected to `{each.nic.port}` of `{each.nic.switch}`, "
                f"and `{one.nic.name}` to `{one.nic.port}` of `{one.nic.switch}`"
            )
            beside = f"`{each.shape.port_name(straight.port)}` of `{each.shape.leaf(straight.leaf)}`"
            hint = f"beside that, its port would be {beside}: the cables of two nodes may be swapped"
            yield Problem("HW523", document, (*path, each.index, "port"), message, hint, Severity.WARNING)


def _check_stay(path: Path, nodes: NodeGroup, cables: Sequence[Cable]) -> Iterator[Problem]:
    own = {f"{nodes.name}-{index + 1}" for index in range(nodes.count)}
    loose = list(dict.fromkeys(cable.node for cable in cables if not cable.stays and cable.node in own))
    if loose:
        count = "the cables of one node" if len(loose) == 1 else f"the cables of {len(loose)} nodes"
        message = (
            f"{count} of `{nodes.name}`, from `{loose[0]}` on, lead to ports that other nodes "
            f"leave free: they move when those nodes do"
        )
        hint = "run `headway pin` to write them to an inventory"
        yield Problem("HW524", CLUSTER, path, message, hint, Severity.WARNING)
