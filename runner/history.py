"""Applies a run's history, as pure functions: values of a step, position of its samples, and how far back a claim must go."""

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

from headway.runner.contract import Change, RunConfig, in_force, samples_before


def at(config: RunConfig, step: int) -> RunConfig:
    """Return the configuration of the step that follows `step` completed ones. Raises TypeError for a value that
    run.json does not support."""
    found = config
    for change in in_force(config.history):
        if change.takes_effect_at <= step:
            for name, value in change.set.items():
                found = _with(found, name, value)
    return found


def position(config: RunConfig, step: int) -> int:
    """Return the position in the sample order of the first sample after `step` completed steps, skipped samples included."""
    if config.batch is None:
        raise ValueError("run.json: samples are counted in batches, but `batch` is null")
    return samples_before(config.history, config.batch.global_sequences, step)


# --- what a claim applies ---------------------------------------------------------------------------------------------


def carried_out(history: Sequence[Change]) -> int:
    """Return how many entries a claim that uses this history applies: those up to the last rollback."""
    return max((index for index, change in enumerate(history, 1) if change.rollback_to is not None), default=0)


def limit(history: Sequence[Change], done: int) -> int | None:
    """Return the step of the checkpoint that the next claim must go back to, 0 for the beginning, after claims have
    applied `done` entries.

    None if no later entry goes back. Raises ValueError when the history has lost an applied entry.
    """
    if done > carried_out(history):
        raise ValueError(f"claims rolled back by the first {done} entries of `history`, but run.json does not have all of them")
    return min((change.rollback_to for change in history[done:] if change.rollback_to is not None), default=None)


def refusal(history: Sequence[Change], done: int, checkpoints: Collection[int]) -> str | None:
    """Return why the next claim cannot go back as the history requires, given the steps of `checkpoints` that count;
    None if it can."""
    try:
        step = limit(history, done)
    except ValueError as error:
        return str(error)
    if not step or step in checkpoints:
        return None
    there = ", ".join(map(str, sorted(set(checkpoints)))) or "none"
    return f"`history` goes back to step {step}, but there is no valid checkpoint of that step; there are: {there}"


def _with(config: RunConfig, name: str, value: Any) -> RunConfig:
    """Return the configuration with one value replaced, by its path in the record: `steps`, `optimizer.lr`."""
    section, _, field = name.rpartition(".")
    return replace(config, **{section: replace(getattr(config, section), **{field: value})} if section else {field: value})
