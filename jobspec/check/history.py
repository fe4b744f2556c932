"""Checks the `history` of a TrainingJob: its steps, the fields that it sets, and their values."""

import json
from collections.abc import Iterator
from itertools import pairwise

from msgspec.structs import replace
from pydantic import ValidationError

from headway.jobspec.change import How, Rule, changeable, changeable_fields, field_at, meant_field
from headway.jobspec.document import Document, Path
from headway.jobspec.notation import counted
from headway.jobspec.parse import Parsed
from headway.jobspec.problem import JOB, Problem, Severity
from headway.jobspec.spec.history import Change, takes_effect_at
from headway.jobspec.spec.job import TrainingJob
from headway.runner.contract import STORED_TIERS


def check_history(job: Parsed[TrainingJob]) -> Iterator[Problem]:
    """Yield every problem of the entries, each by itself and in their order."""
    if not job.has(("history",)):
        return
    history = job.spec.history
    yield from _check_order(history)
    if job.has(("steps",)):
        yield from _check_end(job.spec)
    for index, entry in enumerate(history):
        yield from _check_rollback(index, entry)
        if job.has(("checkpoint",)):
            yield from _check_saved(index, entry, job.spec)
        yield from _check_effect(index, entry)
        for name in entry.set:
            yield from _check_field(job.document, ("history", index, "set", name), name)


def _check_order(history: tuple[Change, ...]) -> Iterator[Problem]:
    """Check that each entry comes after the step from which the run continued after the previous one, which a rollback
    moves back."""
    for index, (before, entry) in enumerate(pairwise(history), 1):
        went_on = takes_effect_at(before)
        if entry.from_step <= went_on:
            message = f"`from_step` {entry.from_step} is not after {went_on}, where the run resumed after the previous entry"
            hint = "order the entries by step; merge those of one step into one entry"
            yield Problem("HW218", JOB, ("history", index, "from_step"), message, hint)


def _check_rollback(index: int, entry: Change) -> Iterator[Problem]:
    if entry.rollback_to is not None and entry.rollback_to > entry.from_step:
        message = f"`rollback_to` {entry.rollback_to} is ahead of `from_step` {entry.from_step}"
        hint = f"use at most {entry.from_step}: a run can only go back to a step that it has completed"
        yield Problem("HW218", JOB, ("history", index, "rollback_to"), message, hint)


def _check_saved(index: int, entry: Change, job: TrainingJob) -> Iterator[Problem]:
    """Warn of a rollback to a step at which no tier is due to save; one that a stop or an earlier interval left may be there."""
    every = [] if job.checkpoint is None else [tier.every for tier in job.checkpoint.tiers if tier.kind in STORED_TIERS]
    steps = [each.steps for each in every if each.steps is not None]
    if not entry.rollback_to or not steps or len(steps) < len(every) or any(entry.rollback_to % each == 0 for each in steps):
        return
    nearest = max(entry.rollback_to // each * each for each in steps)
    message = f"no checkpoint is due at step {entry.rollback_to}: they are saved every {' and '.join(map(str, steps))} steps"
    hint = f"write `{nearest}`; if the run has one at step {entry.rollback_to}, as after a stop, accept this with `ignore`"
    yield Problem("HW218", JOB, ("history", index, "rollback_to"), message, hint, Severity.WARNING, fix=str(nearest))


def _check_effect(index: int, entry: Change) -> Iterator[Problem]:
    if entry.rollback_to is None and not entry.skip_samples and not entry.set:
        message = "the entry changes nothing"
        hint = "add `set`, `skip_samples` or `rollback_to`, or remove the entry"
        yield Problem("HW218", JOB, ("history", index), message, hint, Severity.WARNING)


def _check_end(job: TrainingJob) -> Iterator[Problem]:
    """Check that each entry takes effect before the run ends by the earlier entries, and that none ends it in its past."""
    # From which step on the run has how many.
    ends: list[tuple[int, int]] = []
    for index, entry in enumerate(job.history):
        begins, steps = takes_effect_at(entry), entry.set.get("steps")
        reached = ends[-1][1] if ends else job.steps
        ends = [each for each in ends if entry.rollback_to is None or each[0] < entry.rollback_to]
        end = ends[-1][1] if ends else job.steps
        if isinstance(steps, int) and steps < begins:
            message = f"`steps` {steps} ends the run before step {begins}, where it takes effect"
            hint = f"use at least {begins}, which ends the run there"
            if reached is not None and entry.from_step > reached:
                hint = f"use at most {reached} in `from_step`: the run ends after {counted(reached, 'step')}"
            yield Problem("HW218", JOB, ("history", index, "set", "steps"), message, hint)
        elif isinstance(steps, int) and reached is not None and entry.from_step > reached:
            message = f"`from_step` {entry.from_step} is never reached: the run ends after {counted(reached, 'step')}"
            hint = (
                f"write `{reached}`, where it continues with more steps"
                if entry.rollback_to is None
                else f"use at most {reached}"
            )
            fix = str(reached) if entry.rollback_to is None else None
            yield Problem("HW218", JOB, ("history", index, "from_step"), message, hint, fix=fix)
        elif end is not None and steps is None and reached is not None and entry.from_step > reached > begins:
            message = f"`from_step` {entry.from_step} is never reached: the run ends after {counted(reached, 'step')}"
            yield Problem("HW218", JOB, ("history", index, "from_step"), message, f"use at most {reached}")
        elif end is not None and steps is None and begins >= end:
            key = "from_step" if entry.rollback_to is None else "rollback_to"
            message = f"`{key}` {begins} is never reached: the run ends after {counted(end, 'step')}"
            hint = f"use less than {end}, or set more `steps` in the same entry, for example `set: {{steps: {2 * begins}}}`"
            yield Problem("HW218", JOB, ("history", index, key), message, hint)
        if isinstance(steps, int):
            ends.append((begins, steps))


def _check_field(document: Document, path: Path, name: str) -> Iterator[Problem]:
    if field_at(name) is None:
        yield _unknown(path, name)
    elif (rule := changeable(name)).how is not How.HISTORY:
        yield _not_for_history(path, name, rule)
    else:
        yield from _check_value(document, path, name)


def _unknown(path: Path, name: str) -> Problem:
    settable = [field for field in changeable_fields() if changeable(field).how is How.HISTORY]
    if any(field.startswith(f"{name}.") for field in changeable_fields()):
        inside = [field for field in settable if field.startswith(f"{name}.")]
        hint = f"name a field of it, for example `{inside[0]}`" if inside else "no field of it belongs in `history`"
        return Problem("HW219", JOB, path, f"`{name}` is a section of a TrainingJob, not a field", hint, at_key=True)
    field, colon, value = name.partition(":")
    if colon and field in settable:
        fix = f"{field}: {value}"
        return Problem("HW219", JOB, path, "no blank after the `:`", f"write `{fix}`", at_key=True, fix=fix)
    near = meant_field(name, settable)
    return Problem("HW219", JOB, path, f"`{name}` is not a field of a TrainingJob", near.text, at_key=True, fix=near.fix)


def _not_for_history(path: Path, name: str, rule: Rule) -> Problem:
    if rule.how is How.NEW_RUN:
        message = f"`{name}` cannot change in a run: {rule.reason}"
        return Problem("HW219", JOB, path, message, "start a new run with it, and leave this run as it is", at_key=True)
    message = f"`{name}` does not change what is computed: {rule.reason}"
    hint = f"change `{name}` itself: the next attempt uses it"
    return Problem("HW219", JOB, path, message, hint, at_key=True)


def _check_value(document: Document, path: Path, name: str) -> Iterator[Problem]:
    """Check the value like the field itself."""
    place = tuple(name.split("."))
    alone = _alone(document, path, place)
    try:
        TrainingJob.model_validate_json(json.dumps(alone.data))
    except ValidationError as error:
        from headway.jobspec.invalid import describe  # noqa: PLC0415 (most documents are valid)

        # Also errors of its neighbours, which are missing here.
        for problem in describe(error, TrainingJob, alone):
            if problem.path[: len(place)] == place:
                yield replace(problem, code="HW219", path=(*path, *problem.path[len(place) :]))


def _alone(document: Document, path: Path, place: Path) -> Document:
    """Return the document with the value at `path` moved to `place`, and no other value there."""
    data = document.value(path)
    for segment in reversed(place):
        data = {segment: data}
    inside = {found: (*place, *found[len(path) :]) for found in document.values if found[: len(path)] == path}
    values = {there: document.values[found] for found, there in inside.items()}
    scalars = frozenset(there for found, there in inside.items() if found in document.scalars)
    return Document(document.name, document.text, data, {}, values, scalars)
