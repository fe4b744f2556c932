"""A TrainingJob spec on a cluster as its plan."""

from pydantic import BaseModel

from headway.jobspec.plan import ClusterPlan, JobPlan
from headway.jobspec.resolve.environment import resolve_environment
from headway.jobspec.resolve.fingerprint import fingerprint
from headway.jobspec.resolve.mesh import resolve_mesh
from headway.jobspec.resolve.placement import resolve_group, resolve_runs
from headway.jobspec.resolve.ranks import resolve_ranks
from headway.jobspec.resolve.run import resolve_run
from headway.jobspec.spec.job import TrainingJob


def resolve_job(job: TrainingJob, cluster: ClusterPlan, data: BaseModel, trainer: BaseModel) -> JobPlan:
    """The plan of a job that passed its checks against the cluster; `data` and `trainer` are its chosen options."""
    group = resolve_group(cluster)
    mesh = resolve_mesh(job.layout, job.nodes * group.procs)
    spec_hash = fingerprint(job)
    return JobPlan(
        name=job.name,
        cluster=cluster.name,
        scheduler=cluster.scheduler,
        spec_hash=spec_hash,
        cluster_hash=cluster.hash,
        group=group.name,
        slots=job.nodes,
        procs_per_slot=group.procs,
        cpus_per_slot=group.cpus,
        gpus_per_slot=group.gpus,
        world_size=mesh.world_size,
        mesh=mesh,
        backend=group.backend,
        ranks=resolve_ranks(mesh, group.procs),
        env=resolve_environment(cluster, group),
        runs=resolve_runs(cluster),
        time_limit=job.time_limit,
        run=resolve_run(job, group, mesh, spec_hash=spec_hash, data=data, trainer=trainer),
    )
