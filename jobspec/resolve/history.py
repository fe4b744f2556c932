"""Converts a job's history for run.json: each value under its key in the runner's record, batches in sequences."""

from typing import Any

from headway.jobspec.resolve.batch import global_sequences, with_amount
from headway.jobspec.spec.history import Change
from headway.jobspec.spec.job import TrainingJob
from headway.runner import contract


def resolve_history(job: TrainingJob) -> tuple[contract.Change, ...]:
    """Return the entries of a job that passed its checks."""
    return tuple(_change(entry, job) for entry in job.history)


def _change(entry: Change, job: TrainingJob) -> contract.Change:
    values = dict(_value(name, value, job) for name, value in entry.set.items())
    return contract.Change(entry.from_step, entry.rollback_to, entry.skip_samples, values)


def _value(name: str, value: Any, job: TrainingJob) -> tuple[str, Any]:
    """Name and value as the runner has them; most are the same there."""
    if name == "batch.global" and job.batch is not None and (batch := with_amount(job.batch, value)) is not None:
        return "batch.global_sequences", global_sequences(batch)
    return name, value
