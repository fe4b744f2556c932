"""Checks the fields and the names of a sweep."""

from collections.abc import Iterator

from headway.jobspec.change import changeable_fields, is_field, meant_field
from headway.jobspec.document import Document, Path
from headway.jobspec.flow import flow
from headway.jobspec.parse import Parsed
from headway.jobspec.problem import JOB, Problem
from headway.jobspec.spec.job import TrainingJob
from headway.jobspec.sweep import FIXED, is_swept, points

_MOST = 1000


def check_sweep(job: Parsed[TrainingJob]) -> Iterator[Problem]:
    """Check that a sweep has points, each with a name of its own, and that it sets fields of a job."""
    if not job.has(("sweep",)) or job.spec.sweep is None:
        return
    grid: Path = ("sweep", "grid")
    yield from (problem for field in job.spec.sweep.grid for problem in _check_field(field, (*grid, field)))
    for index, values in enumerate(job.spec.sweep.points):
        yield from (problem for field in values for problem in _check_field(field, ("sweep", "points", index, field)))
    found = points(job.document)
    if not found or len(found) > _MOST:
        message = f"the sweep has {len(found)} points; it needs 1 to {_MOST}"
        hint = "list values by field under `grid`, for example `grid: {optimizer.lr: [1e-4, 3e-4]}`"
        yield Problem("HW240", JOB, ("sweep",), message, hint, at_key=True)
    twice = list(_twice(job.document))
    yield from twice
    seen: set[str] = set()
    for point in found if not twice else ():
        if point.name in seen and all(map(is_swept, point.values)):
            place = next(place for _, place in point.values.values())
            yield Problem("HW240", JOB, place, f"two points would be the run `{point.name}`", "remove one of the two")
        seen.add(point.name)


def _twice(document: Document) -> Iterator[Problem]:
    """Yield a problem for each value that a field of the grid has twice."""
    grid = document.value(("sweep", "grid")) or {}
    for field, values in grid.items():
        for index, value in enumerate(values):
            if any(value == each and type(value) is type(each) for each in values[:index]):
                message = f"`{flow(value)}` is there twice: two points would be the same run"
                yield Problem("HW240", JOB, ("sweep", "grid", field, index), message, "remove one of the two")


def _check_field(field: str, place: Path) -> Iterator[Problem]:
    if field.partition(".")[0] in FIXED:
        hint = "sweep a value that its arguments hold, or `trainer.options.argv`" if field == "run" else "write a separate job"
        if field == "name":
            hint = "leave it out: each run has the job's name and its values"
        yield Problem("HW240", JOB, place, f"`{field}` is one for all runs of a sweep", hint, at_key=True)
    elif not is_field(field):
        near = meant_field(field, [each for each in changeable_fields() if is_swept(each)])
        yield Problem("HW240", JOB, place, f"`{field}` is not a field of a TrainingJob", near.text, at_key=True, fix=near.fix)
