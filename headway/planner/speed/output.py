"""Computes the time of the embedding, the output layer and the loss on one rank, for one microbatch."""

from headway.planner.speed.cost import ACTIVATION
from headway.planner.speed.rates import Rates
from headway.planner.training import Training


def embedding(micro: Training, rates: Rates) -> tuple[float, float]:
    """Forward and backward. Tensor-parallel ranks have a part of the vocabulary each and add up what they found."""
    size = ACTIVATION * micro.tokens_per_rank * micro.model.hidden
    moved = rates.stream(2 * size)
    return moved + rates.links.all_reduce(rates.groups.tp, size), 2 * moved


def output_layer(micro: Training, rates: Rates) -> tuple[float, float]:
    """Return the output layer and the loss over its scores: as one kernel they are read and written once each way; else
    also cast to fp32, and that read and written by the softmax, its logarithm and their gradients. Tensor-parallel
    ranks have a part of the vocabulary each; where the loss is not made for that, they gather the scores and all
    compute the whole."""
    model, tokens, tp = micro.model, micro.tokens_per_rank, micro.degrees.tp
    product = [rates.matmul(*shape, plain=True) for shape in _orders(tokens, model.vocab_size / tp, model.hidden)]
    scores = tokens * model.vocab_size
    moved, gathered = scores / tp, 0.0
    if not rates.profile.loss_split:
        moved, gathered = scores, rates.links.all_gather(rates.groups.tp, ACTIVATION * scores)
    forward, backward = (6, 4) if rates.kernels.loss else (20, 14)
    return product[0] + rates.stream(forward * moved) + gathered, product[1] + product[2] + rates.stream(backward * moved)


def _orders(m: float, n: float, k: float) -> tuple[tuple[float, float, float], ...]:
    """Return the shapes of a product forward, of its input's gradient, and of its weight's."""
    return (m, n, k), (m, k, n), (k, n, m)
