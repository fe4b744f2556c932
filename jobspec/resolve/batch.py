"""Computes what one optimizer step reads, in sequences: at the start, and from each step at which the history changes it."""

from collections.abc import Iterator
from typing import Any

from headway.jobspec.document import Path
from headway.jobspec.spec.batch import Batch
from headway.jobspec.spec.job import TrainingJob
from headway.jobspec.units import parse_amount


def global_sequences(batch: Batch) -> int:
    """Return the sequences of one optimizer step; tokens that fill no whole sequence are ignored (`check_job` refuses them)."""
    amount = batch.global_batch
    return amount.sequences if amount.sequences is not None else (amount.tokens or 0) // batch.sequence_length


def with_amount(batch: Batch, amount: Any) -> Batch | None:
    """Return the batch with another amount, as a document writes it; None if that is invalid (`check_history` reports it)."""
    try:
        return batch.model_copy(update={"global_batch": parse_amount(amount)})
    except (TypeError, ValueError):
        return None


def batches(job: TrainingJob) -> Iterator[tuple[Path, Batch]]:
    """Return every batch of the run, each with the path of its amount."""
    if job.batch is None:
        return
    yield ("batch", "global"), job.batch
    for index, entry in enumerate(job.history):
        if (batch := with_amount(job.batch, entry.set.get("batch.global"))) is not None:
            yield ("history", index, "set", "batch.global"), batch
