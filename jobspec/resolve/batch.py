"""What one optimizer step reads, counted in sequences."""

from headway.jobspec.spec.batch import Batch


def global_sequences(batch: Batch) -> int:
    """Sequences of one optimizer step; tokens that fill no whole sequence are left out (`check_job` refuses them)."""
    amount = batch.global_batch
    return amount.sequences if amount.sequences is not None else (amount.tokens or 0) // batch.sequence_length
