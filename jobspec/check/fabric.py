"""Fabrics: each setting fits its transport, each transport its role, and the nodes have what it needs."""

from collections.abc import Iterator

from headway.jobspec.check.names import check_unique
from headway.jobspec.check.qos import check_classes
from headway.jobspec.check.switches import check_switches, in_network
from headway.jobspec.document import Path
from headway.jobspec.problem import CLUSTER, Problem, Severity
from headway.jobspec.spec.cluster import Cluster
from headway.jobspec.spec.fabric import Fabric, Switches

_RDMA = ("roce", "infiniband")


def check_fabrics(cluster: Cluster) -> Iterator[Problem]:
    """Each fabric by itself."""
    yield from check_unique(CLUSTER, ("fabrics",), "name", [fabric.name for fabric in cluster.fabrics])
    for index, fabric in enumerate(cluster.fabrics):
        path = ("fabrics", index)
        yield from _check_fabric(path, fabric)
        yield from check_classes((*path, "classes"), fabric.classes)


def check_cabling(cluster: Cluster) -> Iterator[Problem]:
    """The switches have the ports and addresses for the nodes. Adapters do not say which fabric they are on, so one has switches."""
    switched = [(index, fabric.switches) for index, fabric in enumerate(cluster.fabrics) if fabric.switches is not None]
    for index, switches in switched:
        yield from check_switches(("fabrics", index, "switches"), switches, cluster.nodes)
        yield from _check_hosts_apart(switches, cluster)
    for index, _ in switched[1:]:
        message = f"the nodes' adapters hang on the switches of `{cluster.fabrics[switched[0][0]].name}` already"
        hint = "only one fabric of a cluster can have `switches` so far"
        yield Problem("HW514", CLUSTER, ("fabrics", index, "switches"), message, hint, at_key=True)


def _check_hosts_apart(switches: Switches, cluster: Cluster) -> Iterator[Problem]:
    """Nodes are reached over SSH by addresses of another network than the fabric's."""
    hosts = [(group, place, host) for group, nodes in enumerate(cluster.nodes) for place, host in enumerate(nodes.hosts)]
    for group, place, host in hosts:
        if in_network(host.partition(":")[0], switches.addresses):
            message = f"`{host}` is of {switches.addresses}, the network of the fabric's links"
            hint = "give the fabric's switches `addresses` of their own, or the host the address of another interface"
            yield Problem("HW511", CLUSTER, ("nodes", group, "hosts", place), message, hint)


def check_adapters(cluster: Cluster) -> Iterator[Problem]:
    """GPU nodes on an RDMA fabric name their adapters."""
    rdma = [fabric for fabric in cluster.fabrics if fabric.role == "scale_out" and fabric.transport in _RDMA]
    for index, nodes in enumerate(cluster.nodes):
        if rdma and nodes.gpus and not nodes.nics:
            message = f"the fabric `{rdma[0].name}` is {rdma[0].transport}, and the nodes `{nodes.group}` name no adapter"
            hint = "list what `ibv_devices` prints on a node, for example `nics: [mlx5_0, mlx5_1]`"
            yield Problem("HW502", CLUSTER, ("nodes", index), message, hint)


def check_scale_out(cluster: Cluster) -> Iterator[Problem]:
    """GPU nodes, more than one, have a fabric between them."""
    has_fabric = any(fabric.role == "scale_out" for fabric in cluster.fabrics)
    for index, nodes in enumerate(cluster.nodes):
        if nodes.gpus and nodes.count > 1 and not has_fabric:
            message = f"no fabric has the role `scale_out`, so NCCL chooses the network between the nodes `{nodes.group}` itself"
            hint = "add it to `fabrics`, for example `{name: rails, role: scale_out, transport: infiniband}`"
            yield Problem("HW601", CLUSTER, ("nodes", index), message, hint, Severity.WARNING)


def _check_fabric(path: Path, fabric: Fabric) -> Iterator[Problem]:
    name, transport = fabric.name, fabric.transport
    if (transport == "nvlink") != (fabric.role == "scale_up"):
        message = f"the fabric `{name}` is {transport}, which does not fit the role `{fabric.role}`"
        yield Problem("HW503", CLUSTER, (*path, "transport"), message, "`nvlink` is for `scale_up`, and `scale_up` is `nvlink`")
    if transport == "roce" and fabric.role == "scale_out" and not any(each.carries == "collectives" for each in fabric.classes):
        hint = "say how its packets are marked, for example `classes: [{name: roce, carries: collectives, dscp: 26, lossless: true}]`"
        yield Problem("HW501", CLUSTER, path, f"the RoCE fabric `{name}` has no class that carries collectives", hint)
    if transport == "tcp" and fabric.interface is None:
        hint = "name what `ip link` prints, for example `interface: eth0`"
        yield Problem("HW505", CLUSTER, path, f"the TCP fabric `{name}` has no `interface`", hint)
    yield from _check_foreign(path, fabric)


def _check_foreign(path: Path, fabric: Fabric) -> Iterator[Problem]:
    """Settings that only another transport has."""
    for key, owner in (("classes", "roce"), ("switches", "roce"), ("interface", "tcp")):
        if getattr(fabric, key) and fabric.transport != owner:
            message = f"`{key}` has no effect on the {fabric.transport} fabric `{fabric.name}`"
            yield Problem("HW504", CLUSTER, (*path, key), message, f"leave it out, or set `transport: {owner}`", at_key=True)
