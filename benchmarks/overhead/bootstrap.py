"""The ratio of two jobs' times over paired blocks, with the interval that resampling whole pairs gives."""

import random
from collections.abc import Sequence
from dataclasses import dataclass

RESAMPLES = 10_000


@dataclass(frozen=True)
class Ratio:
    """The mean of ours over the mean of the other's, and the bounds within which it lies in 95 of 100 resamples."""

    mean: float
    low: float
    high: float


def ratio(ours_s: Sequence[float], other_s: Sequence[float], seed: int = 0, resamples: int = RESAMPLES) -> Ratio:
    """Pairs of blocks are drawn with replacement: neighbours saw the same machine (Efron and Tibshirani, An Introduction to the Bootstrap,
    1993, percentile interval)."""
    chance, pairs = random.Random(seed), list(zip(ours_s, other_s, strict=True))
    drawn = sorted(_of(chance.choices(pairs, k=len(pairs))) for _ in range(resamples))
    return Ratio(_of(pairs), drawn[round(0.025 * resamples)], drawn[round(0.975 * resamples) - 1])


def _of(pairs: Sequence[tuple[float, float]]) -> float:
    return sum(ours for ours, _ in pairs) / sum(other for _, other in pairs)
