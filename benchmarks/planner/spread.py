"""Summarizes relative errors for tables, and computes the rank correlation of two lists."""

import statistics
from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

Pair = tuple[float, float]
"""A prediction and its measurement."""


class Errors(Struct, frozen=True):
    """Of `rows` pairs: mean, median, 90th percentile and worst of |predicted / measured - 1|; `bias` is the mean without the bars."""

    rows: int
    mean: float
    median: float
    p90: float
    worst: float
    bias: float


def errors(pairs: Iterable[Pair]) -> Errors | None:
    """None where there are no pairs."""
    signed = [predicted / measured - 1 for predicted, measured in pairs]
    if not signed:
        return None
    sizes = sorted(abs(error) for error in signed)
    return Errors(
        rows=len(sizes),
        mean=statistics.fmean(sizes),
        median=statistics.median(sizes),
        p90=sizes[min(len(sizes) - 1, int(0.9 * len(sizes)))],
        worst=sizes[-1],
        bias=statistics.fmean(signed),
    )


def mean_of_groups(groups: Mapping[str, Sequence[Pair]]) -> float | None:
    """Return the mean over the groups of each group's mean error, so that a large group weighs no more than a small one."""
    means = [found.mean for pairs in groups.values() if (found := errors(pairs)) is not None]
    return statistics.fmean(means) if means else None


def rank_correlation(pairs: Sequence[Pair]) -> float | None:
    """Spearman's, with ties ranked in the middle; None for fewer than three pairs or where one side does not vary."""
    if len(pairs) < 3:
        return None
    first, second = (_ranks([pair[side] for pair in pairs]) for side in (0, 1))
    if len(set(first)) == 1 or len(set(second)) == 1:
        return None
    return statistics.correlation(first, second)


def _ranks(values: Sequence[float]) -> list[float]:
    order = sorted(values)
    return [order.index(value) + (order.count(value) - 1) / 2 for value in values]
