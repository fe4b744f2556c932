"""Computes how a job scales: the best layout for each number of GPUs, its throughput, and where more GPUs stop paying."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from math import log2
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from headway.planner.estimate import Estimate
from headway.planner.goodput.interval import best_interval, expected_goodput, with_interval
from headway.planner.goodput.run import SimulatedRun
from headway.planner.search.search import Request, search

Growth = Literal["strong", "weak"]
"""`strong`: the global batch stays as it is. `weak`: it grows with the GPUs."""

Correction = Callable[[Estimate], Estimate]

PAYS = 0.5
"""GPUs pay as long as each that is added gives at least this much of what one gave before."""

_RANGE = re.compile(r"([1-9][0-9]{0,8})(k?)\.\.([1-9][0-9]{0,8})(k?)")
_KIBI = {"": 1, "k": 1024}
_MOST_GPUS = 1 << 24
_COMMUNICATION = " communication"
# The reasons for costs whose name does not explain why they grow.
_WHY: Mapping[str, str] = {
    "matmul": "matrix products, which become too small to be efficient",
    "attention": "attention, of which each rank has too little to be efficient",
    "bubble": "the pipeline's bubble: too few microbatches for its stages",
    "failures": "time lost to failures",
    "launch": "launching kernels, which become too short",
}


class ScalingPoint(Struct, frozen=True):
    """The best layout on so many GPUs, None where nothing fits or divides; `goodput` is the share of time that counts, None if unknown.

    `efficiency` is tokens a second of one GPU against the same at the fewest GPUs that have a layout.
    """

    gpus: int
    sequences: int
    best: Estimate | None
    efficiency: float = 0.0
    goodput: float | None = None

    @property
    def tokens_s(self) -> float:
        """Tokens a second of all GPUs during training."""
        return 0.0 if self.best is None else self.best.tokens_s

    @property
    def effective_tokens_s(self) -> float:
        """Tokens a second with failures counted, where they are known."""
        return self.tokens_s * (1.0 if self.goodput is None else self.goodput)

    @property
    def communication(self) -> float:
        """The share of a step in which ranks wait for each other's data; waiting for the pipeline to fill is `bubble`."""
        return 0.0 if self.best is None else sum(self._shares(_COMMUNICATION))

    @property
    def bubble(self) -> float:
        """The share of a step in which the busiest rank waits for the pipeline."""
        return 0.0 if self.best is None else sum(self._shares("bubble"))

    @property
    def costs(self) -> Mapping[str, float]:
        """GPU-seconds for a token by what they are spent on, failures too."""
        if self.best is None:
            return {}
        scale = self.gpus / self.best.training.tokens
        costs = {name: seconds * scale for name, seconds in self.best.step.parts.items()}
        if self.goodput is not None:
            costs["failures"] = self.best.step.seconds * scale * (1 / self.goodput - 1)
        return costs

    def _shares(self, ending: str) -> Iterator[float]:
        if self.best is not None:
            parts = self.best.step.parts
            yield from (seconds / self.best.step.seconds for name, seconds in parts.items() if name.endswith(ending))


class Scaling(Struct, frozen=True):
    """Strong or weak scaling. `pays_to` is the largest number of GPUs up to which more of them paid; None where they pay throughout.

    `marginal` is what each GPU beyond that gives, as a share of what one gives there, and `cost` what grows most.
    """

    growth: Growth
    points: tuple[ScalingPoint, ...]
    pays_to: int | None = None
    marginal: float = 0.0
    cost: str = ""

    @property
    def words(self) -> str:
        """Where more GPUs stop paying, and why."""
        usable = [point.gpus for point in self.points if point.best is not None]
        if not usable:
            return "no layout fits on any of these numbers of GPUs"
        if len(usable) == 1:
            return f"a layout fits on {usable[0]:,} GPUs only, so there is nothing to compare"
        if self.pays_to is None:
            return f"more GPUs pay up to {max(usable):,}: each added GPU gives at least {PAYS:.0%} of what one gave before"
        added = f"gives {self.marginal:.0%} of what one gives there" if self.marginal > 0 else "makes the job no faster"
        return (
            f"more than {self.pays_to:,} GPUs do not pay: each added GPU {added}; "
            f"what grows most is {_WHY.get(self.cost, self.cost)}"
        )


def _as_it_is(found: Estimate) -> Estimate:
    return found


def gpu_counts(text: str) -> tuple[int, ...]:
    """`1k..100k` as numbers of GPUs: the powers of 2 from the one that is nearest to the first to the one nearest to the last; k is 1,024.

    Raises ValueError.
    """
    found = _RANGE.fullmatch(text)
    if found is None:
        raise ValueError(f"`{text}` is not a range of GPUs such as `1k..100k`")
    low, high = (int(number) * _KIBI[unit] for number, unit in (found.group(1, 2), found.group(3, 4)))
    if not low <= high <= _MOST_GPUS:
        raise ValueError(f"`{text}` must ascend, to {_MOST_GPUS // 1024}k at most")
    return tuple(1 << power for power in range(round(log2(low)), round(log2(high)) + 1))


def scaling(
    request: Request, gpus: Sequence[int], growth: Growth, run: SimulatedRun | None = None, corrected: Correction = _as_it_is
) -> Scaling:
    """Return the request's job on each of these numbers of GPUs, in order. With `run`, the job as a run on one of them,
    failures count too.

    `corrected` is what measurements make of the estimate of the layout that a search finds best.
    """
    points = [_point(request, count, growth, run, corrected) for count in sorted(gpus)]
    first = next((point for point in points if point.best is not None), None)
    if first is None:
        return Scaling(growth, tuple(points))
    alone = first.tokens_s / first.gpus
    measured = tuple(replace(point, efficiency=point.tokens_s / point.gpus / alone) for point in points)
    return _judged(growth, measured)


def _point(request: Request, gpus: int, growth: Growth, run: SimulatedRun | None, corrected: Correction) -> ScalingPoint:
    sequences = request.sequences if growth == "strong" else max(1, request.sequences * gpus // request.gpus)
    found = _best(replace(request, gpus=gpus, sequences=sequences, top=1))
    best = None if found is None else corrected(found)
    goodput = None if best is None or run is None else _goodput(run, best, gpus)
    return ScalingPoint(gpus, sequences, best, goodput=goodput)


# Strong and weak scaling ask the same on as many GPUs as the job has.
@lru_cache(maxsize=32)
def _best(request: Request) -> Estimate | None:
    return search(request).best


def _goodput(run: SimulatedRun, found: Estimate, gpus: int) -> float:
    """Return the goodput of the run on so many GPUs, each tier saving as often as is best there."""
    there = replace(run, nodes=max(1, gpus // run.gpus_per_node), step_s=found.step.seconds)
    for tier in there.tiers:
        there = with_interval(there, tier.kind, best_interval(there, tier.kind))
    return expected_goodput(there)


def _judged(growth: Growth, points: tuple[ScalingPoint, ...]) -> Scaling:
    """Return where an added GPU first gives less than half of what one gave before."""
    for before, after in pairwise(point for point in points if point.best is not None):
        added = (after.effective_tokens_s - before.effective_tokens_s) / (after.gpus - before.gpus)
        marginal = added / (before.effective_tokens_s / before.gpus)
        if marginal < PAYS:
            return Scaling(growth, points, before.gpus, marginal, _grown(before.costs, after.costs))
    return Scaling(growth, points)


def _grown(before: Mapping[str, float], after: Mapping[str, float]) -> str:
    """Return what costs most more GPU-seconds for a token than before."""
    return max(sorted(after), key=lambda name: after[name] - before.get(name, 0.0))
