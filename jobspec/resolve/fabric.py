"""Resolves a fabric's spec into its plan: open settings follow from its classes, its switches and the adapters on it."""

from collections import Counter
from collections.abc import Sequence

from headway.jobspec.plan import FabricPlan
from headway.jobspec.resolve.links import nodes_per_leaf, rails_of
from headway.jobspec.resolve.nodes import adapters_on
from headway.jobspec.resolve.qos import congestion_of, resolve_qos
from headway.jobspec.spec.fabric import Fabric, Switches
from headway.jobspec.spec.nodes import NodeGroup

# The shape of every fabric that headway plans switches for (resolve/links.py).
SWITCHED_SHAPE = "rail-optimized"


def resolve_fabric(fabric: Fabric, groups: Sequence[NodeGroup]) -> FabricPlan:
    """Return the fabric with every default filled in; `groups` are the cluster's nodes."""
    switches = fabric.switches
    return FabricPlan(
        name=fabric.name,
        role=fabric.role,
        transport=fabric.transport,
        shape=fabric.shape or (SWITCHED_SHAPE if switches else None),
        rails=rails_of(fabric, groups) or 1,
        planes=fabric.planes,
        pods=fabric.pods,
        leaf_oversubscription=leaf_oversubscription(fabric, switches, groups) if switches else fabric.oversubscription.leaf,
        spine_oversubscription=fabric.oversubscription.spine,
        congestion=fabric.congestion or congestion_of(fabric.classes),
        balancing=fabric.balancing,
        interface=fabric.interface,
        qos=resolve_qos(fabric.classes) if fabric.classes else None,
        addresses=switches.addresses if switches else None,
        os=tuple(choice.kind for choice in switches.os) if switches else (),
        switch_model=switches.model if switches else None,
    )


def leaf_oversubscription(fabric: Fabric, switches: Switches, groups: Sequence[NodeGroup]) -> float:
    """Return links between nodes and the fullest leaf, over those between it and the spines of its plane; 1 where these
    are not fewer."""
    down, up = leaf_links(fabric, switches, groups)
    return max(1.0, down / up)


def leaf_links(fabric: Fabric, switches: Switches, groups: Sequence[NodeGroup]) -> tuple[int, int]:
    """Return how many links the fullest leaf has to nodes and to spines."""
    of_rail: Counter[int] = Counter()
    for group in groups:
        of_rail.update(dict.fromkeys(adapters_on(group, fabric).values(), group.count))
    return min(max(of_rail.values(), default=0), nodes_per_leaf(switches)), max(
        1, switches.spines // fabric.planes
    ) * switches.uplinks
