"""Counts a switched fabric: cables and transceivers of each tier, what is left after a loss, and how far it can grow.

All but growth is counted from the plan's cables, one by one, so that it holds for stated, derived and observed ones alike.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct

from headway.jobspec.catalog.switches import switches as models
from headway.jobspec.plan import ClusterPlan, LinkPlan, PortPlan, SwitchPlan
from headway.jobspec.resolve.links import FabricShape
from headway.jobspec.spec.fabric import GBPS

# IEEE 802.3ck: a copper cable with lanes of 100 Gb/s reaches 2 m; longer ones have transceivers, or are active.
COPPER_METRES = 2


class TierCount(Struct, frozen=True):
    """The cables between two tiers: `lower` of them ends, `upper` of them starts. `switches` are those of the upper tier.

    `transceivers` are those of the switches and of the nodes, where a cage with several ports counts once; 0 where the cables are copper.
    """

    name: str
    switches: int
    cables: int
    gbps: tuple[int, ...]
    metres: tuple[int, ...]
    transceivers: tuple[int, int]


class Loss(Struct, frozen=True):
    """The cost of one loss: `affects` keeps the share `left`, between 0 and 1, of the bandwidth that it had."""

    lost: str
    affects: str
    left: float


class Growth(Struct, frozen=True):
    """Nodes that fit: into free ports of the leaves that exist, and with more leaves and pods below the upper tiers as they are."""

    present: int
    most: int


def count_tiers(cluster: ClusterPlan, shape: FabricShape) -> tuple[TierCount, ...]:
    """Return the tiers of a fabric of the cluster, from the nodes up."""
    switches = {switch.name: switch for switch in cluster.switches if switch.fabric == shape.fabric}
    found: dict[tuple[str, str], list[LinkPlan]] = defaultdict(list)
    for link in cluster.links:
        if link.a in switches:
            role = switches[link.a].role
            found[("nodes", "leaf") if link.b not in switches else (role, switches[link.b].role)].append(link)
    cages = _cages(shape, switches)
    counts = Counter(switch.role for switch in switches.values())
    return tuple(
        TierCount(
            name=f"{lower} - {upper}",
            switches=counts[upper],
            cables=len(links),
            gbps=tuple(sorted({link.gbps for link in links})),
            metres=tuple(sorted({link.metres for link in links})),
            transceivers=_transceivers(links, cages),
        )
        for (lower, upper), links in found.items()
    )


def _cages(shape: FabricShape, switches: Mapping[str, SwitchPlan]) -> Mapping[tuple[str, str], tuple[str, int]]:
    """Return the cage of each port, by switch and port."""
    found = {}
    for switch in switches.values():
        for port in switch.ports:
            lane = int(port.name.removeprefix("Ethernet")) if shape.is_routed else port.index * port.lanes
            found[switch.name, port.name] = (switch.name, lane // shape.ports.cage)
    return found


def _transceivers(links: Sequence[LinkPlan], cages: Mapping[tuple[str, str], tuple[str, int]]) -> tuple[int, int]:
    """Return those of switches and of nodes. An adapter's end has its own."""
    of_switches, of_nodes = set(), 0
    for link in (link for link in links if link.metres > COPPER_METRES):
        of_switches.add(cages[link.a, link.a_port])
        far = cages.get((link.b, link.b_port))
        if far is None:
            of_nodes += 1
        else:
            of_switches.add(far)
    return len(of_switches), of_nodes


def losses(cluster: ClusterPlan, shape: FabricShape) -> Iterator[Loss]:
    """Yield what the loss of any one link, leaf, spine and core leaves to those that it hits hardest.

    Bandwidth of a node is that of its adapters; of a leaf, the lesser of its links to nodes and to spines; of a pod, that of its spines'
    links to cores.
    """
    leaves = [switch for switch in cluster.switches if switch.fabric == shape.fabric and switch.role == "leaf"]
    to_node: dict[str, Counter[str]] = defaultdict(Counter)
    for leaf in leaves:
        for port in cluster.cabled(leaf):
            if port.role == "node":
                to_node[port.peer][leaf.name] += port.gbps
    if to_node:
        one = min(1 - _fastest(cluster, shape) / sum(by_leaf.values()) for by_leaf in to_node.values())
        yield Loss("a cable to a node", "its node", one)
        whole = min(1 - max(by_leaf.values()) / sum(by_leaf.values()) for by_leaf in to_node.values())
        yield Loss("a leaf", "the nodes on it", whole)
    if shape.sizes.tiers > 1:
        yield Loss(
            "a cable from a leaf to a spine",
            "the nodes on the leaf",
            min(_left(cluster.cabled(leaf), one_spine=False) for leaf in leaves),
        )
        yield Loss("a spine", "the nodes on a leaf below it", min(_left(cluster.cabled(leaf), one_spine=True) for leaf in leaves))
    if shape.sizes.tiers > 2:
        sizes = shape.sizes
        of_pod = sizes.pod_spines * sizes.spine_up
        yield Loss("a cable from a spine to a core", "its pod, to others", 1 - 1 / of_pod)
        yield Loss("a core", "every pod, to others", 1 - sizes.core_share * sizes.core_uplinks / of_pod)


def _fastest(cluster: ClusterPlan, shape: FabricShape) -> int:
    return max(
        port.gbps for switch in cluster.switches if switch.fabric == shape.fabric for port in switch.ports if port.role == "node"
    )


def _left(ports: Sequence[PortPlan], *, one_spine: bool) -> float:
    """Return the share of a leaf's bandwidth that is left without one uplink, or without all to one spine."""
    down = sum(port.gbps for port in ports if port.role == "node")
    to_spine: Counter[str] = Counter()
    for port in (port for port in ports if port.role == "fabric"):
        to_spine[port.peer] += port.gbps
    up = to_spine.total()
    lost = max(to_spine.values()) if one_spine else max(port.gbps for port in ports if port.role == "fabric")
    before = min(down, up) or up
    return min(before, up - lost) / before


def growth_of(shape: FabricShape) -> Growth:
    """Return the nodes that fit without a change of what exists but new rows of spines and cores."""
    sizes, ports = shape.sizes, shape.ports
    present = sizes.leaves // sizes.width * sizes.unit
    if sizes.tiers == 1:
        return Growth(present, sizes.unit)
    of_plane = -(-sizes.width // sizes.planes)
    upper = shape.spec.spine_ports or ports.every_up
    if sizes.tiers == 2:
        return Growth(present, upper // (of_plane * sizes.uplinks) * sizes.unit)
    if sizes.has_rail_pods:
        # With another unit each spine has more links down than up.
        return Growth(present, sizes.pod_units * sizes.unit)
    return Growth(present, ports.every_up // sizes.core_uplinks * sizes.pod_units * sizes.unit)


def written_out(shape: FabricShape) -> Mapping[str, int | str]:
    """Return the sizes as settings of `switches`: with them in the document, no rule derives another."""
    sizes, model = shape.sizes, models().get(shape.spec.model or "")
    found: dict[str, int | str] = {
        "tiers": sizes.tiers,
        "node_ports": sizes.down,
        "leaf_rails": sizes.leaf_rails,
        "leaves": sizes.leaves,
    }
    if sizes.tiers > 1:
        found |= {"spines": sizes.spines, "uplinks": sizes.uplinks}
    if sizes.tiers > 2:
        found |= {"cores": sizes.cores, "core_uplinks": sizes.core_uplinks}
    if sizes.tiers > 1 and model is not None and shape.spec.speed is None and shape.ports.up_speed < model.gbps * GBPS:
        found["uplink_speed"] = f"{shape.ports.up_speed // GBPS}Gb/s"
    return found
