"""Renders a job's plan into the tree of its files."""

from pathlib import PurePosixPath

from pydantic import BaseModel

from headway.jobspec.plan import ClusterPlan, JobPlan, to_json
from headway.templates.kind import Files
from headway.templates.nccl.render import render_environment
from headway.templates.schedulers import SCHEDULERS
from headway.templates.trainers import TRAINERS


def render_job(plan: JobPlan, cluster: ClusterPlan, scheduler: BaseModel, trainer: BaseModel) -> Files:
    """Return every file of the job on the cluster, below `<job>/<cluster>/`; `scheduler` and `trainer` are the chosen options."""
    files: Files = {
        PurePosixPath("plan.json"): to_json(plan),
        PurePosixPath("run.json"): to_json(plan.run),
        **render_environment(plan),
        **SCHEDULERS[plan.scheduler].render(scheduler, plan, cluster),
        **TRAINERS[plan.run.trainer.kind].render(trainer, plan, cluster),
    }
    return {tree_of(plan) / path: text for path, text in files.items()}


def tree_of(plan: JobPlan) -> PurePosixPath:
    """Return the folder of a job on a cluster, relative to the folder of all rendered files."""
    return PurePosixPath(plan.name, plan.cluster)
