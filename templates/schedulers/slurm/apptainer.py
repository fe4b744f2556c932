"""Turns a job's image and devices into words of `apptainer exec` (apptainer-exec(1))."""

import re

from headway.jobspec.check.job import is_image_file
from headway.templates.shell import Shell, quote

# Separators of `--bind`: apptainer/apptainer pkg/runtime/engine/apptainer/config/config.go.
SEPARATORS = re.compile(r"[,:\\]")
SUFFIX = ".sif"
# Bound for sites with `mount dev = minimal` in apptainer.conf; elsewhere all devices of the node are there.
ADAPTERS = "/dev/infiniband"
# Variables that a container has from Apptainer itself, whatever APPTAINERENV_ contains, and prefixes of its own settings, which it keeps
# from containers (apptainer/apptainer internal/pkg/util/env/create.go; process_linux.go: injectEnvHandler).
OWN_VARIABLES = ("HOME", "GID")
OWN_PREFIXES = ("APPTAINER_", "SINGULARITY_")


def image_word(image: str) -> Shell:
    """Return an image file as a word of shell. A relative path counts from the submission directory."""
    return Shell(quote(image) if image.startswith("/") else f'"$PWD"/{quote(image)}')


def is_staged_file(image: str) -> bool:
    """Return whether a node copies the image to its disk: a file, and not a folder with a root file system."""
    return is_image_file(image) and image.endswith(SUFFIX)


def source_of(image: str) -> str:
    """Return an image of a registry as Apptainer pulls it.

    Its transport refuses a name with both a tag and a digest (containers/image docker/docker_transport.go). A `#` is enroot's notation.
    """
    name, _, digest = image.replace("#", "/", 1).partition("@")
    folder, slash, last = name.rpartition("/")
    return f"docker://{folder}{slash}{last.partition(':')[0]}@{digest}"
