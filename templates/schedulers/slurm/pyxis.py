"""Turns a job's container into the srun options that pyxis adds (NVIDIA/pyxis args.c), and its image into enroot's notation."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from headway.jobspec.check.job import is_image_file
from headway.jobspec.plan import ClusterPlan, JobPlan, MountPlan
from headway.jobspec.resolve.placement import USER
from headway.templates.shell import Shell, quote

# Separators of pyxis' list of mounts, and of an enroot mount (NVIDIA/pyxis args.c).
SEPARATORS = re.compile(r"[,:\s]")

_HUB = "registry-1.docker.io"
# Set by the batch script, not by the plan.
_NODES = "HEADWAY_NODES"
# Without it enroot's hook shows no adapter (NVIDIA/enroot conf/hooks/99-mellanox.sh); some sites set it for all containers.
ADAPTERS = "MELLANOX_VISIBLE_DEVICES"
_VERBS = ("roce", "infiniband")
# enroot has a hook for NVIDIA's devices only, and with ENROOT_RESTRICT_DEV no device is there that is not mounted
# (NVIDIA/enroot conf/hooks/10-devices.sh; rocm.docs.amd.com: kfd for compute, dri for each GPU).
_AMD_DEVICES = ("/dev/kfd:/dev/kfd", "/dev/dri:/dev/dri")


@dataclass(frozen=True)
class Container:
    """Values of `--container-image`, of `--container-mounts` except the run's own directory, and of `--container-env`.

    `shows_adapters`: enroot's hook has to show the RDMA adapters.
    """

    image: Shell
    mounts: tuple[str, ...]
    variables: str
    shows_adapters: bool


def container_of(plan: JobPlan, cluster: ClusterPlan, cache: str | None) -> Container | None:
    """Return the job's container; None if it names no image and runs on the nodes themselves."""
    image = plan.code["image"]
    if image is None:
        return None
    shows_adapters = plan.gpus_per_slot > 0 and cluster.scale_out is not None and cluster.scale_out.transport in _VERBS
    variables = [*_variables(plan), *([ADAPTERS] if shows_adapters else [])]
    mounts = [*(_AMD_DEVICES if cluster.group(plan.group).is_amd else ()), *_mounts(plan.mounts)]
    staged = staged_image(plan, cache)
    return Container(_image(image) if staged is None else staged.file, tuple(mounts), ",".join(variables), shows_adapters)


@dataclass(frozen=True)
class StagedImage:
    """An image that each node imports once: the file there, and where it comes from, in enroot's notation."""

    file: Shell
    source: Shell


def staged_image(plan: JobPlan, cache: str | None) -> StagedImage | None:
    """Return the image to import; None without a cache, for a file, and for an image without a digest, which can change."""
    image = plan.code["image"]
    if cache is None or image is None or is_image_file(image) or not (found := re.search(r"@sha256:([0-9a-f]{64})$", image)):
        return None
    # NVIDIA/enroot doc/cmd/import.md: docker://[USER@][REGISTRY#]IMAGE[:TAG].
    return StagedImage(Shell(f"{cache}/headway-{found[1]}.sqsh"), Shell(quote(f"docker://{image_for_enroot(image)}")))


def mounted(options: object, plan: JobPlan) -> tuple[MountPlan, ...] | None:
    """Return the job's mounts, if it runs in a container; None else."""
    return None if plan.code["image"] is None else plan.mounts


def _image(image: str) -> Shell:
    """Return the image as a word of shell. A relative path counts from the submission directory; pyxis takes one for a
    name in a registry."""
    if is_image_file(image) and not image.startswith("/"):
        return Shell(f'"$PWD"/{quote(image)}')
    return Shell(quote(image_for_enroot(image)))


def image_for_enroot(image: str) -> str:
    """Return an image's name with its registry separated, `REGISTRY#NAME:VERSION`; a file, or enroot's notation,
    unchanged.

    A digest goes into the place of the tag: enroot 3 takes the text before an `@` for a user, and hands the tag to the
    registry as the manifest's reference, as enroot 4 does (NVIDIA/enroot src/docker.sh). Registries are recognized by
    docker's own rule (distribution/reference normalize.go).
    """
    if is_image_file(image) or "#" in image or "://" in image:
        return image
    name, _, digest = image.partition("@")
    first, _, rest = name.partition("/")
    is_registry = bool(rest) and (first == "localhost" or any(mark in first for mark in ".:"))
    registry, path = (first, rest) if is_registry else (_HUB, name)
    path, _, tag = path.partition(":")
    registry = _HUB if registry.endswith("docker.io") else registry
    path = f"library/{path}" if registry == _HUB and "/" not in path else path
    return f"{registry}#{path}:{digest or tag or 'latest'}"


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
