"""Computes the time of attention on one rank, by the kernel that computes it, and of the matrices around it."""

from headway.jobspec.resolve.model import LatentAttentionSizes, ModelSizes
from headway.planner.speed.cost import Cost
from headway.planner.speed.rates import Rates
from headway.planner.training import Training


def projections(model: ModelSizes, tp: int) -> tuple[tuple[float, float], ...]:
    """Return the matrices of a block's attention on one tensor-parallel rank, as (outputs, inputs)."""
    latent = model.latent_attention
    if latent is not None:
        return _latent_projections(model, latent, tp)
    width, keys = model.heads * model.head_dim / tp, max(model.kv_heads / tp, 1) * model.head_dim
    return ((width + 2 * keys, model.hidden), (model.hidden, width))


def _latent_projections(model: ModelSizes, latent: LatentAttentionSizes, tp: int) -> tuple[tuple[float, float], ...]:
    """Return the matrices. The down-projections are whole on every rank (Megatron-LM:
    megatron/core/transformer/multi_latent_attention.py)."""
    queries = model.heads * (latent.nope_head + latent.rope_head) / tp
    q = ((queries, model.hidden),) if latent.q_rank is None else ((latent.q_rank, model.hidden), (queries, latent.q_rank))
    down = (latent.kv_rank + latent.rope_head, model.hidden)
    up = (model.heads * (latent.nope_head + latent.value_head) / tp, latent.kv_rank)
    return (*q, down, up, (model.hidden, model.heads * latent.value_head / tp))


def core(micro: Training, rates: Rates) -> tuple[Cost, Cost]:
    """Attention itself, forward and backward."""
    if rates.kernels.attention in ("unfused", "fused"):
        return _written_scores(micro, rates)
    model, latent = micro.model, micro.model.latent_attention
    values = model.head_dim if latent is None else latent.value_head
    # Tiles on the diagonal are computed whole: 64 tokens more on average for tiles of 128.
    operations = 2 * micro.tokens_per_rank * (attended(micro) + 64) * model.heads / micro.degrees.tp * (model.head_dim + values)
    # Heads of 64 attain about 15 % less than heads of 128 (arXiv 2307.08691, figures 4 to 6); the kernels before did not differ.
    narrow = 1.0 if rates.kernels.attention == "flash1" else 1 + 0.15 * (128 / min(values, 128) - 1)
    forward = operations * narrow / rates.attention_forward
    # Backward has five products for the two of forward (arXiv 2205.14135, appendix B).
    return Cost(attention=forward), Cost(attention=2.5 * operations * narrow / rates.attention_backward)


def attended(micro: Training) -> float:
    """Return tokens that a token attends to, on average over blocks and positions, under a causal mask."""
    half = micro.sequence / 2
    if micro.window is None:
        return half
    window = min(micro.window, micro.sequence)
    return micro.windowed_share * window * (1 - window / (2 * micro.sequence)) + (1 - micro.windowed_share) * half


def _written_scores(micro: Training, rates: Rates) -> tuple[Cost, Cost]:
    """Attention whose scores are written to memory: the full square."""
    model, tokens = micro.model, micro.tokens_per_rank
    scores = tokens * micro.sequence * model.heads / micro.degrees.tp
    # The first product is only as deep as a head is wide, and half of all there is.
    product = 2 * scores * model.head_dim / rates.plain * (1 + 200 / model.head_dim)
    forward, backward = _MOVED[rates.kernels.attention or "unfused"]
    dropped = 5 if model.dropout else 0
    return (
        Cost(attention=max(2 * product, rates.stream(4 * scores)) + rates.stream((forward - 4 + dropped) * scores)),
        Cost(attention=max(4 * product, rates.stream(6 * scores)) + rates.stream((backward - 6 + dropped) * scores)),
    )


# Bytes that each score moves forward and backward, in 16 bits: the first product writes it, softmax reads and writes it, the second product
# reads it; backward one product writes its gradient, softmax reads that and its own result and writes, two products read. Single operations
# also pass over it for the mask, for casts to fp32 and back, and for softmax in fp32.
_MOVED = {"fused": (8, 12), "unfused": (28, 34)}
