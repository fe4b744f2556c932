"""Checks that a TrainingJob has the optional fields that its trainer requires."""

from collections.abc import Iterator

from headway.jobspec.parse import Parsed
from headway.jobspec.problem import JOB, Problem
from headway.jobspec.short import fewest_twice, has_two_programs
from headway.jobspec.spec.job import TrainingJob


def check_needs(job: Parsed[TrainingJob], needs: tuple[str, ...]) -> Iterator[Problem]:
    """Yield a problem if the job names nothing to run, or two programs, and for each missing field of its trainer.

    A field of the wrong form has a separate problem, and a base document may omit any.
    """
    if not job.has(("partial",)) or job.spec.partial:
        return
    document = job.document
    if job.has(("run", "trainer", "data")) and not any(
        document.value((name,)) is not None for name in ("run", "trainer", "data")
    ):
        hint = (
            "write `run: [train.py]` for a training script; for the builtin trainer, what it reads: `data: {kind: python-stdlib}`"
        )
        yield Problem("HW202", JOB, (), "`run` or `trainer` is missing from a TrainingJob: nothing is run", hint, at_key=True)
    if has_two_programs(document):
        message = "`run` and `trainer` are both set, and `run` is short for a trainer"
        yield Problem("HW210", JOB, ("run",), message, "keep one of the two", at_key=True)
    if fewest_twice(document):
        message = "`min_nodes` and the `min` of `nodes` are both set, and mean the same"
        yield Problem("HW210", JOB, ("nodes", "min_nodes"), message, "leave `min_nodes` out", at_key=True)
    for name in needs:
        if job.has((name,)) and getattr(job.spec, name) is None:
            from headway.jobspec.invalid import lacking  # noqa: PLC0415 (most documents are valid)

            yield lacking(name, TrainingJob, job.document)
