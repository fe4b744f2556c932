"""Renders a node's files by their absolute paths: `headway-qos`, which sets up its adapters, the systemd unit that runs it, and settings of
systemd-networkd that keep it from deleting what the script has set.

The adapters of each further fabric have a separate script and unit, which are named after it: `headway-qos-storage`.

The files of the kernel and of mlx5: torvalds/linux Documentation/ABI/stable/sysfs-class-infiniband,
ABI/testing/configfs-rdma_cm, drivers/infiniband/hw/mlx5/cong.c; man dcb-app, dcb-pfc (iproute2).
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath

from headway.jobspec.catalog.nics import is_configured
from headway.jobspec.plan import ClusterPlan, FabricPlan, NodePlan
from headway.templates.kind import Files
from headway.templates.shell import Shell, render_shell

SCRIPT = PurePosixPath("/usr/local/sbin/headway-qos")
UNIT = PurePosixPath("/etc/systemd/system/headway-qos.service")
NETWORKD = PurePosixPath("/etc/systemd/networkd.conf.d/90-headway-qos.conf")
# Of a script: the scale-out fabric has the one without a name behind it.
_NAME = re.compile(rf"{SCRIPT.name}(-[a-z0-9-]+)?")


# Of the adapters; the largest that drivers and switches agree on, and enough for RDMA packets of 4096 bytes.
_MTU = 9000
# Numbers of routing tables, and priorities of their rules: one for each adapter, from here on.
_FIRST_TABLE = 1000


@dataclass(frozen=True)
class _Address:
    """An adapter's end of its link, and the leaf's."""

    adapter: str
    address: str
    gateway: str
    table: int


def is_script(name: str) -> bool:
    """Return whether a script of headway's has this name: that of the scale-out fabric, or of another one."""
    return name.startswith(SCRIPT.name) and _NAME.fullmatch(name) is not None


def render_host(node: NodePlan, cluster: ClusterPlan) -> Files:
    """Return the node's files."""
    return {path: make() for path, make in host_files(node, cluster).items()}


def host_files(node: NodePlan, cluster: ClusterPlan) -> Mapping[PurePosixPath, Callable[[], str]]:
    """Return what makes each of the node's files; none of a fabric that plans neither classes nor addresses for its adapters, and none if
    another driver than mlx5 has them."""
    files: dict[PurePosixPath, Callable[[], str]] = {}
    units: tuple[str, ...] = ()
    # The scale-out fabric is the first, so that its unit waits for no other.
    fabrics = sorted(cluster.fabrics, key=lambda fabric: fabric != cluster.scale_out)
    ends = cluster.link_addresses.get(node.name, {})
    for fabric in fabrics if is_configured(cluster.group(node.group).nic) else ():
        adapters = cluster.nics_on(node, fabric.name)
        if adapters and (fabric.qos is not None or fabric.addresses is not None):
            ending = "" if fabric == cluster.scale_out else f"-{fabric.name}"
            script = SCRIPT.with_name(f"{SCRIPT.name}{ending}")
            unit = UNIT.with_name(f"{script.name}{UNIT.suffix}")
            files[script] = partial(_script, node, cluster, fabric, adapters)
            files[unit] = partial(_unit, cluster, fabric, script, units)
            units = (*units, unit.name)
            if not ends.keys().isdisjoint(adapters):
                files[NETWORKD] = partial(_networkd, cluster)
    return files


def _networkd(cluster: ClusterPlan) -> str:
    return render_shell(Path(__file__).parent / "networkd.conf.j2", cluster=cluster)


def _script(node: NodePlan, cluster: ClusterPlan, fabric: FabricPlan, adapters: tuple[str, ...]) -> str:
    is_other, qos = fabric != cluster.scale_out, fabric.qos
    marked = [each for each in (qos.classes if qos else ()) if each.ecn]
    return render_shell(
        Path(__file__).parent / "headway-qos.j2",
        node=node,
        cluster=cluster,
        fabric=fabric,
        is_other=is_other,
        is_first=not is_other,
        what="Addresses, routes and QoS" if qos or not is_other else "Addresses and routes",
        unit=f"{SCRIPT.name}-{fabric.name}" if is_other else SCRIPT.name,
        program=Shell(f"{SCRIPT.name}-$fabric" if is_other else SCRIPT.name),
        mtu=_MTU,
        with_qos=adapters if qos else (),
        addressed=list(_addresses(node, cluster, adapters)),
        qos=qos,
        classes=qos.classes if qos else (),
        lossless=qos.lossless_priorities if qos else (),
        marked=marked,
        rdma=qos.rdma if qos else None,
        has_optional_files=bool(marked or (qos and qos.rdma)),
        cnp=qos.carrying("cnp") if qos else None,
    )


def _addresses(node: NodePlan, cluster: ClusterPlan, adapters: tuple[str, ...]) -> Iterator[_Address]:
    """Yield the addresses of the adapters on switches whose links are planned."""
    ends = cluster.link_addresses.get(node.name, {})
    every = [*node.nics, *(nic for each in cluster.group(node.group).other_nics or () for nic in each.nics)]
    for adapter in adapters:
        if adapter in ends:
            yield _Address(adapter, *ends[adapter], _FIRST_TABLE + every.index(adapter))


def _unit(cluster: ClusterPlan, fabric: FabricPlan, script: PurePosixPath, others: tuple[str, ...]) -> str:
    is_other = fabric != cluster.scale_out
    return render_shell(
        Path(__file__).parent / "headway-qos.service.j2",
        cluster=cluster,
        fabric=fabric,
        is_other=is_other,
        script=str(script),
        reason="which does not reach its storage" if is_other and not fabric.qos else "whose missing PFC slows every other one",
        name=script.name,
        others=others,
    )
