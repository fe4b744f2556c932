"""Renders what slurmctld and slurmd get of a cluster's plan: its topology, and a check of the nodes. slurm.conf stays the site's."""

import math
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from msgspec import Struct

from headway.jobspec.plan import ClusterPlan, GroupPlan
from headway.jobspec.resolve.placement import USER
from headway.templates.kind import Files
from headway.templates.schedulers.slurm.node_names import compressed, names_in_slurm
from headway.templates.schedulers.slurm.options import SlurmOptions
from headway.templates.schedulers.slurm.topology import topology_conf, topology_yaml
from headway.templates.shell import render_shell

FOLDER = PurePosixPath("slurm")
NODE_CHECK = "node-check"
_TEMPLATE = Path(__file__).parent / "node-check.j2"
_RDMA = ("roce", "infiniband")


class CheckedGroup(Struct, frozen=True):
    """The GPUs, adapters and directories of each node of a group. `names` are the nodes', in Slurm's notation."""

    names: str
    nvidia: int
    amd: int
    adapters: tuple[str, ...]
    folders: tuple[str, ...]


def render_site(options: SlurmOptions, cluster: ClusterPlan) -> Files:
    """Return the files of the cluster's `slurm/`; none where its options ask for none."""
    texts = {"topology.conf": topology_conf(options, cluster), "topology.yaml": topology_yaml(options, cluster)}
    if options.node_check is not None:
        texts[NODE_CHECK] = render_shell(
            _TEMPLATE,
            cluster=cluster,
            groups=list(_checked(options, cluster)),
            most=options.node_check.most_drained,
            limit_s=math.ceil(options.node_check.timeout),
        )
    return {FOLDER / name: text for name, text in texts.items() if text is not None}


def _checked(options: SlurmOptions, cluster: ClusterPlan) -> Iterator[CheckedGroup]:
    names = names_in_slurm(cluster, options.node_names)
    has_rdma = cluster.scale_out is not None and cluster.scale_out.transport in _RDMA
    for group in cluster.groups:
        nodes = compressed(names[node.name] for node in cluster.nodes if node.group == group.name)
        gpus = (0, group.gpus) if group.is_amd else (group.gpus, 0)
        yield CheckedGroup(nodes, *gpus, group.nics if has_rdma else (), tuple(_folders(cluster, group)))


def _folders(cluster: ClusterPlan, group: GroupPlan) -> Iterator[str]:
    """Yield the shared directories of the group's nodes, up to the part that each user has."""
    for storage in cluster.storage:
        if storage.shared and storage.path is not None and (not storage.groups or group.name in storage.groups):
            path = PurePosixPath(storage.path.partition(USER)[0])
            if path.is_absolute() and path != PurePosixPath("/"):
                yield str(path)
