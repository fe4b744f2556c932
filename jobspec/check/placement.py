"""A TrainingJob against a Cluster: nodes, ranks and batch must fit."""

from collections.abc import Callable, Iterator

from headway.jobspec.parse import Parsed
from headway.jobspec.problem import JOB, Problem
from headway.jobspec.resolve.cluster import procs_per_node
from headway.jobspec.resolve.mesh import MeshError, resolve_mesh
from headway.jobspec.spec.cluster import Cluster
from headway.jobspec.spec.job import TrainingJob
from headway.jobspec.spec.layout import Layout


def check_placement(job: Parsed[TrainingJob], cluster: Parsed[Cluster]) -> Iterator[Problem]:
    """Every problem of the sections that are valid by themselves."""
    for job_needs, cluster_needs, check in _RULES:
        if job.has(job_needs) and cluster.has(cluster_needs):
            yield from check(job.spec, cluster.spec)


def _check_nodes(job: TrainingJob, cluster: Cluster) -> Iterator[Problem]:
    group = cluster.nodes[0]
    if job.nodes > group.count:
        message = f"the job wants {job.nodes} nodes, and the group `{group.group}` of `{cluster.name}` has {group.count}"
        yield Problem("HW403", JOB, ("nodes",), message, f"use at most {group.count}, or another cluster")


def _check_degrees(job: TrainingJob, cluster: Cluster) -> Iterator[Problem]:
    try:
        resolve_mesh(job.layout, _world_size(job, cluster))
    except MeshError as error:
        ranks = f"{job.nodes} nodes of {procs_per_node(cluster.nodes[0])} ranks on `{cluster.name}`"
        yield Problem("HW301", JOB, _culprit(job.layout), f"{error}: {ranks}", _fitting(job.layout, _world_size(job, cluster)))


def _check_batch(job: TrainingJob, cluster: Cluster) -> Iterator[Problem]:
    try:
        mesh = resolve_mesh(job.layout, _world_size(job, cluster))
    except MeshError:
        return
    replicas = mesh.dp_replicate * mesh.dp_shard
    step = job.batch.micro_sequences * replicas
    if job.batch.global_sequences % step:
        message = f"`global` {job.batch.global_sequences} is not a multiple of `micro` x data-parallel ranks = {step}"
        found = f"{message} ({job.batch.micro_sequences} x {replicas} on `{cluster.name}`)"
        above = -(-job.batch.global_sequences // step) * step
        hint = f"the nearest multiple is {above}" + (f" or {above - step}" if above > step else "")
        yield Problem("HW305", JOB, ("batch", "global"), found, hint)


def _world_size(job: TrainingJob, cluster: Cluster) -> int:
    return job.nodes * procs_per_node(cluster.nodes[0])


def _culprit(layout: Layout) -> tuple[str, ...]:
    """The degree to point at: `dp_shard` if it is given, else the largest."""
    degrees = {axis: degree for axis, degree in layout.model_dump().items() if degree is not None}
    return ("layout", "dp_shard" if layout.dp_shard is not None else max(degrees, key=lambda axis: degrees[axis]))


def _fitting(layout: Layout, world_size: int) -> str:
    others = layout.pp * layout.dp_replicate * layout.cp * layout.tp
    if world_size % others == 0:
        return f"leave `dp_shard` out, or set it to {world_size // others}"
    return f"choose degrees whose product divides {world_size}"


_Rule = Callable[[TrainingJob, Cluster], Iterator[Problem]]
_RULES: tuple[tuple[tuple[str, ...], tuple[str, ...], _Rule], ...] = (
    (("nodes",), ("name", "nodes"), _check_nodes),
    (("nodes", "layout"), ("name", "nodes"), _check_degrees),
    (("nodes", "layout", "batch"), ("name", "nodes"), _check_batch),
)
