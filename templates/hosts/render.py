"""Renders a node's files by their absolute paths: `headway-qos` and the systemd unit that runs it.

The files of the kernel and of mlx5: torvalds/linux Documentation/ABI/stable/sysfs-class-infiniband,
ABI/testing/configfs-rdma_cm, drivers/infiniband/hw/mlx5/cong.c; man dcb-app, dcb-pfc (iproute2).
"""

from pathlib import Path, PurePosixPath

from headway.jobspec.catalog.nics import is_configured
from headway.jobspec.plan import ClusterPlan, NodePlan, QosPlan
from headway.templates.kind import Files
from headway.templates.shell import render_shell

SCRIPT = PurePosixPath("/usr/local/sbin/headway-qos")
UNIT = PurePosixPath("/etc/systemd/system/headway-qos.service")


def render_host(node: NodePlan, cluster: ClusterPlan) -> Files:
    """Return the node's files; none if no class of traffic is planned for its adapters, or if another driver than mlx5 has them."""
    fabric = cluster.scale_out
    if fabric is None or fabric.qos is None or not node.nics or not is_configured(cluster.group(node.group).nic):
        return {}
    return {SCRIPT: _script(node, cluster, fabric.qos), UNIT: _unit(cluster)}


def _script(node: NodePlan, cluster: ClusterPlan, qos: QosPlan) -> str:
    return render_shell(
        Path(__file__).parent / "headway-qos.j2",
        node=node,
        cluster=cluster,
        classes=qos.classes,
        lossless=qos.lossless_priorities,
        marked=[each for each in qos.classes if each.ecn],
        collectives=qos.carrying("collectives"),
        cnp=qos.carrying("cnp"),
    )


def _unit(cluster: ClusterPlan) -> str:
    return render_shell(Path(__file__).parent / "headway-qos.service.j2", cluster=cluster, script=str(SCRIPT))
