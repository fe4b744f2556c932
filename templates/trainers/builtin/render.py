"""Renders no file: the builtin trainer reads everything from run.json."""

from headway.jobspec.plan import ClusterPlan, JobPlan
from headway.templates.kind import Files
from headway.templates.trainers.builtin.options import BuiltinOptions


def render(options: BuiltinOptions, plan: JobPlan, cluster: ClusterPlan) -> Files:
    """Return no files."""
    return {}
