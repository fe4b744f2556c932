"""Computes the time of a block's passes on one rank: matrix products, attention, element-wise work, and collectives between them.

A block is its attention, and its MLP or its experts. Each of these is a `PartCost`; experts.py makes one for experts, in the same terms.
"""

from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

from headway.jobspec.resolve.model import ModelSizes
from headway.planner.speed import attention
from headway.planner.speed.cost import ACTIVATION, NOTHING, Cost, PartCost
from headway.planner.speed.rates import Rates, rates_of
from headway.planner.speed.speed import Speed
from headway.planner.training import Training


class Products(NamedTuple):
    """Seconds of matrix products: forward, both gradients, and the casts into their format that go with each of the first two."""

    forward: float
    input_gradient: float
    weight_gradient: float
    casts: float


@lru_cache(maxsize=4096)
def dense_block(micro: Training, speed: Speed) -> PartCost:
    """Return a block with a plain MLP, of one_microbatch(training)."""
    rates = rates_of(micro, speed)
    return finished(attention_part(micro, rates).plus(mlp_part(micro, rates)), rates)


def finished(block: PartCost, rates: Rates) -> PartCost:
    """Return the block's passes with the time in which the accelerator waits for the host's launches.

    Kernels queue up, so the host shows where it is slower over the whole pass (softened: queues run empty before that).
    """
    share = 0.0 if rates.kernels.graphs else 0.5 if rates.kernels.compiled else 1.0
    return PartCost(
        *(_launched(getattr(block, name), share) for name in ("forward", "input_gradient", "weight_gradient", "again"))
    )


def _launched(cost: Cost, share: float) -> Cost:
    device, host = cost.seconds, cost.host * share
    return cost._replace(launch=cost.launch + (device**4 + host**4) ** 0.25 - device)


def attention_part(micro: Training, rates: Rates) -> PartCost:
    """Norm, projections, attention over the sequence, and back into the residual stream."""
    model, tp, tokens = micro.model, micro.degrees.tp, micro.tokens_per_rank
    products = _products(tokens, attention.projections(model, tp), rates)
    core, core_backward = attention.core(micro, rates)
    width, keys = model.heads * model.head_dim / tp, max(model.kv_heads / tp, 1) * model.head_dim
    rope = ACTIVATION * 2 * (width + keys) * tokens * rates.profile.passes if model.positions == "rotary" else 0.0
    stream = _residual(micro, rates)
    moved = rates.stream(stream[0] + rope + _dropped(model, tokens)), rates.stream(stream[1] + rope)
    forward = core._replace(matmul=products.forward, memory=moved[0] + products.casts)
    backward = core_backward._replace(matmul=products.input_gradient, memory=moved[1] + products.casts)
    again = _again(micro, core, products, {"norm": rates.stream(stream[0])})
    return _communicating(micro, rates, (forward, backward), products.weight_gradient, share=0.6, again=again)


def mlp_part(micro: Training, rates: Rates) -> PartCost:
    """Norm, the MLP, and back into the residual stream."""
    model, tp, tokens = micro.model, micro.degrees.tp, micro.tokens_per_rank
    width = model.ffn_hidden / tp
    gated = model.mlp == "gated"
    products = _products(tokens, ((width * (2 if gated else 1), model.hidden), (model.hidden, width)), rates)
    # Forward reads gate and up and writes one; backward reads their gradient and both, and writes both.
    moved = ACTIVATION * tokens * width * rates.profile.passes
    stream = _residual(micro, rates)
    acted = rates.stream(moved * (3 if gated else 2))
    forward = Cost(matmul=products.forward, memory=rates.stream(stream[0]) + acted + products.casts)
    backward = Cost(matmul=products.input_gradient, memory=rates.stream(stream[1] + moved * (5 if gated else 3)) + products.casts)
    again = _again(micro, NOTHING, products, {"norm": rates.stream(stream[0]), "activation": acted, "mlp": forward.memory})
    if "mlp" in micro.recomputed_parts:
        again = again._replace(matmul=products.forward)
    return _communicating(micro, rates, (forward, backward), products.weight_gradient, share=0.4, again=again)


def _again(micro: Training, core: Cost, products: Products, streams: Mapping[str, float]) -> Cost:
    """Return the cost of selective recomputation: attention where it is among the parts, element-wise work of
    the parts, and for `matmuls` all of that work and every second product."""
    parts = micro.recomputed_parts
    if "matmuls" in parts:
        return Cost(matmul=products.forward / 2, memory=sum(streams.values()))
    return Cost(attention=core.attention if "attention" in parts else 0.0, memory=sum(streams.get(part, 0.0) for part in parts))


def _products(tokens: float, matrices: tuple[tuple[float, float], ...], rates: Rates) -> Products:
    """Return the seconds of all matrices, one after the other."""
    inputs = sum(k for _, k in matrices)
    return Products(
        forward=sum(rates.matmul(tokens, n, k) for n, k in matrices),
        input_gradient=sum(rates.matmul(tokens, k, n) for n, k in matrices),
        weight_gradient=sum(rates.matmul(k, n, tokens) for n, k in matrices)
        + rates.stream(rates.profile.accumulate * sum(n * k for n, k in matrices)),
        casts=rates.stream(rates.cast * tokens * inputs),
    )


def _residual(micro: Training, rates: Rates) -> tuple[float, float]:
    """Return bytes that a norm and the addition to the residual stream move forward and backward, on the tokens that
    the rank has between its tensor-parallel parts. A norm that is one kernel reads and writes once; of PyTorch's
    operations six pass over it, most in fp32 (huggingface/transformers: LlamaRMSNorm)."""
    split = micro.degrees.tp if micro.degrees.sequence_parallel else 1
    numbers = ACTIVATION * micro.tokens_per_rank * micro.model.hidden / split
    norm = (2, 3) if rates.kernels.norm else (18, 36)
    added = 3 * rates.profile.passes
    return numbers * (norm[0] + added), numbers * (norm[1] + added)


def _dropped(model: ModelSizes, tokens: float) -> float:
    """Return bytes of two dropouts with their masks."""
    return 2 * 5 * tokens * model.hidden if model.dropout else 0.0


def _communicating(
    micro: Training, rates: Rates, passes: tuple[Cost, Cost], weights: float, share: float, again: Cost
) -> PartCost:
    """Return a part, forward and backward, with the collectives of its ranks. It has `share` of the block's launches."""
    forward, backward = passes
    profile = rates.profile
    tensor = profile.tensor * _tensor(micro, rates)
    hidden = _hidden(micro.overlaps.tensor, profile.tensor_forward), _hidden(micro.overlaps.tensor, profile.tensor_backward)
    context = _context(micro, rates, forward, backward) if share > 0.5 else (0.0, 0.0)
    host, stall = share * profile.launch_us * 1e-6, share * profile.stall_us * 1e-6
    first = forward._replace(tensor=tensor * (1 - hidden[0]), context=context[0], host=host, launch=stall)
    return PartCost(
        first,
        backward._replace(tensor=tensor * (1 - hidden[1]), context=context[1], host=host, launch=stall),
        Cost(matmul=weights, host=0.5 * host),
        {"full": first, "selective": again, "none": NOTHING}[micro.recompute],
    )


def _hidden(chosen: bool | None, share: float) -> float:
    """Return the share of communication that is hidden: none where overlap is off, at least this much where it is on."""
    if chosen is None:
        return share
    return max(share, 0.4) if chosen else 0.0


def _tensor(micro: Training, rates: Rates) -> float:
    """Return a part's collectives over the tensor-parallel ranks, in one direction (arXiv 1909.08053, section 3;
    2205.05198, section 4.2.2)."""
    size = ACTIVATION * micro.tokens_per_rank * micro.model.hidden
    group = rates.groups.tp
    if micro.degrees.sequence_parallel:
        return 2 * rates.links.all_gather(group, size)
    return rates.links.all_reduce(group, size)


def _context(micro: Training, rates: Rates, forward: Cost, backward: Cost) -> tuple[float, float]:
    """Keys and values go round the ring of context-parallel ranks, and back with their gradients; a step's transfer
    runs in parallel with the attention of the step before (arXiv 2310.01889)."""
    group = rates.groups.cp
    if group.size == 1:
        return 0.0, 0.0
    keys = max(micro.model.kv_heads / micro.degrees.tp, 1) * micro.model.head_dim
    transfer = (group.size - 1) * rates.links.send(group, 2 * ACTIVATION * micro.tokens_per_rank * keys)
    hidden = rates.profile.context
    return max(0.0, transfer - hidden * forward.attention), max(0.0, 2 * transfer - hidden * backward.attention)
