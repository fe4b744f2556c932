"""Resolves a TrainingJob spec on a cluster into its plan."""

from msgspec.structs import replace
from pydantic import BaseModel

from headway.jobspec.plan import ClusterPlan, JobPlan, MountPlan
from headway.jobspec.resolve.domains import domains_of, segment_nodes
from headway.jobspec.resolve.environment import resolve_environment, with_own
from headway.jobspec.resolve.fingerprint import fingerprint, values_of, with_sizes
from headway.jobspec.resolve.mesh import resolve_mesh
from headway.jobspec.resolve.model import ModelSizes
from headway.jobspec.resolve.nodes import part_of_group
from headway.jobspec.resolve.placement import group_of_job, resolve_runs
from headway.jobspec.resolve.ranks import resolve_ranks
from headway.jobspec.resolve.run import resolve_run
from headway.jobspec.spec.job import TrainingJob
from headway.jobspec.units import format_seconds


def resolve_job(job: TrainingJob, cluster: ClusterPlan, model: ModelSizes | None, data: BaseModel | None) -> JobPlan:
    """Return the plan of a job that passed its checks against the cluster.

    `model` are the sizes of its model and `data` the options of its data, if any. The trainer's settings come last:
    they may hold values of the plan (resolve/trainer.py).
    """
    gpus_per_node = group_of_job(cluster, job.group).gpus
    cluster = cluster_of_job(job, cluster)
    group = group_of_job(cluster, job.group)
    mesh = resolve_mesh(job.layout, job.nodes * group.procs)
    values = values_of(job)
    spec_hash = fingerprint(with_sizes(values, model))
    together = segment_nodes(group, job.layout.tp, job.layout.ep)
    return JobPlan(
        name=job.name,
        cluster=cluster.name,
        scheduler=cluster.scheduler,
        spec_hash=spec_hash,
        cluster_hash=cluster.hash,
        group=group.name,
        slots=job.nodes,
        spares=job.resilience.spares,
        procs_per_slot=group.procs,
        cpus_per_slot=group.cpus * group.threads_per_core,
        gpus_per_slot=group.gpus,
        world_size=mesh.world_size,
        mesh=mesh,
        backend=group.backend,
        ranks=resolve_ranks(mesh, group.procs),
        env=tuple(with_own(list(resolve_environment(cluster, group)), job.environment)),
        runs=resolve_runs(cluster),
        time_limit=None if (longest := job.limits.attempt.time) is None else format_seconds(longest),
        segment_nodes=together,
        code=job.code.model_dump(),
        model=model,
        mounts=tuple(MountPlan(mount.source, mount.target or mount.source, mount.read_only) for mount in job.mounts),
        run=resolve_run(
            job,
            group,
            mesh,
            spec_hash=spec_hash,
            cluster=cluster.name,
            together=together,
            domains=domains_of(cluster, group) if together else (),
            peer_dscp=_peer_dscp(cluster),
            model=model,
            data=data,
        ),
        spec=values,
        gpus_per_node=gpus_per_node,
    )


def cluster_of_job(job: TrainingJob, cluster: ClusterPlan) -> ClusterPlan:
    """Return the cluster with the part of the job's nodes that it uses (`gpus`), as if they had no more."""
    if job.gpus is None:
        return cluster
    own = group_of_job(cluster, job.group)
    return replace(cluster, groups=tuple(part_of_group(each, job.gpus) if each is own else each for each in cluster.groups))


def _peer_dscp(cluster: ClusterPlan) -> int | None:
    """Return the DSCP of copies of checkpoints on the fabric that has a class for them."""
    found = (fabric.qos.carrying("checkpoints") for fabric in cluster.fabrics if fabric.qos is not None)
    return next((each.dscp for each in found if each is not None), None)
