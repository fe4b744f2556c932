"""Checks that a TrainingJob has the optional fields that its trainer requires."""

from collections.abc import Iterator

from headway.jobspec.invalid import lacking
from headway.jobspec.parse import Parsed
from headway.jobspec.problem import Problem
from headway.jobspec.spec.job import TrainingJob


def check_needs(job: Parsed[TrainingJob], needs: tuple[str, ...]) -> Iterator[Problem]:
    """Yield a problem for each missing field; one of the wrong form has a separate one, and a base document may omit any."""
    if not job.has(("partial",)) or job.spec.partial:
        return
    for name in needs:
        if job.has((name,)) and getattr(job.spec, name) is None:
            yield lacking(name, TrainingJob, job.document)
