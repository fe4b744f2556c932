"""Decides which nodes come when a fabric grows to `grow_to`: those of one group, whose places are after all other nodes'."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from headway.jobspec.resolve.nodes import adapters_on
from headway.jobspec.spec.cluster import Cluster
from headway.jobspec.spec.fabric import Fabric
from headway.jobspec.spec.nodes import NodeGroup


def growing_group(fabric: Fabric, groups: Sequence[NodeGroup]) -> NodeGroup | None:
    """Return the group that the nodes to come are of: the last one with GPUs on the fabric, else the last one on it; None where the
    fabric is not planned for more nodes than there are."""
    grow_to = None if fabric.switches is None else fabric.switches.grow_to
    attached = [nodes for nodes in groups if adapters_on(nodes, fabric)]
    if grow_to is None or not attached:
        return None
    return next((nodes for nodes in reversed(attached) if nodes.gpus), attached[-1])


def in_places(fabric: Fabric, groups: Sequence[NodeGroup]) -> list[NodeGroup]:
    """Return the groups in the order of their places on the fabric: the one that grows is the last, so that it moves no other."""
    growing = growing_group(fabric, groups)
    return [*(nodes for nodes in groups if nodes is not growing), *(() if growing is None else (growing,))]


def grown_count(fabric: Fabric, groups: Sequence[NodeGroup]) -> int:
    """Return the nodes of the growing group when the fabric has `grow_to` of them; 0 where no group grows."""
    growing = growing_group(fabric, groups)
    if growing is None or fabric.switches is None:
        return 0
    others = sum(nodes.count for nodes in groups if nodes is not growing and adapters_on(nodes, fabric))
    return max(growing.count, (fabric.switches.grow_to or 0) - others)


def grown_values(cluster: Cluster, values: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the document's values at the size that its fabrics may grow to, without the addresses of nodes that come one by one: what
    is planned with the cluster does not change on the way there."""
    counts = _grown_counts(cluster.fabrics, cluster.node_groups)
    groups = [
        {**group, "count": counts[group["name"]], "hosts": []} if group["name"] in counts else group
        for group in values["node_groups"]
    ]
    return {**values, "node_groups": groups}


def _grown_counts(fabrics: Iterable[Fabric], groups: Sequence[NodeGroup]) -> dict[str, int]:
    found: dict[str, int] = {}
    for fabric in fabrics:
        growing = growing_group(fabric, groups)
        if growing is not None:
            found[growing.name] = max(found.get(growing.name, 0), grown_count(fabric, groups))
    return found
