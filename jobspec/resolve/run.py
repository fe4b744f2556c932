"""A job and its mesh as run.json: all that the runner is told."""

from pydantic import BaseModel

from headway.jobspec.plan import GroupPlan
from headway.jobspec.spec.job import TrainingJob
from headway.runner import contract


def resolve_run(
    job: TrainingJob, group: GroupPlan, mesh: contract.Mesh, *, spec_hash: str, data: BaseModel, trainer: BaseModel
) -> contract.RunConfig:
    """The runner's configuration, with the options of the data and the trainer as their owners filled them in."""
    return contract.RunConfig(
        slots=job.nodes,
        procs_per_slot=group.procs,
        mesh=mesh,
        trainer=contract.Trainer(job.trainer.kind, trainer.model_dump(mode="json")),
        spec_hash=spec_hash,
        seed=job.seed,
        steps=job.steps,
        backend=group.backend,
        model=contract.Model(**job.model.model_dump()),
        data=contract.Data(job.data.kind, data.model_dump(mode="json")),
        batch=contract.Batch(**job.batch.model_dump()),
        optimizer=contract.Optimizer(**job.optimizer.model_dump()),
        checkpoint=_checkpoint(job),
        restart=contract.Restart(**job.restart.model_dump()),
        grace_s=job.grace_s,
    )


def _checkpoint(job: TrainingJob) -> contract.Checkpoint:
    tiers = tuple(contract.Tier(tier.kind, tier.every_steps) for tier in job.checkpoint.tiers)
    return contract.Checkpoint(tiers, job.checkpoint.keep)
