"""Counts the operations of a training step, as model FLOPs utilization does."""

from headway.planner.speed.attention import attended
from headway.planner.training import Training


def model_flops(training: Training) -> tuple[float, float]:
    """Return the operations of one step on all GPUs, forward and backward, without recomputation: where attention
    counts what a causal mask leaves, and the full square. Six for each parameter of a matrix that a token goes through,
    the output layer's too, the embedding's not (arXiv 2204.02311, appendix B); attention's products of queries with
    keys and of weights with values."""
    model, latent = training.model, training.model.latent_attention
    matrices = model.active_parameters - model.embedding_parameters
    if model.tie_embeddings:
        matrices += model.vocab_size * model.hidden
    widths = model.heads * (model.head_dim + (model.head_dim if latent is None else latent.value_head))
    each = 6 * model.layers * widths
    causal, full = each * attended(training), each * _attended_full(training)
    return training.tokens * (6 * matrices + causal), training.tokens * (6 * matrices + full)


def _attended_full(training: Training) -> float:
    if training.window is None:
        return training.sequence
    window = min(training.window, training.sequence)
    return training.windowed_share * window + (1 - training.windowed_share) * training.sequence
