"""Checks a Cluster document against itself."""

from collections.abc import Callable, Iterator

from headway.jobspec.check.fabric import check_cabling, check_fabrics, check_providers_script, check_scale_out
from headway.jobspec.check.names import check_host, normal_host
from headway.jobspec.check.nodes import check_adapters, check_nodes
from headway.jobspec.check.storage import check_shared, check_storage, check_storage_groups
from headway.jobspec.check.versions import check_gpu_versions, check_nccl_version, check_versions
from headway.jobspec.notation import counted, write_duration
from headway.jobspec.parse import Parsed
from headway.jobspec.problem import CLUSTER, Problem, Severity
from headway.jobspec.spec.cluster import Cluster

# Published clusters have months; an hour is a wrong unit.
_SHORTEST_MTBF_S = 3600.0
# Broken nodes are back within days, or weeks where parts are sent.
_USUAL_REPAIR_S = 14 * 86400.0


def check_cluster(cluster: Parsed[Cluster]) -> Iterator[Problem]:
    """Yield every problem of the sections that are valid by themselves."""
    for needs, check in _RULES:
        if cluster.has(needs):
            yield from check(cluster.spec)


def _check_hosts(cluster: Cluster) -> Iterator[Problem]:
    taken: dict[str, str] = {}
    for index, nodes in enumerate(cluster.node_groups):
        for place, host in enumerate(nodes.hosts):
            yield from check_host(CLUSTER, ("node_groups", index, "hosts", place), host)
            other = taken.setdefault(normal_host(host), f"{nodes.name}-{place + 1}")
            if other != f"{nodes.name}-{place + 1}":
                message = f"`{host}` is already the address of the node `{other}`"
                yield Problem("HW209", CLUSTER, ("node_groups", index, "hosts", place), message, "give each node its own address")
    for index, nodes in enumerate(cluster.node_groups):
        if nodes.hosts and len(nodes.hosts) != nodes.count:
            message = f"the group `{nodes.name}` has {counted(nodes.count, 'node')}, but `hosts` lists {len(nodes.hosts)}"
            yield Problem(
                "HW512", CLUSTER, ("node_groups", index, "hosts"), message, "list one address for each node", at_key=True
            )


def _check_failures(cluster: Cluster) -> Iterator[Problem]:
    """Warn about rates at which no job makes progress: the unit is wrong, or the two are exchanged."""
    mtbf_s, repair_s = cluster.failures.node_mtbf, cluster.failures.repair
    if mtbf_s is not None and mtbf_s < _SHORTEST_MTBF_S:
        message = (
            f"a job of 100 nodes that fail every {write_duration(mtbf_s)} is interrupted every {write_duration(mtbf_s / 100)}"
        )
        hint = "set the mean time between failures of one node, for example `300d`"
        yield Problem("HW241", CLUSTER, ("failures", "node_mtbf"), message, hint, Severity.WARNING)
    elif mtbf_s is not None and repair_s is not None and repair_s > mtbf_s:
        message = f"nodes that fail every {write_duration(mtbf_s)} and take {write_duration(repair_s)} to repair are down most of the time"
        # A longer time between failures than that is usual, and so is a repair of days: the shorter one has the wrong unit.
        if repair_s <= _USUAL_REPAIR_S:
            hint = "set the mean time between failures of one node, for example `300d`"
            yield Problem("HW241", CLUSTER, ("failures", "node_mtbf"), message, hint, Severity.WARNING)
            return
        hint = "set the mean time until a lost node is back, for example `1d`"
        yield Problem("HW241", CLUSTER, ("failures", "repair"), message, hint, Severity.WARNING)


def _check_pending(cluster: Cluster) -> Iterator[Problem]:
    if cluster.health is not None:
        message = "`health` is not implemented yet: nodes are neither checked nor excluded"
        hint = "leave `health` out; on Slurm, `node_check` of `scheduler.options` drains nodes"
        yield Problem("HW214", CLUSTER, ("health",), message, hint, Severity.WARNING, at_key=True)


_Rule = Callable[[Cluster], Iterator[Problem]]
_RULES: tuple[tuple[tuple[str, ...], _Rule], ...] = (
    (("node_groups",), check_nodes),
    (("fabrics",), check_fabrics),
    (("fabrics", "node_groups"), check_adapters),
    (("fabrics", "node_groups"), check_scale_out),
    (("fabrics", "node_groups", "scheduler"), check_providers_script),
    (("fabrics", "node_groups"), check_cabling),
    (("node_groups",), _check_hosts),
    (("storage",), check_storage),
    (("storage", "node_groups"), check_storage_groups),
    (("scheduler", "storage", "node_groups"), check_shared),
    (("versions",), check_versions),
    (("versions", "node_groups"), check_gpu_versions),
    (("versions", "node_groups", "fabrics"), check_nccl_version),
    (("failures",), _check_failures),
    (("health",), _check_pending),
)
