"""Looks up the files that a job starts from, in the places where it could be submitted."""

from collections.abc import Iterator, Mapping
from glob import has_magic as is_pattern
from pathlib import Path as FilePath

from headway.jobspec.document import Path
from headway.jobspec.plan import JobPlan
from headway.jobspec.problem import JOB, Problem, Severity
from headway.jobspec.suggest import file_like

# Another scheduler's nodes and images have files that this machine does not know.
_HERE = "local"


def check_inputs(files: Mapping[Path, str], plan: JobPlan, document: FilePath) -> Iterator[Problem]:
    """Yield problems for files that a local job needs and that are neither here, nor next to its document, nor in a folder above it."""
    folders = places(document) if plan.scheduler == _HERE else []
    for path, file in files.items():
        if not folders:
            yield from _check_elsewhere(path, file, document.resolve().parent)
            continue
        if not any(_has(folder, file) for folder in folders):
            found = f"no file matches `{file}`" if is_pattern(file) else f"there is no file `{file}`"
            near = next((each for folder in folders[:2] if (each := file_like(folder, file)) is not None), None)
            hint = "relative paths start where the job is submitted" if near is None else f"did you mean `{near}`?"
            yield Problem("HW412", JOB, path, f"{found}, neither here nor beside the job or above it", hint)


def _check_elsewhere(path: Path, file: str, folder: FilePath) -> Iterator[Problem]:
    """Warn of a file that is misspelt, as far as the job's folder shows: it may be in the image, or where the job is submitted."""
    if is_pattern(file) or not file.endswith(".py") or any((each / file).exists() for each in (folder, *folder.parents)):
        return
    near = file_like(folder, file)
    if near is not None:
        message = f"there is no file `{file}` beside the job, but `{near}`"
        hint = f"did you mean `{near}`? else accept this with `ignore`"
        yield Problem("HW412", JOB, path, message, hint, Severity.WARNING, fix=near)


def places(document: FilePath) -> list[FilePath]:
    """Return the folders in which relative paths of the document may start: this one, the document's own, and those above it."""
    return [FilePath.cwd(), *document.resolve().parents]


def _has(folder: FilePath, file: str) -> bool:
    """Return whether the folder has the file, or one that matches the pattern."""
    return (folder / file).is_file() or (is_pattern(file) and any(_matches(folder, file)))


def _matches(folder: FilePath, pattern: str) -> Iterator[FilePath]:
    """Yield the files that the pattern names, which starts in the folder unless it is absolute."""
    path = FilePath(pattern)
    return FilePath(path.anchor).glob(str(path.relative_to(path.anchor))) if path.is_absolute() else folder.glob(pattern)
