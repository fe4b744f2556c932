"""Counts the operations of a step, for the rate at which a run computes and its share of the hardware's peak."""

from dataclasses import replace

from headway.runner.contract.run_config import Batch, Model, RunConfig


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


def step_rates(config: RunConfig | None, tokens: int, step_s: float) -> dict[str, float]:
    """Return the rates of a step of so many tokens that has taken `step_s` seconds, which are not 0.

    `tokens_per_s` of all ranks; where the model is known, `tflops_causal` and `tflops_full`, 10^12 operations a second of one rank; where
    the peak of its GPU in bf16 is known, `mfu_causal` and `mfu_full`, their shares of it.
    """
    found = {"tokens_per_s": tokens / step_s}
    if config is None or config.model is None or config.batch is None:
        return found
    # A history may have changed the batch.
    batch = replace(config.batch, global_sequences=tokens // config.batch.sequence_length)
    for name, flops in zip(("causal", "full"), step_flops(config.model, batch), strict=True):
        rate = flops / step_s / config.world_size / 1e12
        found[f"tflops_{name}"] = rate
        if config.peak_tflops is not None:
            found[f"mfu_{name}"] = rate / config.peak_tflops
    return found
