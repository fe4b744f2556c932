"""Resolves a Cluster spec into its plan."""

from collections.abc import Iterable, Iterator

from msgspec.structs import replace

from headway.jobspec.plan import ClusterPlan, FailurePlan, GroupPlan, NodePlan, StoragePlan, SwitchPlan
from headway.jobspec.resolve.fabric import resolve_fabric
from headway.jobspec.resolve.fingerprint import fingerprint, values_of
from headway.jobspec.resolve.growth import growing_group, grown_count, grown_values
from headway.jobspec.resolve.inventory import Observed, all_cables
from headway.jobspec.resolve.links import coming_switches, resolve_links, resolve_switches, shape_of
from headway.jobspec.resolve.nodes import resolve_group
from headway.jobspec.spec.cluster import Cluster
from headway.jobspec.spec.fabric import Fabric
from headway.jobspec.spec.inventory import Inventory, ObservedSwitch
from headway.jobspec.spec.nodes import NodeGroup
from headway.jobspec.spec.operation import Failures
from headway.jobspec.spec.storage import Storage

_SSH_PORT = 22


def resolve_cluster(cluster: Cluster, inventories: Iterable[Inventory] = ()) -> ClusterPlan:
    """Return the plan of a cluster that passed its checks, with its inventories."""
    observed = Observed.of(inventories)
    scale_out = next((fabric for fabric in cluster.fabrics if fabric.role == "scale-out"), None)
    groups = tuple(_group(nodes, scale_out, cluster.node_groups) for nodes in cluster.node_groups)
    nodes = tuple(node for spec, group in zip(cluster.node_groups, groups, strict=True) for node in _nodes(spec, group, observed))
    switches = tuple(switch for fabric in cluster.fabrics for switch in _switches(fabric, cluster.node_groups, observed))
    return ClusterPlan(
        name=cluster.name,
        hash=fingerprint(grown_values(cluster, values_of(cluster))),
        scheduler=cluster.scheduler.kind,
        provider=cluster.provider.kind if cluster.provider else None,
        groups=groups,
        nodes=nodes,
        fabrics=tuple(resolve_fabric(fabric, cluster.node_groups) for fabric in cluster.fabrics),
        switches=switches,
        links=tuple(resolve_links(switches, {node.name for node in nodes})),
        storage=tuple(_storage(storage) for storage in cluster.storage),
        versions={name: version for name, version in cluster.versions.model_dump().items() if version is not None},
        failures=_failures(cluster.failures),
        coming=tuple(
            switch
            for fabric in cluster.fabrics
            if fabric.switches is not None
            for switch in coming_switches(shape_of(fabric, cluster.node_groups))
        ),
    )


def _group(nodes: NodeGroup, scale_out: Fabric | None, groups: tuple[NodeGroup, ...]) -> GroupPlan:
    """Return the group, with the nodes that it grows to on the fabric between them."""
    group = resolve_group(nodes, None if scale_out is None else scale_out.name)
    if scale_out is None or growing_group(scale_out, groups) is not nodes:
        return group
    return replace(group, grow_to=grown_count(scale_out, groups))


def _nodes(spec: NodeGroup, group: GroupPlan, observed: Observed) -> Iterator[NodePlan]:
    for index in range(group.count):
        name = f"{group.name}-{index + 1}"
        found = observed.nodes.get(name)
        listed = spec.hosts[index] if index < len(spec.hosts) else None
        host, port = _reached_at(found.host or listed if found else listed)
        yield NodePlan(name, group.name, index, host, port, group.nics, found.serial if found else None)


def _switches(fabric: Fabric, groups: tuple[NodeGroup, ...], observed: Observed) -> Iterator[SwitchPlan]:
    """Yield the fabric's switches, where it has some, with what was observed of them."""
    if fabric.switches is None:
        return
    shape = shape_of(fabric, groups)
    for switch in resolve_switches(shape, tuple(all_cables(shape, fabric, groups, observed))):
        yield _as_observed(switch, observed.switches.get(switch.name))


def _as_observed(switch: SwitchPlan, found: ObservedSwitch | None) -> SwitchPlan:
    host, port = _reached_at(found.host if found else None)
    return replace(switch, host=host, ssh_port=port, serial=found.serial, guid=found.guid) if found else switch


def _reached_at(host: str | None) -> tuple[str | None, int]:
    """Return the address of an SSH server and its port."""
    name, _, port = (host or "").partition(":")
    return name or None, int(port or _SSH_PORT)


def _storage(storage: Storage) -> StoragePlan:
    return StoragePlan(
        name=storage.name,
        kind=storage.kind,
        path=storage.path,
        url=storage.url,
        shared=storage.shared or storage.kind == "object",
        groups=storage.groups,
        write_bytes_s=storage.write,
        read_bytes_s=storage.read,
        capacity_bytes=storage.capacity,
    )


def _failures(failures: Failures) -> FailurePlan:
    return FailurePlan(failures.node_mtbf, failures.job_mtbf, failures.rack_mtbf, failures.repair)
