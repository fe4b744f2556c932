"""A Cluster spec as its plan."""

from headway.jobspec.plan import ClusterPlan, FabricPlan, GroupPlan, StoragePlan
from headway.jobspec.resolve.fingerprint import fingerprint
from headway.jobspec.spec.cluster import Cluster, NodeGroup


def resolve_cluster(cluster: Cluster) -> ClusterPlan:
    """The plan of a cluster that passed its checks."""
    return ClusterPlan(
        name=cluster.name,
        hash=fingerprint(cluster),
        scheduler=cluster.scheduler.kind,
        groups=tuple(_group(nodes) for nodes in cluster.nodes),
        fabrics=tuple(FabricPlan(**fabric.model_dump()) for fabric in cluster.fabrics),
        storage=tuple(StoragePlan(**storage.model_dump()) for storage in cluster.storage),
    )


def procs_per_node(nodes: NodeGroup) -> int:
    """Ranks of one node: one a GPU, else what the group says."""
    return nodes.gpus or nodes.procs or 1


def _group(nodes: NodeGroup) -> GroupPlan:
    return GroupPlan(
        name=nodes.group,
        count=nodes.count,
        cpus=nodes.cpus,
        procs=procs_per_node(nodes),
        gpu=nodes.gpu,
        gpus=nodes.gpus or 0,
        nics=nodes.nics,
    )
