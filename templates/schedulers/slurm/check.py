"""Reports what Slurm cannot do with a plan."""

from collections.abc import Iterator

from headway.jobspec.check.multiples import listed_numbers, nearest_multiples
from headway.jobspec.document import Path
from headway.jobspec.plan import ClusterPlan, JobPlan
from headway.jobspec.problem import CLUSTER, JOB, Problem, Severity
from headway.templates.schedulers.containers import (
    IMAGE,
    check_hidden,
    check_mounts_in_place,
    check_no_image,
    check_steps,
    check_variables,
)
from headway.templates.schedulers.slurm.options import SlurmOptions
from headway.templates.schedulers.slurm.pyxis import SEPARATORS

# Options that the batch script sets itself, or does not support: an array would be many runs in one directory.
_OWN = (
    "account",
    "array",
    "constraint",
    "cpus-per-task",
    "exclude",
    "exclusive",
    "gpus-per-node",
    "job-name",
    "no-requeue",
    "nodes",
    "ntasks",
    "ntasks-per-node",
    "open-mode",
    "output",
    "partition",
    "qos",
    "requeue",
    "reservation",
    "segment",
    "signal",
    "time",
    "wrap",
)


def check(options: SlurmOptions, plan: JobPlan, cluster: ClusterPlan) -> Iterator[Problem]:
    """Yield problems with containers that nothing starts, impossible mounts, and groups of ranks that Slurm does not
    keep together."""
    yield from _check_segment(options, plan, cluster)
    if options.containers is None:
        hint = "if pyxis is installed, add `containers: pyxis` to the cluster's `scheduler.options`; else leave `image` out"
        yield from check_no_image(plan, "its Slurm options do not set `containers`", hint)
    elif plan.code["image"] is not None:
        yield from _check_image(plan)
        yield from _check_paths(plan, cluster)
        yield from _check_mounts(plan)
    if plan.code["image"] is None:
        yield from check_mounts_in_place(plan)
    yield from check_variables(plan)


def check_options(options: SlurmOptions) -> Iterator[Problem]:
    """Check the directives. sbatch reads its options by getopt_long(3), which accepts unambiguous prefixes."""
    for index, directive in enumerate(options.directives):
        name = directive.removeprefix("--").partition("=")[0]
        own = next((each for each in _OWN if each.startswith(name)), None)
        if own is not None:
            message = f"`--{own}` is set by the batch script itself, and Slurm would use the last of two"
            hint = "leave it out; set what a job asks for in the job, and the rest in the other options of its cluster"
            yield Problem("HW210", CLUSTER, ("scheduler", "options", "directives", index), message, hint)
    for index, line in enumerate(options.setup):
        if line.split()[:1] == ["source"]:
            message = "the batch script is POSIX shell, in which `source` is no command (dash, Debian's and Ubuntu's `sh`)"
            hint = "write `.` in its place, with a path that has a `/`"
            yield Problem("HW210", CLUSTER, ("scheduler", "options", "setup", index), message, hint)


def _check_segment(options: SlurmOptions, plan: JobPlan, cluster: ClusterPlan) -> Iterator[Problem]:
    if plan.segment_nodes is None:
        return
    if options.topology is not None:
        yield from _check_whole_segments(plan, plan.segment_nodes)
        return
    layout = plan.spec["layout"]
    axis = "tp" if layout["tp"] > cluster.group(plan.group).gpus else "ep"
    message = (
        f"groups of {layout[axis]} ranks need {plan.segment_nodes} nodes of one NVLink domain, but Slurm is not asked for them"
    )
    hint = (
        "if Slurm 24.05 or newer has topology/block with a block per domain, add `topology: block` to the cluster's "
        "`scheduler.options`: jobs then request segments"
    )
    yield Problem("HW425", JOB, ("layout", axis), message, hint, Severity.WARNING)


def _check_whole_segments(plan: JobPlan, segment: int) -> Iterator[Problem]:
    """Check that the job's own nodes are whole segments, since they hold whole groups of ranks; spares need not be."""
    if plan.nodes % segment:
        message = (
            f"{plan.slots} nodes and {plan.spares} spares are not a multiple of the {segment} nodes that come from "
            f"one NVLink domain together, and Slurm accepts `--segment` only if it divides the nodes"
        )
        nearest = listed_numbers([count - plan.slots for count in nearest_multiples(plan.nodes, segment)])
        yield Problem("HW428", JOB, ("resilience", "spares"), message, f"set the spares to {nearest}")


def _check_image(plan: JobPlan) -> Iterator[Problem]:
    image = plan.code["image"]
    if image is not None and image.endswith(".sif"):
        message = f"`{image}` is an Apptainer image, but pyxis starts enroot images (`.sqsh`) and images of registries"
        yield Problem("HW422", JOB, IMAGE, message, "make one with `enroot import`, or set the image's digest in its registry")


def _check_mounts(plan: JobPlan) -> Iterator[Problem]:
    """Check the mounts. The runs' directory may be inside another mount, from the same place and writable."""
    for index, mount in enumerate(plan.mounts):
        yield from check_steps(("mounts", index, "source"), mount.source)
        yield from check_steps(("mounts", index, "target"), mount.target)
        same = mount.source.rstrip("/") == mount.target.rstrip("/") and not mount.read_only
        yield from check_hidden(plan, index, *(() if same else (plan.runs,)))


def _check_paths(plan: JobPlan, cluster: ClusterPlan) -> Iterator[Problem]:
    runs = ("storage", [storage.path for storage in cluster.storage].index(plan.runs), "path")
    places: list[tuple[str, Path, str]] = [(CLUSTER, runs, plan.runs)]
    for index, mount in enumerate(plan.mounts):
        places += [(JOB, ("mounts", index, "source"), mount.source), (JOB, ("mounts", index, "target"), mount.target)]
    for document, path, place in places:
        if found := SEPARATORS.search(place):
            message = f"`{place}` cannot be mounted: pyxis ends a path at `{found[0]}`"
            yield Problem("HW423", document, path, message, "use a path without commas, colons and spaces")
