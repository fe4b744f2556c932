"""Renders a node's files by their absolute paths: `headway-qos`, which sets up its adapters, the systemd unit that runs it, and either
settings of systemd-networkd that keep it from deleting what the script has set, or a file of netplan that has addresses, routes and rules.

The adapters of each further fabric have a separate script, unit and file of netplan, which are named after it: `headway-qos-storage`.

The files of the kernel and of mlx5: torvalds/linux Documentation/ABI/stable/sysfs-class-infiniband,
ABI/testing/configfs-rdma_cm, drivers/infiniband/hw/mlx5/cong.c; man dcb-app, dcb-pfc (iproute2). The words of netplan:
canonical/netplan doc/netplan-yaml.md.
"""

import json
import re
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path, PurePath, PurePosixPath

from msgspec import Struct

from headway.jobspec.catalog.nics import is_configured
from headway.jobspec.plan import ClusterPlan, FabricPlan, NodePlan
from headway.templates.kind import Files
from headway.templates.shell import Shell, comment, render_shell
from headway.templates.template import fill

SCRIPT = PurePosixPath("/usr/local/sbin/headway-qos")
UNIT = PurePosixPath("/etc/systemd/system/headway-qos.service")
NETWORKD = PurePosixPath("/etc/systemd/networkd.conf.d/90-headway-qos.conf")
# After the files of installers and cloud-init: of two that set one key of an interface, the last by name counts.
NETPLAN = PurePosixPath("/etc/netplan/90-headway.yaml")
# Of a script: the scale-out fabric has the one without a name behind it.
_NAME = re.compile(rf"{SCRIPT.name}(-[a-z0-9-]+)?")
_FOLDER = Path(__file__).parent


# Of the adapters; the largest that drivers and switches agree on, and enough for RDMA packets of 4096 bytes.
_MTU = 9000
# Numbers of routing tables, and priorities of their rules: one for each adapter, from here on.
_FIRST_TABLE = 1000


class _Address(Struct, frozen=True):
    """An adapter's end of its link, and the leaf's. `interface` is its network interface, where the cluster file has that."""

    adapter: str
    address: str
    gateway: str
    table: int
    interface: str | None

    @property
    def source(self) -> str:
        """The address without the length of its prefix."""
        return self.address.partition("/")[0]


class _Host(Struct, frozen=True):
    """A node's adapters on one fabric, and its files for them; no `netplan` where the script sets their addresses."""

    node: NodePlan
    cluster: ClusterPlan
    fabric: FabricPlan
    adapters: tuple[str, ...]
    script: PurePosixPath
    netplan: PurePosixPath | None

    @property
    def is_other(self) -> bool:
        return self.fabric != self.cluster.scale_out

    @property
    def addressed(self) -> list[_Address]:
        """The addresses of the adapters on switches whose links are planned."""
        ends, group = self.cluster.link_addresses.get(self.node.name, {}), self.cluster.group(self.node.group)
        every = [*self.node.nics, *(nic for each in group.other_nics or () for nic in each.nics)]
        interfaces = {each.nic: each.interface for each in group.interfaces or ()}
        return [
            _Address(adapter, *ends[adapter], _FIRST_TABLE + every.index(adapter), interfaces.get(adapter))
            for adapter in self.adapters
            if adapter in ends
        ]


def is_script(name: str) -> bool:
    """Return whether a script of headway's has this name: that of the scale-out fabric, or of another one."""
    return name.startswith(SCRIPT.name) and _NAME.fullmatch(name) is not None


def is_netplan(path: PurePath) -> bool:
    """Return whether netplan reads a file of this name: `netplan/NAME.yaml`."""
    return path.suffix == NETPLAN.suffix and path.parent.name == NETPLAN.parent.name


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
    ends, group = cluster.link_addresses.get(node.name, {}), cluster.group(node.group)
    for fabric in fabrics if is_configured(group.nic) else ():
        adapters = cluster.nics_on(node, fabric.name)
        if adapters and (fabric.qos is not None or fabric.addresses is not None):
            ending = "" if fabric == cluster.scale_out else f"-{fabric.name}"
            script, has_address = SCRIPT.with_name(f"{SCRIPT.name}{ending}"), not ends.keys().isdisjoint(adapters)
            unit = UNIT.with_name(f"{script.name}{UNIT.suffix}")
            netplan = NETPLAN.with_stem(f"{NETPLAN.stem}{ending}") if has_address and group.uses_netplan else None
            host = _Host(node, cluster, fabric, adapters, script, netplan)
            files[script] = partial(_script, host)
            files[unit] = partial(_unit, host, units)
            units = (*units, unit.name)
            if netplan is not None:
                files[netplan] = partial(_netplan, host)
            elif has_address:
                files[NETWORKD] = partial(_networkd, cluster)
    return files


def _networkd(cluster: ClusterPlan) -> str:
    return render_shell(_FOLDER / "networkd.conf.j2", cluster=cluster)


def _netplan(host: _Host) -> str:
    values = {"host": host, "mtu": _MTU, "addressed": host.addressed}
    return fill(_FOLDER / "netplan.yaml.j2", _yaml, comment, values)


def _yaml(value: object) -> str:
    """Return a number or a text as YAML, whatever it contains; a comment stays unchanged."""
    return value if isinstance(value, Shell) else json.dumps(value)


def _script(host: _Host) -> str:
    is_other, qos, addresses = host.is_other, host.fabric.qos, host.addressed
    marked = [each for each in (qos.classes if qos else ()) if each.ecn]
    what = "Addresses, routes" if host.netplan is None else "ARP"
    return render_shell(
        _FOLDER / "headway-qos.j2",
        node=host.node,
        cluster=host.cluster,
        fabric=host.fabric,
        is_other=is_other,
        is_first=not is_other,
        what=f"{what} and QoS" if qos or not is_other else "Addresses and routes" if host.netplan is None else what,
        unit=f"{SCRIPT.name}-{host.fabric.name}" if is_other else SCRIPT.name,
        program=Shell(f"{SCRIPT.name}-$fabric" if is_other else SCRIPT.name),
        mtu=_MTU,
        netplan=host.netplan and Shell(str(host.netplan)),
        with_qos=host.adapters if qos else (),
        has_addresses=bool(addresses),
        addressed=addresses if host.netplan is None else (),
        expected=() if host.netplan is None else addresses,
        qos=qos,
        classes=qos.classes if qos else (),
        lossless=qos.lossless_priorities if qos else (),
        marked=marked,
        rdma=qos.rdma if qos else None,
        has_optional_files=bool(marked or (qos and qos.rdma)),
        cnp=qos.carrying("cnp") if qos else None,
    )


def _unit(host: _Host, others: tuple[str, ...]) -> str:
    is_other, has_classes = host.is_other, host.fabric.qos is not None
    return render_shell(
        _FOLDER / "headway-qos.service.j2",
        cluster=host.cluster,
        fabric=host.fabric,
        is_other=is_other,
        what="Addresses" if host.netplan is None else "ARP",
        script=str(host.script),
        netplan=host.netplan and Shell(str(host.netplan)),
        reason="which does not reach its storage" if is_other and not has_classes else "whose missing PFC slows every other one",
        name=host.script.name,
        others=others,
    )
