"""Renders no file: run.json holds a script's arguments."""

from headway.jobspec.plan import ClusterPlan, JobPlan
from headway.templates.kind import Files
from headway.templates.trainers.script.options import ScriptOptions


def render(options: ScriptOptions, plan: JobPlan, cluster: ClusterPlan) -> Files:
    """Return no files."""
    return {}
