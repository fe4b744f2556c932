"""A Cluster spec as its plan."""

from collections.abc import Iterator

from headway.jobspec.plan import ClusterPlan, FabricPlan, GroupPlan, NodePlan, StoragePlan
from headway.jobspec.resolve.fingerprint import fingerprint
from headway.jobspec.resolve.links import resolve_links, resolve_switches
from headway.jobspec.resolve.qos import resolve_qos
from headway.jobspec.spec.cluster import Cluster, NodeGroup
from headway.jobspec.spec.fabric import Fabric

_SSH_PORT = 22


def resolve_cluster(cluster: Cluster) -> ClusterPlan:
    """The plan of a cluster that passed its checks."""
    nodes = tuple(node for group in cluster.nodes for node in _nodes(group))
    switched = [fabric for fabric in cluster.fabrics if fabric.switches is not None]
    switches = tuple(switch for fabric in switched for switch in resolve_switches(fabric, nodes))
    return ClusterPlan(
        name=cluster.name,
        hash=fingerprint(cluster),
        scheduler=cluster.scheduler.kind,
        provider=cluster.provider.kind if cluster.provider else None,
        groups=tuple(_group(nodes) for nodes in cluster.nodes),
        nodes=nodes,
        fabrics=tuple(_fabric(fabric) for fabric in cluster.fabrics),
        switches=switches,
        links=tuple(resolve_links(switches)),
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


def _nodes(group: NodeGroup) -> Iterator[NodePlan]:
    for index in range(group.count):
        host, _, port = group.hosts[index].partition(":") if index < len(group.hosts) else ("", "", "")
        name = f"{group.group}-{index + 1}"
        yield NodePlan(name, group.group, index, host or None, int(port or _SSH_PORT), group.nics)


def _fabric(fabric: Fabric) -> FabricPlan:
    return FabricPlan(
        name=fabric.name,
        role=fabric.role,
        transport=fabric.transport,
        interface=fabric.interface,
        qos=resolve_qos(fabric.classes) if fabric.classes else None,
        addresses=fabric.switches.addresses if fabric.switches else None,
        os=tuple(choice.kind for choice in fabric.switches.os) if fabric.switches else (),
    )
