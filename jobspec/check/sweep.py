"""Checks the fields and the names of a sweep."""

from collections.abc import Iterator

from headway.jobspec.change import changeable_fields, field_at
from headway.jobspec.document import Path
from headway.jobspec.parse import Parsed
from headway.jobspec.problem import JOB, Problem
from headway.jobspec.spec.job import TrainingJob
from headway.jobspec.suggest import did_you_mean
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
    seen: set[str] = set()
    for point in found:
        if point.name in seen and all(map(is_swept, point.values)):
            place = next(place for _, place in point.values.values())
            yield Problem("HW240", JOB, place, f"two points would be the run `{point.name}`", "remove one of the two")
        seen.add(point.name)


def _check_field(field: str, place: Path) -> Iterator[Problem]:
    if field.partition(".")[0] in FIXED:
        hint = "sweep a value that its arguments hold, or `trainer.options.argv`" if field == "run" else "write a separate job"
        yield Problem("HW240", JOB, place, f"`{field}` is one for all runs of a sweep", hint, at_key=True)
    elif field_at(field) is None:
        near = did_you_mean(field, list(changeable_fields()), "fields")
        yield Problem("HW240", JOB, place, f"`{field}` is not a field of a TrainingJob", near.text, at_key=True)
