"""Resolves a fabric's spec into its plan: open settings follow from its classes, its switches and the adapters on it."""

from collections import Counter
from collections.abc import Sequence

from headway.jobspec.plan import FabricPlan
from headway.jobspec.resolve.nodes import adapters_on
from headway.jobspec.resolve.qos import congestion_of, resolve_qos
from headway.jobspec.resolve.sizes import Sizes, are_counted, ports_and_speeds, rails_of, sizes_of
from headway.jobspec.spec.fabric import Fabric
from headway.jobspec.spec.nodes import NodeGroup

# Shapes of the fabrics that headway plans switches for (resolve/sizes.py).
SWITCHED_SHAPES = ("rail-optimized", "rail-only", "leaf-spine", "fat-tree")


def resolve_fabric(fabric: Fabric, groups: Sequence[NodeGroup]) -> FabricPlan:
    """Return the fabric with every default filled in; `groups` are the cluster's nodes."""
    switches = fabric.switches
    sizes = sizes_of(fabric, groups) if switches else None
    is_routed = switches is not None and fabric.transport != "infiniband"
    return FabricPlan(
        name=fabric.name,
        role=fabric.role,
        transport=fabric.transport,
        shape=fabric.shape or (shape_name(sizes) if sizes else None),
        rails=rails_of(fabric, groups) or 1,
        planes=sizes.planes if sizes else fabric.planes,
        pods=sizes.pods if sizes and not are_counted(fabric) else fabric.pods,
        leaf_oversubscription=leaf_oversubscription(fabric, groups) if sizes else fabric.oversubscription.leaf,
        spine_oversubscription=spine_oversubscription(sizes) if sizes else fabric.oversubscription.spine,
        congestion=fabric.congestion or congestion_of(fabric.classes),
        balancing=fabric.balancing,
        interface=fabric.interface,
        qos=resolve_qos(fabric.classes, fabric.role) if fabric.classes else None,
        addresses=switches.addresses if switches and is_routed else None,
        os=tuple(choice.kind for choice in switches.os) if switches else (),
        switch_model=switches.model if switches else None,
        sharp=fabric.sharp,
        service_level=fabric.service_level,
    )


def shape_name(sizes: Sizes) -> str:
    """Return the shape that derived sizes have where the document states none."""
    return "leaf-spine" if sizes.rails > 1 and sizes.width == sizes.planes < sizes.rails else "rail-optimized"


def leaf_oversubscription(fabric: Fabric, groups: Sequence[NodeGroup]) -> float:
    """Return the speed of all links between nodes and the fullest leaf, over that of its links to spines; 1 where these are not slower
    and where there are no spines."""
    down, up = leaf_links(fabric, groups)
    ports = ports_and_speeds(fabric, groups)
    return max(1.0, down * ports.speed / (up * ports.up_speed)) if up else 1.0


def spine_oversubscription(sizes: Sizes) -> float:
    """Return links between leaves and a spine whose pod is complete, over those to cores; 1 where these are not fewer."""
    return max(1.0, sizes.spine_down / sizes.spine_up) if sizes.spine_up else 1.0


def leaf_links(fabric: Fabric, groups: Sequence[NodeGroup]) -> tuple[int, int]:
    """Return how many links the fullest leaf has to nodes and to spines."""
    sizes = sizes_of(fabric, groups)
    of_rail: Counter[int] = Counter()
    for group in groups:
        of_rail.update(dict.fromkeys(adapters_on(group, fabric).values(), group.count))
    of_leaf: Counter[int] = Counter()
    for rail, count in of_rail.items():
        of_leaf[sizes.leaf_of_rail(rail)] += min(count, sizes.unit)
    up = sizes.leaf_up if sizes.tiers > 1 else 0
    return max(of_leaf.values(), default=0), up
