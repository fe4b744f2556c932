"""Checks a Cluster document against itself."""

from collections.abc import Callable, Iterator

from headway.jobspec.check.fabric import check_cabling, check_fabrics, check_scale_out
from headway.jobspec.check.names import check_host, normal_host
from headway.jobspec.check.nodes import check_adapters, check_nodes
from headway.jobspec.check.storage import check_shared, check_storage, check_storage_groups
from headway.jobspec.check.versions import check_gpu_versions, check_nccl_version, check_versions
from headway.jobspec.notation import counted
from headway.jobspec.parse import Parsed
from headway.jobspec.problem import CLUSTER, Problem, Severity
from headway.jobspec.spec.cluster import Cluster


def check_cluster(cluster: Parsed[Cluster]) -> Iterator[Problem]:
    """Yield every problem of the sections that are valid by themselves."""
    for needs, check in _RULES:
        if cluster.has(needs):
            yield from check(cluster.spec)


def _check_hosts(cluster: Cluster) -> Iterator[Problem]:
    taken: dict[str, str] = {}
    for index, nodes in enumerate(cluster.nodes):
        for place, host in enumerate(nodes.hosts):
            yield from check_host(CLUSTER, ("nodes", index, "hosts", place), host)
            other = taken.setdefault(normal_host(host), f"{nodes.group}-{place + 1}")
            if other != f"{nodes.group}-{place + 1}":
                message = f"`{host}` is already the address of the node `{other}`"
                yield Problem("HW209", CLUSTER, ("nodes", index, "hosts", place), message, "give each node its own address")
    for index, nodes in enumerate(cluster.nodes):
        if nodes.hosts and len(nodes.hosts) != nodes.count:
            message = f"the group `{nodes.group}` has {counted(nodes.count, 'node')}, but `hosts` lists {len(nodes.hosts)}"
            yield Problem("HW512", CLUSTER, ("nodes", index, "hosts"), message, "list one address for each node", at_key=True)


def _check_pending(cluster: Cluster) -> Iterator[Problem]:
    if cluster.health is not None:
        message = "`health` is not implemented yet: nodes are neither checked nor excluded"
        hint = "let the scheduler check the nodes, for example by Slurm's `HealthCheckProgram`"
        yield Problem("HW214", CLUSTER, ("health",), message, hint, Severity.WARNING, at_key=True)


_Rule = Callable[[Cluster], Iterator[Problem]]
_RULES: tuple[tuple[tuple[str, ...], _Rule], ...] = (
    (("nodes",), check_nodes),
    (("fabrics",), check_fabrics),
    (("fabrics", "nodes"), check_adapters),
    (("fabrics", "nodes"), check_scale_out),
    (("fabrics", "nodes"), check_cabling),
    (("nodes",), _check_hosts),
    (("storage",), check_storage),
    (("storage", "nodes"), check_storage_groups),
    (("scheduler", "storage", "nodes"), check_shared),
    (("versions",), check_versions),
    (("versions", "nodes"), check_gpu_versions),
    (("versions", "nodes", "fabrics"), check_nccl_version),
    (("health",), _check_pending),
)
