"""What a job asks of its containers, mounts and variables, where no container is started, and in any."""

import re
from collections.abc import Iterator
from pathlib import PurePosixPath

from headway.jobspec.document import Path
from headway.jobspec.plan import JobPlan
from headway.jobspec.problem import JOB, Problem

IMAGE: Path = ("code", "image")


def check_no_image(plan: JobPlan, why: str, hint: str) -> Iterator[Problem]:
    """Of a scheduler that starts the ranks on the nodes themselves; `why` it does is a clause."""
    if plan.code["image"] is not None:
        yield Problem("HW422", JOB, IMAGE, f"nothing on `{plan.cluster}` starts the image: {why}", hint)


def check_mounts_in_place(plan: JobPlan) -> Iterator[Problem]:
    """Without a container a directory is where it is. Nothing there makes it read-only for the job."""
    for index, mount in enumerate(plan.mounts):
        if PurePosixPath(mount.source) != PurePosixPath(mount.target):
            message = f"`{mount.source}` is not at `{mount.target}`: the job has no container on `{plan.cluster}`"
            hint = f"leave `target` out and let the job use `{mount.source}`"
            yield Problem("HW423", JOB, ("mounts", index, "target"), message, hint)


def check_variables(plan: JobPlan) -> Iterator[Problem]:
    """A variable is one line: enroot keeps a container's variables as lines, and a variable has no NUL (execve(2))."""
    for name, value in plan.spec["environment"].items():
        if re.search(r"[\n\r\0]", value):
            message = f"`environment.{name}` has a line break or a NUL character"
            hint = "write it in one line; a longer text belongs in a file"
            yield Problem("HW424", JOB, ("environment", name), message, hint)
