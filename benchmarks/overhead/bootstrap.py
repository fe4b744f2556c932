"""Computes the ratio of two jobs' times over pairs of turns, with a confidence interval by resampling whole starts of both jobs."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

RESAMPLES = 10_000
_SHARE = 0.95


@dataclass(frozen=True)
class Ratio:
    """The mean of headway's values over the mean of the other's, and the bounds of its 95 % interval."""

    mean: float
    low: float
    high: float


def ratio(ours_s: Sequence[float], other_s: Sequence[float], seed: int = 0, resamples: int = RESAMPLES) -> Ratio:
    """Return seconds of the same start in both, two starts or more. Starts are drawn with replacement and both sides of
    each together: neighbours saw the same machine (Efron and Tibshirani, An Introduction to the Bootstrap, 1993,
    percentile interval). Of so few the plain percentiles cover too little, so theirs are moved outwards to where a
    mean's would have Student's bounds (Hesterberg, What Teachers Should Know about the Bootstrap, The American
    Statistician 69, 2015: the expanded percentile interval)."""
    both, count = np.array([ours_s, other_s]), len(ours_s)
    drawn = both[:, np.random.default_rng(seed).integers(0, count, (resamples, count))].sum(axis=2)
    outside = NormalDist().cdf(-((count / (count - 1)) ** 0.5) * student(count - 1))
    low, high = np.quantile(drawn[0] / drawn[1], [outside, 1 - outside])
    ours, other = both.sum(axis=1)
    return Ratio(float(ours / other), float(low), float(high))


def student(freedom: int) -> float:
    """Return the bound of Student's t that 95 of 100 lie within (Abramowitz and Stegun, 26.7.5, two terms): right to
    0.01 from 5 degrees on."""
    z = NormalDist().inv_cdf(0.5 + _SHARE / 2)
    return z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
