"""Computes cheap lower bounds of a layout's time and memory, so that few layouts need an exact score."""

from math import gcd, inf
from typing import NamedTuple

from msgspec import Struct

from headway.planner.search.layouts import Layouts, Variant
from headway.planner.search.request import Request
from headway.planner.speed.step import step_time
from headway.planner.training import Degrees, Recompute

# Schedules whose ranks wait for (pp - 1) / chunks microbatches (arXiv 2104.04473, section 2.2).
_WAITING = frozenset({"GPipe", "1F1B", "Interleaved1F1B", "LoopedBFS"})
# The others fill what they wait with weight gradients (arXiv 2401.10241, section 2), but the last rank still waits for the first forward
# passes, each at least this share of a microbatch's time: the backward takes twice as long, and may compute the forward again.
_FORWARD = 1 / 4
# And a microbatch's way through all stages and back takes at least what is not weight gradients.
_WITHOUT_WEIGHTS = 2 / 3


class Bound(Struct, frozen=True):
    """Seconds that a step takes at least: of computing and of communication that each microbatch waits for, and with the bubble."""

    computing: float
    with_bubble: float


class _Pass(NamedTuple):
    """The parameters of a microbatch's time; the data-parallel ranks matter where they hold parts of the parameters."""

    tp: int
    cp: int
    ep: int
    dp_shard: int
    dp_replicate: int
    sequence_parallel: bool
    micro: int
    recompute: Recompute


class Bounds:
    """Bounds of one request's layouts. A microbatch's time through the whole model depends on few of the choices, and is kept."""

    def __init__(self, request: Request, layouts: Layouts) -> None:
        self._request = request
        self._layouts = layouts
        self._passes: dict[_Pass, float] = {}

    def of_all(self, degrees: Degrees) -> Bound:
        """Return the least of all variants' bounds."""
        computing, with_bubble = inf, inf
        for micro, accumulation in self._layouts.passes(degrees):
            orders = self._layouts.orders(degrees.pp, accumulation)
            passes = min((_passes(*order, degrees.pp, accumulation) for order in orders), default=inf)
            each = min(
                self._alone(degrees, split, micro, recompute) / degrees.pp
                for split in self._layouts.splits(degrees)
                for recompute in self._layouts.recomputes
            )
            computing = min(computing, each * accumulation)
            with_bubble = min(with_bubble, each * passes)
        return Bound(computing, with_bubble)

    def of(self, degrees: Degrees, variant: Variant) -> Bound:
        """Return the bound of one layout, without what its data-parallel ranks exchange."""
        return _bound(degrees, variant, self._alone(degrees, variant.sequence_parallel, variant.micro, variant.recompute))

    def refined(self, degrees: Degrees, variant: Variant) -> Bound:
        """Return the same with the parameters that come from other ranks for every microbatch. It costs more."""
        seconds = self._pass(
            _Pass(
                degrees.tp,
                degrees.cp,
                degrees.ep,
                degrees.dp_shard,
                degrees.dp_replicate,
                variant.sequence_parallel,
                variant.micro,
                variant.recompute,
            )
        )
        return _bound(degrees, variant, seconds)

    def _alone(self, degrees: Degrees, split: bool, micro: int, recompute: Recompute) -> float:
        """Return one microbatch on the fewest ranks that hold the experts."""
        tp, cp, ep = degrees.tp, degrees.cp, degrees.ep
        return self._pass(_Pass(tp, cp, ep, ep // gcd(ep, tp * cp), 0, split, micro, recompute))

    def _pass(self, key: _Pass) -> float:
        """Return seconds that one microbatch takes through all layers without a pipeline: what the third of a step adds
        to two."""
        if key not in self._passes:
            degrees = Degrees(
                tp=key.tp,
                cp=key.cp,
                dp_shard=key.dp_shard,
                dp_replicate=max(1, key.dp_replicate),
                ep=key.ep,
                expert_tp=key.tp if key.ep == 1 and self._request.model.experts is not None else 1,
                sequence_parallel=key.sequence_parallel,
                sharding="parameters" if key.dp_replicate else "none",
            )
            steps = (self._request.training(degrees, key.micro, count, key.recompute) for count in (2, 3))
            two, three = (step_time(step).seconds for step in steps)
            self._passes[key] = three - two
        return self._passes[key]


def _bound(degrees: Degrees, variant: Variant, seconds: float) -> Bound:
    """Return the bound for microbatches that take so long through the whole model."""
    each = seconds / degrees.pp
    passes = _passes(variant.schedule, variant.chunks, degrees.pp, variant.accumulation)
    return Bound(each * variant.accumulation, each * passes)


def _passes(schedule: str, chunks: int, pp: int, accumulation: int) -> float:
    """Microbatches through one rank that take as long as the pipeline does at least: those of the step and those that fit into the time
    that the rank waits; or one microbatch through all ranks, forward and back."""
    whole = schedule in _WAITING
    waiting = (pp - 1) / chunks * (1.0 if whole else _FORWARD)
    return max(accumulation + waiting, pp * (1.0 if whole else _WITHOUT_WEIGHTS))
