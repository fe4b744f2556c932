"""Turns a job's image and devices into the notation of pyxis' options of srun (NVIDIA/pyxis args.c), and of enroot."""

import re

from headway.jobspec.check.job import is_image_file
from headway.templates.shell import Shell, quote

# Separators of pyxis' list of mounts, and of an enroot mount (NVIDIA/pyxis args.c).
SEPARATORS = re.compile(r"[,:\s]")
SUFFIX = ".sqsh"

_HUB = "registry-1.docker.io"
# Without it enroot's hook shows no adapter (NVIDIA/enroot conf/hooks/99-mellanox.sh); some sites set it for all containers.
ADAPTERS = "MELLANOX_VISIBLE_DEVICES"
# enroot has a hook for NVIDIA's devices only, and with ENROOT_RESTRICT_DEV no device is there that is not mounted
# (NVIDIA/enroot conf/hooks/10-devices.sh; rocm.docs.amd.com: kfd for compute, dri for each GPU).
AMD_DEVICES = ("/dev/kfd:/dev/kfd", "/dev/dri:/dev/dri")


def image_word(image: str) -> Shell:
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
