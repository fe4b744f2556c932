"""What Slurm cannot do with a plan."""

from collections.abc import Iterator

from headway.jobspec.document import Path
from headway.jobspec.plan import ClusterPlan, JobPlan
from headway.jobspec.problem import CLUSTER, JOB, Problem
from headway.templates.schedulers.containers import check_mounts_in_place, check_no_image, check_variables
from headway.templates.schedulers.slurm.options import SlurmOptions
from headway.templates.schedulers.slurm.pyxis import SEPARATORS


def check(options: SlurmOptions, plan: JobPlan, cluster: ClusterPlan) -> Iterator[Problem]:
    """Containers where none are started, and paths that pyxis takes apart."""
    if options.containers is None:
        hint = "where pyxis is installed, add `containers: pyxis` to the cluster's `scheduler.options`; else leave `image` out"
        yield from check_no_image(plan, "the options of its Slurm say nothing of `containers`", hint)
    elif plan.code["image"] is not None:
        yield from _check_paths(plan, cluster)
    if plan.code["image"] is None:
        yield from check_mounts_in_place(plan)
    yield from check_variables(plan)


def _check_paths(plan: JobPlan, cluster: ClusterPlan) -> Iterator[Problem]:
    runs = ("storage", [storage.path for storage in cluster.storage].index(plan.runs), "path")
    places: list[tuple[str, Path, str]] = [(CLUSTER, runs, plan.runs)]
    for index, mount in enumerate(plan.mounts):
        places += [(JOB, ("mounts", index, "source"), mount.source), (JOB, ("mounts", index, "target"), mount.target)]
    for document, path, place in places:
        if found := SEPARATORS.search(place):
            message = f"`{place}` cannot be mounted: pyxis ends a path at `{found[0]}`"
            yield Problem("HW423", document, path, message, "use a path without commas, colons and spaces")
