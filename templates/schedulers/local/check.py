"""What the local scheduler cannot do."""

from collections.abc import Iterator

from headway.jobspec.plan import ClusterPlan, JobPlan
from headway.jobspec.problem import JOB, Problem, Severity
from headway.templates.schedulers.local.options import LocalOptions


def check(options: LocalOptions, plan: JobPlan, cluster: ClusterPlan) -> Iterator[Problem]:
    """A time limit has nobody to keep it."""
    if plan.time_limit is not None:
        message = f"nothing ends the job after `{plan.time_limit}`: the scheduler of `{cluster.name}` is `local`"
        yield Problem("HW404", JOB, ("time_limit",), message, "leave `time_limit` out here", Severity.WARNING)
