"""Looks up the files that a job starts from, in the places where it could be submitted."""

from collections.abc import Iterator, Mapping
from pathlib import Path as FilePath

from headway.jobspec.document import Path
from headway.jobspec.plan import JobPlan
from headway.jobspec.problem import JOB, Problem

# Another scheduler's nodes and images have files that this machine does not know.
_HERE = "local"


def check_inputs(files: Mapping[Path, str], plan: JobPlan, document: FilePath) -> Iterator[Problem]:
    """Yield problems for files that a local job needs and that are neither here, nor next to its document, nor in a folder above it."""
    folders = [FilePath.cwd(), *document.resolve().parents] if plan.scheduler == _HERE else []
    for path, file in files.items():
        if folders and not any((folder / file).is_file() for folder in folders):
            hint = "relative paths start where the job is submitted"
            yield Problem("HW412", JOB, path, f"there is no file `{file}`, neither here nor beside the job or above it", hint)
