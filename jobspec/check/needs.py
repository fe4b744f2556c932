"""Checks that a TrainingJob has the optional fields that its trainer requires."""

from collections.abc import Iterator

from headway.jobspec.invalid import lacking
from headway.jobspec.parse import Parsed
from headway.jobspec.problem import Problem
from headway.jobspec.spec.job import TrainingJob


def check_needs(job: Parsed[TrainingJob], needs: tuple[str, ...]) -> Iterator[Problem]:
    """A problem for each field that is not there; one of the wrong form has its own, and a document for others to extend lacks none."""
    if not job.has(("partial",)) or job.spec.partial:
        return
    for name in needs:
        if job.has((name,)) and getattr(job.spec, name) is None:
            yield lacking(name, TrainingJob, job.document)
