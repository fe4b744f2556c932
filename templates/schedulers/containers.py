"""Checks what a job asks of its containers, mounts and variables, with and without a container runtime."""

import re
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath

from headway.jobspec.document import Path
from headway.jobspec.plan import ClusterPlan, JobPlan, MountPlan
from headway.jobspec.problem import JOB, Problem, Severity

IMAGE: Path = ("code", "image")

# Kernel file systems that every container has separately (opencontainers/runtime-spec config-linux.md).
_KERNEL = ("/proc", "/sys", "/dev")
# runc refuses a mount inside of it (opencontainers/runc libcontainer/rootfs_linux.go: checkProcMount).
_PROC = "/proc"
# Its batch script mounts the run's directory; pods have all runs.
_MOUNTS_RUN = "slurm"


def check_no_commit(plan: JobPlan, today: str) -> Iterator[Problem]:
    """Report a pinned commit under a scheduler that cannot start it; `today` is a clause on what runs."""
    if plan.code["commit"] != "HEAD":
        message = f"a pinned commit is not implemented yet on `{plan.cluster}`: {today}"
        yield Problem("HW214", JOB, ("code", "commit"), message, "check it out there and leave `commit` out")


def check_no_image(plan: JobPlan, why: str, hint: str) -> Iterator[Problem]:
    """Report an image under a scheduler that starts the ranks on the nodes themselves; `why` is a clause."""
    if plan.code["image"] is not None:
        yield Problem("HW422", JOB, IMAGE, f"`{plan.cluster}` cannot start the image: {why}", hint)


def check_mounts_in_place(plan: JobPlan, runtime: str | None = None) -> Iterator[Problem]:
    """Check mounts without a container: a directory keeps its path, and nothing makes it read-only for the job. `runtime` is an example of
    an image that the cluster starts, if it starts containers."""
    for index, mount in enumerate(plan.mounts):
        if PurePosixPath(mount.source) != PurePosixPath(mount.target):
            message = f"`{mount.source}` cannot appear at `{mount.target}`: the job runs without a container on `{plan.cluster}`"
            hint = f"leave the mount out and use `{mount.source}` in the job"
            if runtime is not None:
                hint = f"add the image of a container, for example `code: {{image: {runtime}}}`, or {hint}"
            yield Problem("HW423", JOB, ("mounts", index, "target"), message, hint)
        elif mount.read_only:
            message = f"`{mount.source}` cannot be made read-only: the job runs without a container on `{plan.cluster}`"
            hint = "leave the mount out, since the job has the directory anyway, or set `read_only: false`"
            yield Problem("HW426", JOB, ("mounts", index), message, hint, Severity.WARNING)


def check_steps(path: Path, place: str) -> Iterator[Problem]:
    """Report a path with `..`, which may lead elsewhere in a container than on the node."""
    if ".." in place.split("/"):
        yield Problem("HW423", JOB, path, f"`{place}` has a `..`, which is not allowed in a mount", "write the path without it")


def check_secret_sources(plan: JobPlan) -> Iterator[Problem]:
    """Report where Kubernetes has a secret, under a scheduler that takes it from the submission. Another cluster of the job may use it."""
    clusters = plan.spec["cluster"]
    if not isinstance(clusters, str) and len(clusters) > 1:
        return
    for index, secret in enumerate(plan.spec["secrets"]):
        if names := [name for name in ("source", "key") if secret[name] is not None]:
            both = " and ".join(f"`{name}`" for name in names)
            have = "have" if len(names) > 1 else "has"
            message = (
                f"{both} {have} no effect: on `{plan.cluster}`, `{secret['name']}` is taken over from where the job is submitted"
            )
            yield Problem("HW210", JOB, ("secrets", index, names[0]), message, f"leave {both} out", at_key=True)


def check_hidden(plan: JobPlan, index: int, *taken: str) -> Iterator[Problem]:
    """Report a mount of the job over a path that its containers already use, or inside of `/proc`."""
    target = plan.mounts[index].target
    if places := hidden(target, *taken, *_KERNEL):
        message = f"a mount at `{target}` would hide `{places[0]}`, which every container on `{plan.cluster}` has"
    elif PurePosixPath(target).is_relative_to(_PROC):
        message = f"`{target}` is in `{_PROC}`, where containers allow no mount"
    else:
        return
    yield Problem("HW423", JOB, ("mounts", index, "target"), message, "mount it elsewhere, with `target`")


def hidden(path: str, *taken: str) -> list[str]:
    """Return those of the taken paths that are on `path` or below it."""
    return [each for each in taken if PurePosixPath(each).is_relative_to(path)]


def check_variables(plan: JobPlan) -> Iterator[Problem]:
    """Check that a variable is one line: enroot keeps a container's variables as lines, and a variable has no NUL (execve(2))."""
    for name, value in plan.spec["environment"].items():
        if re.search(r"[\n\r\0]", value):
            message = f"`environment.{name}` has a line break or a NUL character"
            hint = "write it on one line, or pass a longer text in a file"
            yield Problem("HW424", JOB, ("environment", name), message, hint)


# A path in an argument: the whole of it, or after `=`, `:` or a comma.
_PATHS = re.compile(r"(?:^|[=:,])(/[^=:,]*)")
# Options that name a place to write to: those of the usual frameworks, and what people call them.
_WRITES = re.compile(r"save|out|ckpt|checkpoint|dump|log|tensorboard|cache|result|trace|profile|wandb", re.IGNORECASE)
# Words of options that name a place for results, of those that name one for data, and of those that name neither.
_RESULTS = frozenset(
    ("save", "out", "output", "outputs", "outdir", "results", "dump", "savedir", "logdir", "tensorboard", "tb", "log", "logs")
)
_INPUTS = frozenset(("data", "dataset", "datasets", "corpus", "datadir"))
_NEITHER = frozenset(("load", "init", "pretrained", "resume", "from", "restore", "cache", "config"))
# Directories of each container, or those in which images usually have their files.
_OF_IMAGES = ("/opt", "/usr", "/etc", "/app", "/workspace", "/root", "/home", "/srv", "/code")
_HOMES = "/home"
# Where a job names its script.
_SCRIPTS: tuple[Path, ...] = (("trainer", "options", "script"), ("trainer", "options", "argv", 0))
_SHOWN = 4
_TEMPORARY = ("/tmp", "/var/tmp", "/dev", "/run", "/proc")


def check_arguments(
    arguments: Mapping[Path, str], plan: JobPlan, cluster: ClusterPlan, mounted: tuple[MountPlan, ...]
) -> Iterator[Problem]:
    """Report paths in arguments below the runs or another storage that the job's containers do not have, or have read-only.

    Files that a process writes there would be in the container alone, and lost with it.
    """
    own = PurePosixPath(plan.runs, "{run}")
    storages = [storage.path for storage in cluster.storage if storage.path is not None and storage.path.startswith("/")]
    for place, argument in arguments.items():
        for path in map(PurePosixPath, _PATHS.findall(argument)):
            storage = next((each for each in storages if path.is_relative_to(each)), None)
            holder = max(
                (mount for mount in mounted if path.is_relative_to(mount.target)),
                key=lambda mount: len(mount.target),
                default=None,
            )
            if storage is None and holder is None:
                yield from _check_unmounted(place, argument, path, mounted)
            elif storage is None and holder is not None and holder.read_only and _is_for_results(argument, path):
                yield _read_only(place, path, holder)
            if storage is None or (plan.scheduler == _MOUNTS_RUN and path.is_relative_to(own)):
                continue
            if holder is None and path.is_relative_to(plan.runs):
                message = f"`{path}` is on no mount of the job's containers: of the runs they have the run's own directory"
                yield Problem(
                    "HW433", JOB, place, message, "write `{run_directory}` for the run's directory, or add it to `mounts`"
                )
            elif holder is None:
                message = f"`{path}` on the storage `{storage}` is on no mount of the job's containers"
                hint = f"mount it, with `read_only: false` if the job writes to it: `mounts: [{{source: {storage}}}]`"
                yield Problem("HW433", JOB, place, message, hint, Severity.WARNING)
            elif holder.read_only and _WRITES.search(argument.removesuffix(str(path))):
                yield _read_only(place, path, holder)


def _read_only(place: Path, path: PurePosixPath, holder: MountPlan) -> Problem:
    message = f"`{path}` is on the mount `{holder.target}`, which is read-only"
    hint = f"set `read_only: false` there, or write `{{run_directory}}/{path.name}`, below the run's directory"
    return Problem("HW433", JOB, place, message, hint, Severity.WARNING)


def _words_of(argument: str, path: PurePosixPath) -> set[str]:
    """Return the words of the option that names the path."""
    return set(re.split(r"[^a-z]+", re.sub(r"(?<=[a-z])(?=[A-Z])", "_", argument.partition(str(path))[0]).lower()))


def _is_for_results(argument: str, path: PurePosixPath) -> bool:
    words = _words_of(argument, path)
    return bool(words & _RESULTS) and not words & _NEITHER


def _check_unmounted(place: Path, argument: str, path: PurePosixPath, mounted: tuple[MountPlan, ...]) -> Iterator[Problem]:
    """Report a place for results, or for data, that is in the container alone: by the words of the option that names it."""
    words = _words_of(argument, path)
    if words & _NEITHER or any(path.is_relative_to(each) for each in _TEMPORARY):
        return
    if place in _SCRIPTS:
        if mounted and not any(path.is_relative_to(each) for each in _OF_IMAGES if each != _HOMES):
            message = f"the script `{path}` is on no mount of the job's containers, which have it only if their image does"
            hint = f"write a path on a mount, below {_listed(mounted)}, or accept this with `ignore` if the image has it"
            yield Problem("HW433", JOB, place, message, hint, Severity.WARNING)
    elif _is_for_results(argument, path):
        message = f"`{path}` is on no mount of the job's containers, and what is written there is lost with them"
        below = "" if "$" in path.name else f"/{path.name}"
        hint = (
            f"write `{{run_directory}}{below}`, {'below ' if below else ''}the run's directory, or add the directory to `mounts`"
        )
        yield Problem("HW433", JOB, place, message, hint, Severity.WARNING)
    elif words & _INPUTS and mounted and not any(path.is_relative_to(each) for each in _OF_IMAGES):
        message = f"`{path}` is on no mount of the job's containers, which have it only if their image does"
        # What has no ending is a directory, or the beginning of the names of a corpus's files: its folder can be mounted in any case.
        hint = f"mount its folder, `mounts: [{{source: {path.parent}}}]`, or write a path on a mount, below {_listed(mounted)}"
        held = next((each for each in mounted if each.source and path.is_relative_to(each.source)), None)
        if held is not None:
            there = PurePosixPath(held.target, path.relative_to(held.source))
            hint = f"write `{there}`: containers have `{held.source}` at `{held.target}`"
        yield Problem("HW433", JOB, place, message, hint, Severity.WARNING)


def _listed(mounted: tuple[MountPlan, ...]) -> str:
    return " or ".join(f"`{target}`" for target in list(dict.fromkeys(mount.target for mount in mounted))[:_SHOWN])
