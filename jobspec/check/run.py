"""Checks an edited TrainingJob against its run: past computation is unchanged, and `history` records every later change."""

from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import Struct

from headway.jobspec.change import How, ValueChange, as_written, changes, entry_for
from headway.jobspec.check.layout import sizes_of
from headway.jobspec.check.multiples import listed_numbers
from headway.jobspec.parse import Parsed
from headway.jobspec.problem import JOB, Problem
from headway.jobspec.resolve.fingerprint import values_of, with_sizes
from headway.jobspec.spec.job import TrainingJob


class RunSoFar(Struct, frozen=True):
    """A run: its name, its newest attempt with the spec that it was made from, and the newest step of its checkpoints.

    `checkpoints` are the steps of all that exist; empty if they are unknown. The run has already applied the first
    `carried_out` entries of the history.
    """

    name: str
    attempt: int
    spec: Mapping[str, Any]
    committed_step: int
    checkpoints: tuple[int, ...] = ()
    carried_out: int = 0


def changes_since(run: RunSoFar, job: Parsed[TrainingJob]) -> list[ValueChange]:
    """Return the differences between the job and the run's newest attempt."""
    return changes(run.spec, with_sizes(values_of(job.spec), sizes_of(job)))


def new_entries(run: RunSoFar, job: TrainingJob) -> Iterator[int]:
    """Yield which entries of the job's `history` the run's newest attempt did not have, by index."""
    known = _entries(run.spec)
    for index, entry in enumerate(_entries(values_of(job))):
        if index >= len(known) or known[index] != entry:
            yield index


def check_run(job: Parsed[TrainingJob], run: RunSoFar) -> Iterator[Problem]:
    """Yield every change with which the run cannot continue. The job must be complete."""
    found = changes_since(run, job)
    yield from (_starts_a_new_run(change, run) for change in found if change.how is How.NEW_RUN)
    yield from _check_said(job.spec, run, [change for change in found if change.how is How.HISTORY])
    yield from _check_kept(job.spec, run)
    yield from _check_ahead(job.spec, run)


def _starts_a_new_run(change: ValueChange, run: RunSoFar) -> Problem:
    message = f"{_differs(change, run)}, which starts a new run: {change.reason}"
    return Problem("HW419", JOB, change.path, message, f"{_back(change)} to resume `{run.name}`, or start a new run")


def _check_said(job: TrainingJob, run: RunSoFar, found: list[ValueChange]) -> Iterator[Problem]:
    """Report fields of `history` that were changed in their own place, which holds the run's initial values."""
    said = {name: entry.from_step for entry in job.history for name in entry.set}
    missing = [change for change in found if change.name not in said]
    first = max(run.committed_step, *(entry.from_step + 1 for entry in job.history), 0)
    for change in found:
        message = f"{_differs(change, run)}: {change.reason}, and `history` must record from which step on"
        if change in missing:
            hint = f"{_back(change)} and record the change in `history`: `{entry_for(missing, first)}`; or start a new run"
        else:
            hint = f"{_back(change)}: `history` has its new value, from step {said[change.name]} on"
        yield Problem("HW420", JOB, change.path, message, hint)


def _check_kept(job: TrainingJob, run: RunSoFar) -> Iterator[Problem]:
    """Check that entries that have taken effect stay unchanged."""
    new = set(new_entries(run, job))
    for index, entry in _in_effect(run).items():
        if index in new or index >= len(job.history):
            message = f"`history[{index}]` has taken effect in run `{run.name}`, but was changed or removed since"
            hint = f"restore it as `{as_written((), entry)}`; add another entry to undo it"
            yield Problem("HW421", JOB, ("history", index), message, hint)


def _check_ahead(job: TrainingJob, run: RunSoFar) -> Iterator[Problem]:
    """Check that new entries do not affect steps that were computed without them, unless the run goes back before these."""
    for index in sorted(set(new_entries(run, job)) - _in_effect(run).keys()):
        entry, done = job.history[index], run.committed_step
        if entry.rollback_to is None and entry.from_step < done:
            message = f"`from_step` {entry.from_step} is before step {done}, up to which run `{run.name}` was computed without this entry"
            hint = f"use {done} or more, or add `rollback_to`, the step of the checkpoint that the run goes back to"
            yield Problem("HW421", JOB, ("history", index, "from_step"), message, hint)
        if entry.rollback_to is not None:
            yield from _check_back(index, entry.rollback_to, run)


def _check_back(index: int, step: int, run: RunSoFar) -> Iterator[Problem]:
    """Check that a run goes back to an existing checkpoint, or to its beginning."""
    path = ("history", index, "rollback_to")
    if step > run.committed_step:
        message = f"`rollback_to` {step} is ahead of step {run.committed_step}, the newest checkpoint of run `{run.name}`"
        yield Problem("HW421", JOB, path, message, f"use at most {run.committed_step}")
    elif step and run.checkpoints and step not in run.checkpoints:
        message = f"run `{run.name}` has no checkpoint of step {step} to go back to"
        yield Problem("HW421", JOB, path, message, f"use {listed_numbers(sorted(run.checkpoints))}")


def _differs(change: ValueChange, run: RunSoFar) -> str:
    new, old = as_written(change.path, change.new), as_written(change.path, change.old)
    if change.old is None:
        return f"`{change.name}` is `{new}`, and run `{run.name}` was made without it"
    now = "was removed" if change.new is None else f"is `{new}`"
    return f"`{change.name}` {now}, and run `{run.name}` was made with `{old}`"


def _back(change: ValueChange) -> str:
    return "remove it" if change.old is None else f"put `{as_written(change.path, change.old)}` back"


def _entries(spec: Mapping[str, Any]) -> list[dict[str, Any]]:
    return list(spec.get("history") or [])


def _in_effect(run: RunSoFar) -> dict[int, dict[str, Any]]:
    """Return the entries that the run has gone back by, or computed its newest checkpoint with, by index."""
    found = enumerate(_entries(run.spec))
    return {index: entry for index, entry in found if index < run.carried_out or _is_computed(entry, run.committed_step)}


def _is_computed(entry: Mapping[str, Any], step: int) -> bool:
    """Return whether steps up to this one were computed with an entry that goes back nowhere."""
    return entry.get("rollback_to") is None and int(entry["from_step"]) < step
