"""Turns a job's image, mounts and variables into a container of the runtime that the cluster's options name."""

import re
from collections.abc import Iterator

from msgspec import Struct

from headway.jobspec.check.job import is_image_file
from headway.jobspec.plan import ClusterPlan, JobPlan, MountPlan
from headway.jobspec.resolve.placement import USER
from headway.templates.schedulers.slurm import apptainer, pyxis
from headway.templates.schedulers.slurm.options import SlurmOptions
from headway.templates.shell import Shell, quote

# Set by the batch script, not by the plan.
_NODES = "HEADWAY_NODES"
_VERBS = ("roce", "infiniband")
_DIGEST = re.compile(r"@sha256:([0-9a-f]{64})$")


class StagedImage(Struct, frozen=True):
    """An image that each node has once on its disk: its name in the cache, and what makes the file `$1`, both in shell."""

    file: Shell
    suffix: Shell
    fetch: Shell


class Container(Struct, frozen=True):
    """A job's container, without the run's own directory, which the script mounts.

    `mounts` are `SOURCE:TARGET[:ro]` for both runtimes, `variables` those that count in place of the image's. `options` are words of
    `apptainer exec`. `shows_adapters`: the script has to show the RDMA adapters to it.
    """

    runtime: str
    image: Shell
    mounts: tuple[str, ...]
    variables: tuple[str, ...]
    options: tuple[Shell, ...]
    shows_adapters: bool
    staged: StagedImage | None


def container_of(options: SlurmOptions, plan: JobPlan, cluster: ClusterPlan) -> Container | None:
    """Return the job's container; None if it names no image and runs on the nodes themselves."""
    image = plan.code["image"]
    if image is None or options.containers is None:
        return None
    is_pyxis = options.containers == "pyxis"
    group = cluster.group(plan.group)
    shows_adapters = plan.gpus_per_slot > 0 and cluster.scale_out is not None and cluster.scale_out.transport in _VERBS
    variables = [*_variables(plan), *([pyxis.ADAPTERS] if is_pyxis and shows_adapters else [])]
    devices = pyxis.AMD_DEVICES if is_pyxis and group.is_amd else ()
    for_gpus = ["--rocm" if group.is_amd else "--nv"] if plan.gpus_per_slot and not is_pyxis else []
    staged = _staged_image(options, image)
    of_runtime = pyxis.image_word(image) if is_pyxis else apptainer.image_word(image)
    return Container(
        options.containers,
        of_runtime if staged is None else Shell('"$image"'),
        (*devices, *_mounts(plan.mounts)),
        tuple(variables),
        tuple(Shell(quote(word)) for word in (*for_gpus, *options.apptainer)),
        shows_adapters,
        staged,
    )


def mounted(options: object, plan: JobPlan) -> tuple[MountPlan, ...] | None:
    """Return the job's mounts, if it runs in a container; None else."""
    return None if plan.code["image"] is None else plan.mounts


def _staged_image(options: SlurmOptions, image: str) -> StagedImage | None:
    """Return the image to stage; None without a cache, for a file that its runtime starts in place, and for a name without a digest, which
    can change."""
    if options.image_cache is None:
        return None
    digest = None if is_image_file(image) else _DIGEST.search(image)
    if options.containers == "pyxis" and digest is not None:
        # NVIDIA/enroot doc/cmd/import.md: docker://[USER@][REGISTRY#]IMAGE[:TAG].
        source = quote(f"docker://{pyxis.image_for_enroot(image)}")
        return _in_cache(options.image_cache, digest[1], pyxis.SUFFIX, f'enroot import --output "$1" {source}')
    if options.containers == "apptainer" and digest is not None:
        # Its own cache is in the home, which nodes share; it builds the file in a folder of the disk of the nodes.
        source = quote(apptainer.source_of(image))
        fetch = f'APPTAINER_TMPDIR=${{APPTAINER_TMPDIR:-${{1%/*}}}} apptainer pull --disable-cache "$1" {source}'
        return _in_cache(options.image_cache, digest[1], apptainer.SUFFIX, fetch)
    if options.containers == "apptainer" and apptainer.is_staged_file(image):
        file = apptainer.image_word(image)
        # A file has no digest: its time, size and number, which all nodes see alike.
        name = f'"$(stat --dereference --format=%Y-%s-%i {file})"'
        return _in_cache(options.image_cache, name, apptainer.SUFFIX, f'cp {file} "$1"')
    return None


def _in_cache(cache: str, name: str, suffix: str, fetch: str) -> StagedImage:
    return StagedImage(Shell(f"{cache}/headway-{name}{suffix}"), Shell(suffix), Shell(fetch))


def _mounts(mounts: tuple[MountPlan, ...]) -> Iterator[str]:
    for mount in mounts:
        yield f"{mount.source}:{mount.target}" + (":ro" if mount.read_only else "")


def _variables(plan: JobPlan) -> Iterator[str]:
    yield _NODES
    if USER in plan.runs:
        yield "HEADWAY_SUSPECTS"
    if plan.run.notify is not None:
        yield plan.run.notify.webhook_env
    yield from plan.secrets
    yield from (variable.name for variable in plan.env)
