"""Renders a node's files by their absolute paths: `headway-qos`, which sets up its adapters, and the systemd unit that runs it.

The files of the kernel and of mlx5: torvalds/linux Documentation/ABI/stable/sysfs-class-infiniband,
ABI/testing/configfs-rdma_cm, drivers/infiniband/hw/mlx5/cong.c; man dcb-app, dcb-pfc (iproute2).
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath

from headway.jobspec.catalog.nics import is_configured
from headway.jobspec.plan import ClusterPlan, FabricPlan, NodePlan, QosPlan
from headway.templates.kind import Files
from headway.templates.shell import render_shell

SCRIPT = PurePosixPath("/usr/local/sbin/headway-qos")
UNIT = PurePosixPath("/etc/systemd/system/headway-qos.service")


# Of the adapters; the largest that drivers and switches agree on, and enough for RDMA packets of 4096 bytes.
_MTU = 9000
# Numbers of routing tables, and priorities of their rules: one for each rail, from here on.
_FIRST_TABLE = 1000


@dataclass(frozen=True)
class _Address:
    """An adapter's end of its link, and the leaf's."""

    adapter: str
    address: str
    gateway: str
    table: int


def render_host(node: NodePlan, cluster: ClusterPlan) -> Files:
    """Return the node's files."""
    return {path: make() for path, make in host_files(node, cluster).items()}


def host_files(node: NodePlan, cluster: ClusterPlan) -> Mapping[PurePosixPath, Callable[[], str]]:
    """Return what makes each of the node's files; none if no class of traffic is planned for its adapters, or if another driver than mlx5
    has them."""
    fabric = cluster.scale_out
    if fabric is None or fabric.qos is None or not node.nics or not is_configured(cluster.group(node.group).nic):
        return {}
    return {SCRIPT: partial(_script, node, cluster, fabric, fabric.qos), UNIT: partial(_unit, cluster)}


def _script(node: NodePlan, cluster: ClusterPlan, fabric: FabricPlan, qos: QosPlan) -> str:
    return render_shell(
        Path(__file__).parent / "headway-qos.j2",
        node=node,
        cluster=cluster,
        fabric=fabric,
        mtu=_MTU,
        addressed=list(_addresses(node, cluster)),
        classes=qos.classes,
        lossless=qos.lossless_priorities,
        marked=[each for each in qos.classes if each.ecn],
        collectives=qos.carrying("collectives"),
        cnp=qos.carrying("cnp"),
    )


def _addresses(node: NodePlan, cluster: ClusterPlan) -> Iterator[_Address]:
    """Yield the addresses of the node's adapters on switches whose links are planned."""
    ends = cluster.link_addresses.get(node.name, {})
    for index, adapter in enumerate(node.nics):
        if adapter in ends:
            yield _Address(adapter, *ends[adapter], _FIRST_TABLE + index)


def _unit(cluster: ClusterPlan) -> str:
    return render_shell(Path(__file__).parent / "headway-qos.service.j2", cluster=cluster, script=str(SCRIPT))
