"""Counts the operations of a training step independently of the planner: 6 per token and parameter, and those of attention."""

from headway.planner.training import Training


def model_flops(training: Training) -> float:
    """Return the operations of one optimizer step, forward and backward, attention over the full square (arXiv
    2204.02311, appendix B), active experts only."""
    model = training.model
    matrices = model.active_parameters - model.embedding_parameters
    if model.tie_embeddings:
        matrices += model.vocab_size * model.hidden
    return training.tokens * (6.0 * matrices + 12.0 * model.layers * _attention_width(training) * _context(training))


def hardware_flops(training: Training) -> float:
    """Return the same with what recomputation does again: a forward pass, a third, of the share that is recomputed in full."""
    again = training.recomputed_share / 3 if training.recompute == "full" else 0.0
    return model_flops(training) * (1 + again)


def _attention_width(training: Training) -> float:
    model = training.model
    value = model.latent_attention.value_head if model.latent_attention else model.head_dim
    return model.heads * (model.head_dim + value) / 2


def _context(training: Training) -> float:
    full = 1 - training.windowed_share
    return full * training.sequence + training.windowed_share * min(training.sequence, training.window or training.sequence)
