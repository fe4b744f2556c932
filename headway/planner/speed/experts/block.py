"""Computes the time of a block with experts on one rank: routing, dispatch, the experts' matrix products, and combining."""

import math
from functools import lru_cache

from msgspec import Struct
from msgspec.structs import replace

from headway.jobspec.resolve.model import ExpertSizes
from headway.planner.speed.attention import projections
from headway.planner.speed.compute import attention_part
from headway.planner.speed.cost import ACTIVATION, NOTHING, Cost, PartCost
from headway.planner.speed.experts.exchange import dispatcher_of, exchanged, sent_tokens
from headway.planner.speed.experts.host import again_seconds, host_seconds, operations
from headway.planner.speed.experts.speed import ExpertSpeed
from headway.planner.speed.rates import Rates, rates_of
from headway.planner.speed.speed import Speed
from headway.planner.training import Training

# Rows of one tile of a grouped matrix product: no tile has rows of two experts.
_TILE = 128
# Bytes that routing moves for each of a token's scores: scores in fp32, their softmax, the choice as a mask and as weights, and what the
# auxiliary loss counts (NVIDIA/Megatron-LM: megatron/core/transformer/moe/router.py).
_ROUTING = 40

Products = tuple[float, float, float]
"""Seconds of matrix products: forward, of the inputs' gradients, of the weights'."""


class Load(Struct, frozen=True):
    """The load of the busiest rank's experts from a microbatch: of `tokens` that each rank sends, so that `rows` arrive
    for its `local` experts of `width`."""

    sizes: ExpertSizes
    hidden: int
    gates: int
    tokens: float
    local: float
    width: float
    rows: float

    @property
    def matrices(self) -> tuple[tuple[float, float], ...]:
        """The matrices of one expert on one rank, as (outputs, inputs)."""
        return ((self.width * self.gates, self.hidden), (self.hidden, self.width))

    @property
    def parameters(self) -> float:
        """The parameters of the routed experts of one rank."""
        return self.local * sum(outputs * inputs for outputs, inputs in self.matrices)

    @property
    def each(self) -> float:
        """Rows of one expert, in whole tiles."""
        return math.ceil(self.rows / self.local / _TILE) * _TILE

    @property
    def activated(self) -> float:
        """Numbers that the activation reads and writes forward."""
        return (self.gates + 1) * self.width * self.rows


@lru_cache(maxsize=4096)
def expert_block(micro: Training, speed: Speed) -> PartCost:
    """Return a block with experts, of one_microbatch(training)."""
    rates, constants = rates_of(micro, speed), speed.experts
    block = attention_part(micro, rates).plus(expert_part(micro, rates, constants))
    return _waiting(block, constants.queue)


def load_of(micro: Training) -> Load:
    """Return the load of a rank. Ranks that split one expert all get its tokens. Raises ValueError for a model without
    experts."""
    model, experts, degrees = micro.model, micro.model.experts, micro.degrees
    if experts is None:
        raise ValueError("the model has no experts")
    tokens = sent_tokens(micro)
    return Load(
        sizes=experts,
        hidden=model.hidden,
        gates=2 if model.mlp == "gated" else 1,
        tokens=tokens,
        local=experts.count / degrees.ep,
        width=experts.ffn_hidden / degrees.expert_tp,
        rows=tokens * experts.top_k * degrees.expert_tp,
    )


def expert_part(micro: Training, rates: Rates, constants: ExpertSpeed) -> PartCost:
    """Router, dispatch, routed and shared experts, and back into the residual stream."""
    load = load_of(micro)
    products = _products(micro, load, rates, constants)
    exchange = exchanged(micro, rates, constants)
    memory = rates.stream(_moved(micro, load, rates, constants) + rates.cast * load.rows * (load.hidden + load.width))
    host = host_seconds(operations(micro), micro, constants)
    forward = Cost(matmul=products[0], memory=memory, experts=exchange, host=host)
    backward = Cost(matmul=products[1], memory=memory, experts=exchange, host=host + again_seconds(micro, constants))
    accumulated = rates.stream(rates.profile.accumulate * load.parameters)
    weights = Cost(matmul=products[2] + accumulated, host=0.5 * host)
    return PartCost(forward, backward, weights, _again(micro, load, rates, forward))


def _products(micro: Training, load: Load, rates: Rates, constants: ExpertSpeed) -> Products:
    grouped = replace(rates, depth=rates.depth * constants.depth)
    routed, shared = _routed(load, grouped), _shared(micro, load, rates)
    router = rates.matmul(load.tokens, load.sizes.count, load.hidden, plain=True)
    forward, inputs, weights = (one + other + router for one, other in zip(routed, shared, strict=True))
    return forward, inputs, weights


def _routed(load: Load, rates: Rates) -> Products:
    """Return the products of a rank's experts, each kind as one grouped product: tiles of all experts fill the
    accelerator together, one ends while the next begins."""
    rows, each, local = load.each * load.local, load.each, load.local
    read = rates.stream(ACTIVATION * load.parameters)
    return (
        max(read, sum(rates.matmul(rows, n, k) for n, k in load.matrices)),
        max(read, sum(rates.matmul(rows, k, n) for n, k in load.matrices)),
        sum(rates.matmul(local * n, k, each) for n, k in load.matrices),
    )


def _shared(micro: Training, load: Load, rates: Rates) -> Products:
    """Return the cost of the shared experts, which are split over tensor-parallel ranks like a plain MLP."""
    if not load.sizes.shared:
        return 0.0, 0.0, 0.0
    width, tokens = load.sizes.shared * load.sizes.shared_ffn_hidden / micro.degrees.tp, micro.tokens_per_rank
    matrices = ((width * load.gates, load.hidden), (load.hidden, width))
    return (
        sum(rates.matmul(tokens, n, k) for n, k in matrices),
        sum(rates.matmul(tokens, k, n) for n, k in matrices),
        sum(rates.matmul(k, n, tokens) for n, k in matrices),
    )


def _moved(micro: Training, load: Load, rates: Rates, constants: ExpertSpeed) -> float:
    """Return bytes moved in one direction: the router's scores, routed tokens on their way to the experts and back, the
    activation, and a norm and the residual stream. A scattered sum of PyTorch's adds one number at a time."""
    dispatcher = dispatcher_of(micro)
    copies = dispatcher.copies + (0.0 if dispatcher.fused(micro.framework) else constants.scattered)
    stream = (7 if rates.kernels.norm else 19) * load.tokens * load.hidden
    numbers = copies * load.rows * load.hidden + load.activated * rates.profile.passes + stream
    return _ROUTING * load.tokens * load.sizes.count + ACTIVATION * numbers


def _again(micro: Training, load: Load, rates: Rates, forward: Cost) -> Cost:
    """Return the cost of what the backward pass recomputes."""
    parts = micro.recomputed_parts
    if micro.recompute == "full" or (micro.recompute == "selective" and "experts" in parts):
        return forward
    if micro.recompute == "none":
        return NOTHING
    return Cost(
        matmul=_latent_up(micro, rates) if "mla_up_proj" in parts else 0.0,
        memory=rates.stream(ACTIVATION * load.activated) if "activation" in parts else 0.0,
    )


def _latent_up(micro: Training, rates: Rates) -> float:
    """Return the projections up from what latent attention compresses."""
    latent = micro.model.latent_attention
    if latent is None:
        return 0.0
    ups = [matrix for matrix in projections(micro.model, micro.degrees.tp) if matrix[1] in (latent.q_rank, latent.kv_rank)]
    return sum(rates.matmul(micro.tokens_per_rank, n, k) for n, k in ups)


def _waiting(block: PartCost, power: float) -> PartCost:
    """Return the block's passes with the time in which the accelerator waits for its host.

    The host reads from the accelerator how many tokens each expert gets, in every block, and so cannot run ahead as it
    does where it only launches: their times add up by `power`.
    """

    def waited(cost: Cost) -> Cost:
        together = float((cost.seconds**power + cost.host**power) ** (1 / power))
        return cost._replace(launch=cost.launch + together - cost.seconds)

    return PartCost(*(waited(cost) for cost in (block.forward, block.input_gradient, block.weight_gradient, block.again)))
