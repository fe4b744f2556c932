"""Renders a job's plan into the tree of its files, each value in one of them.

The file of the scheduler has all that is submitted: the resources, the environment, run.json and the spec; plan.json has the rest.
"""

from pathlib import PurePosixPath

from pydantic import BaseModel

from headway.jobspec.json_text import json_text
from headway.jobspec.plan import ClusterPlan, JobPlan
from headway.templates.kind import Files
from headway.templates.schedulers import SCHEDULERS
from headway.templates.trainers import TRAINERS

# What no other file of the tree has: what the tree is of, the cluster file that it was planned with, and the place of each rank.
_PLAN = frozenset({"cluster", "cluster_hash", "group", "name", "ranks", "scheduler", "schema"})


def render_job(plan: JobPlan, cluster: ClusterPlan, scheduler: BaseModel, trainer: BaseModel) -> Files:
    """Return every file of the job on the cluster, below `<job>/<cluster>/`; `scheduler` and `trainer` are the chosen options."""
    rest = {name: getattr(plan, name) for name in _PLAN}
    files: Files = {
        PurePosixPath("plan.json"): json_text(rest),
        **SCHEDULERS[plan.scheduler].render(scheduler, plan, cluster),
        **TRAINERS[plan.spec["trainer"]["kind"]].render(trainer, plan, cluster),
    }
    return {tree_of(plan) / path: text for path, text in files.items()}


def tree_of(plan: JobPlan) -> PurePosixPath:
    """Return the folder of a job on a cluster, relative to the folder of all rendered files."""
    return PurePosixPath(plan.name, plan.cluster)
