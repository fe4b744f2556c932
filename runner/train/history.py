"""Applies a run's history, as pure functions: values of a step, position of its samples, and how far back a claim must go."""

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

from headway.runner.contract import Change, RunConfig, in_force


def at(config: RunConfig, step: int) -> RunConfig:
    """The configuration of the step that follows `step` completed ones. Raises TypeError for a value that run.json has no place for."""
    found = config
    for change in in_force(config.history):
        if change.takes_effect_at <= step:
            for name, value in change.set.items():
                found = _with(found, name, value)
    return found


def position(config: RunConfig, step: int) -> int:
    """The place in the sample order of the first sample after `step` completed steps: what they read, and what was left out up to there."""
    if config.batch is None:
        raise ValueError("run.json: samples are counted in batches, but `batch` is null")
    found, begun, batch = 0, 0, config.batch.global_sequences
    for change in in_force(config.history):
        if change.takes_effect_at > step:
            break
        found += (change.takes_effect_at - begun) * batch + change.skip_samples
        begun, batch = change.takes_effect_at, change.set.get("batch.global_sequences", batch)
    return found + (step - begun) * batch


# --- what a claim carries out -----------------------------------------------------------------------------------------


def carried_out(history: Sequence[Change]) -> int:
    """How many entries are done with once a claim goes by this history: those up to the last that goes back."""
    return max((index for index, change in enumerate(history, 1) if change.rollback_to is not None), default=0)


def limit(history: Sequence[Change], done: int) -> int | None:
    """The step of the checkpoint that the next claim goes back to, 0 for the beginning, where claims have carried out `done` entries.

    None where no entry since goes back. Raises ValueError when the history has lost an entry that was carried out.
    """
    if done > carried_out(history):
        raise ValueError(f"claims rolled back by the first {done} entries of `history`, but run.json does not have all of them")
    return min((change.rollback_to for change in history[done:] if change.rollback_to is not None), default=None)


def refusal(history: Sequence[Change], done: int, checkpoints: Collection[int]) -> str | None:
    """Why the next claim cannot go back as the history says, where `checkpoints` are the steps that count; None where it can."""
    try:
        step = limit(history, done)
    except ValueError as error:
        return str(error)
    if not step or step in checkpoints:
        return None
    there = ", ".join(map(str, sorted(set(checkpoints)))) or "none"
    return f"`history` goes back to step {step}, but there is no valid checkpoint of that step; there are: {there}"


def _with(config: RunConfig, name: str, value: Any) -> RunConfig:
    """The configuration with one value replaced, by its place in the record: `steps`, `optimizer.lr`."""
    section, _, field = name.rpartition(".")
    return replace(config, **{section: replace(getattr(config, section), **{field: value})} if section else {field: value})
