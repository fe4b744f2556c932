"""Counts the operations of a step, for the rate at which a run computes and its share of the hardware's peak."""

from headway.runner.contract.run_config import Batch, Model


def step_flops(model: Model, batch: Batch) -> tuple[float, float]:
    """Return the operations of one step over all ranks, forward and backward, without recomputation: where attention counts the half
    that a causal mask leaves, and the full square.

    Six for each parameter of a matrix that a token goes through, the output layer's too, the embedding's not; and
    attention's products of queries with keys and of weights with values (arXiv 2204.02311, appendix B).
    """
    head_dim = model.hidden // model.heads
    attention = 2 * model.hidden * (model.heads + model.kv_heads) * head_dim
    matrices = model.layers * (attention + 3 * model.hidden * model.ffn_hidden) + model.vocab_size * model.hidden
    full = 12 * model.layers * model.heads * head_dim * batch.sequence_length
    tokens = batch.global_sequences * batch.sequence_length
    return tokens * (6 * matrices + full / 2), tokens * (6 * matrices + full)
