"""Reports what the local scheduler cannot do."""

from collections.abc import Iterator

from headway.jobspec.notation import write_parts
from headway.jobspec.plan import ClusterPlan, JobPlan
from headway.jobspec.problem import JOB, Problem, Severity
from headway.templates.schedulers.containers import (
    check_mounts_in_place,
    check_no_commit,
    check_no_image,
    check_secret_sources,
    check_variables,
)
from headway.templates.schedulers.local.options import LocalOptions
from headway.templates.schedulers.requests import check_request


def check(options: LocalOptions, plan: JobPlan, cluster: ClusterPlan) -> Iterator[Problem]:
    """Report a time limit and an image, which this scheduler cannot apply; of several clusters another one may keep the limit."""
    clusters, time = plan.spec["cluster"], plan.spec["limits"]["attempt"]["time"]
    if time is not None and (isinstance(clusters, str) or len(clusters) == 1):
        message = f"`{write_parts(time)}` is not enforced: the scheduler of `{cluster.name}` is `local`"
        hint = "leave `time` out, or set `limits.run.time`, which the runner enforces"
        yield Problem("HW404", JOB, ("limits", "attempt", "time"), message, hint, Severity.WARNING)
    yield from check_no_commit(plan, "ranks run what is in the directory where the job is submitted")
    yield from check_request(plan, None)
    yield from check_no_image(plan, "its scheduler is `local`", "leave `image` out: ranks use the Python that starts them")
    yield from check_mounts_in_place(plan)
    yield from check_variables(plan)
    yield from check_secret_sources(plan)
