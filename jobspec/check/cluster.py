"""A Cluster document against itself."""

from collections.abc import Callable, Iterator

from headway.jobspec.check.fabric import check_adapters, check_cabling, check_fabrics, check_scale_out
from headway.jobspec.check.names import check_unique, is_host
from headway.jobspec.parse import Parsed
from headway.jobspec.problem import CLUSTER, Problem
from headway.jobspec.spec.cluster import Cluster, NodeGroup


def check_cluster(cluster: Parsed[Cluster]) -> Iterator[Problem]:
    """Every problem of the sections that are valid by themselves."""
    for needs, check in _RULES:
        if cluster.has(needs):
            yield from check(cluster.spec)


def _check_names(cluster: Cluster) -> Iterator[Problem]:
    yield from check_unique(CLUSTER, ("nodes",), "group", [nodes.group for nodes in cluster.nodes])


def _check_groups(cluster: Cluster) -> Iterator[Problem]:
    for index, nodes in enumerate(cluster.nodes):
        yield from _check_group(("nodes", index), nodes)


def _check_group(path: tuple[str | int, ...], nodes: NodeGroup) -> Iterator[Problem]:
    if nodes.gpus is not None and nodes.procs is not None:
        hint = "leave `procs` out: each GPU runs one rank"
        yield Problem("HW210", CLUSTER, (*path, "procs"), "`procs` stands beside `gpus`", hint, at_key=True)
    if nodes.gpu is not None and nodes.gpus is None:
        hint = "say how many one node has, for example `gpus: 8`"
        yield Problem("HW210", CLUSTER, (*path, "gpu"), "`gpu` stands without `gpus`", hint, at_key=True)
    if nodes.gpus is not None and nodes.gpu is None:
        hint = "name the model, for example `gpu: H100-SXM-80`"
        yield Problem("HW210", CLUSTER, (*path, "gpus"), "`gpus` stands without `gpu`", hint, at_key=True)


def _check_adapters_apart(cluster: Cluster) -> Iterator[Problem]:
    for index, nodes in enumerate(cluster.nodes):
        yield from check_unique(CLUSTER, ("nodes", index, "nics"), None, nodes.nics)


def _check_hosts(cluster: Cluster) -> Iterator[Problem]:
    taken: dict[str, str] = {}
    for index, nodes in enumerate(cluster.nodes):
        for place, host in enumerate(nodes.hosts):
            if not is_host(host):
                message = f"`{host}` is neither a host name nor an IPv4 address, with a port from 1 to 65535 if with one"
                hint = "write it as `10.0.0.11`, `gpu1.example.com` or `gpu1:2222`"
                yield Problem("HW512", CLUSTER, ("nodes", index, "hosts", place), message, hint)
            other = taken.setdefault(host, f"{nodes.group}-{place + 1}")
            if other != f"{nodes.group}-{place + 1}":
                message = f"`{host}` is the node `{other}` already"
                yield Problem("HW209", CLUSTER, ("nodes", index, "hosts", place), message, "give each node its own address")
    for index, nodes in enumerate(cluster.nodes):
        if nodes.hosts and len(nodes.hosts) != nodes.count:
            message = f"the group `{nodes.group}` has {nodes.count} nodes, and `hosts` lists {len(nodes.hosts)}"
            yield Problem("HW512", CLUSTER, ("nodes", index, "hosts"), message, "list one address for each node", at_key=True)
    if cluster.provider is not None and not any(nodes.hosts for nodes in cluster.nodes):
        message = "a provider, and no node says by which address it is reached"
        yield Problem("HW512", CLUSTER, ("provider",), message, "add `hosts` to a group of nodes", at_key=True)


def _check_storage_names(cluster: Cluster) -> Iterator[Problem]:
    yield from check_unique(CLUSTER, ("storage",), "name", [storage.name for storage in cluster.storage])


def _check_shared_storage(cluster: Cluster) -> Iterator[Problem]:
    if not any(storage.shared for storage in cluster.storage):
        hint = "the runs need a directory that every node sees: set `shared: true` on a storage"
        yield Problem("HW702", CLUSTER, ("storage",), "no storage is shared", hint, at_key=True)


def _check_storage_paths(cluster: Cluster) -> Iterator[Problem]:
    for index, storage in enumerate(cluster.storage):
        if storage.path.startswith("~") or "$" in storage.path:
            message = f"`{storage.path}` would be taken literally: `~` and `$` are not expanded"
            yield Problem("HW703", CLUSTER, ("storage", index, "path"), message, "write the path out")


_Rule = Callable[[Cluster], Iterator[Problem]]
_RULES: tuple[tuple[tuple[str, ...], _Rule], ...] = (
    (("nodes",), _check_names),
    (("nodes",), _check_groups),
    (("fabrics",), check_fabrics),
    (("fabrics", "nodes"), check_adapters),
    (("fabrics", "nodes"), check_scale_out),
    (("fabrics", "nodes"), check_cabling),
    (("nodes",), _check_adapters_apart),
    (("nodes",), _check_hosts),
    (("storage",), _check_storage_names),
    (("storage",), _check_shared_storage),
    (("storage",), _check_storage_paths),
)
