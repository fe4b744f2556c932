"""A TrainingJob document against itself."""

from collections.abc import Callable, Iterator

from headway.jobspec.check.names import check_unique
from headway.jobspec.parse import Parsed
from headway.jobspec.problem import JOB, Problem, Severity
from headway.jobspec.spec.job import TrainingJob


def check_job(job: Parsed[TrainingJob]) -> Iterator[Problem]:
    """Every problem of the sections that are valid by themselves."""
    for needs, check in _RULES:
        if job.has(needs):
            yield from check(job.spec)


def _check_clusters(job: TrainingJob) -> Iterator[Problem]:
    yield from check_unique(JOB, ("cluster",), None, job.cluster)


def _check_heads(job: TrainingJob) -> Iterator[Problem]:
    model = job.model
    if model.heads % model.kv_heads:
        message = f"{model.heads} query heads do not divide over {model.kv_heads} key and value heads"
        hint = f"`kv_heads` must divide `heads`: {_divisors(model.heads)}"
        yield Problem("HW303", JOB, ("model", "kv_heads"), message, hint)
    if model.hidden % model.heads:
        message = f"`hidden` {model.hidden} is not a multiple of `heads` {model.heads}"
        below = model.hidden - model.hidden % model.heads
        hint = f"the nearest multiple is {below + model.heads}" + (f" or {below}" if below else "")
        yield Problem("HW302", JOB, ("model", "hidden"), message, hint)
    elif (model.hidden // model.heads) % 2:
        message = f"an attention head has {model.hidden // model.heads} dimensions; rotary positions turn them in pairs"
        yield Problem("HW304", JOB, ("model", "hidden"), message, "make `hidden` / `heads` even")


def _check_first_checkpoint(job: TrainingJob) -> Iterator[Problem]:
    for index, tier in enumerate(job.checkpoint.tiers):
        if tier.every_steps > job.steps:
            message = f"the run ends after {job.steps} steps, before its first checkpoint at {tier.every_steps}"
            path = ("checkpoint", "tiers", index, "every_steps")
            yield Problem("HW701", JOB, path, message, f"use at most {job.steps}", Severity.WARNING)


def _check_warmup(job: TrainingJob) -> Iterator[Problem]:
    if job.optimizer.warmup_steps > job.steps:
        message = f"the warm-up of {job.optimizer.warmup_steps} steps is longer than the run of {job.steps}"
        hint = f"`lr` is never reached; use at most {job.steps}"
        yield Problem("HW308", JOB, ("optimizer", "warmup_steps"), message, hint, Severity.WARNING)


def _divisors(number: int) -> str:
    """The divisors of `number`, at most the sixteen smallest."""
    found = [candidate for candidate in range(1, min(number, 4096) + 1) if number % candidate == 0]
    return ", ".join(map(str, found[:16]))


_Rule = Callable[[TrainingJob], Iterator[Problem]]
_RULES: tuple[tuple[tuple[str, ...], _Rule], ...] = (
    (("cluster",), _check_clusters),
    (("model",), _check_heads),
    (("checkpoint", "steps"), _check_first_checkpoint),
    (("optimizer", "steps"), _check_warmup),
)
