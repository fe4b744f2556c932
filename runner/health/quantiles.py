"""Keeps durations in a histogram of logarithmic buckets: constant memory, constant time to add, old values fade."""

import math

# Of a bucket's bounds: a quantile is at most 4 % too high.
_RATIO = 1.04
_BUCKETS_A_LOG = 1 / math.log(_RATIO)
_SHORTEST_S = 1e-4
# Samples; then all counts are halved, so that old values fade.
_FADES_AT = 100_000


def bucket_of(seconds: float) -> int:
    """Return the bucket of a duration."""
    return math.ceil(math.log(seconds / _SHORTEST_S) * _BUCKETS_A_LOG) if seconds > _SHORTEST_S else 0


class Quantiles:
    """The usual values of a duration in seconds."""

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}
        self._total = 0

    def __len__(self) -> int:
        return self._total

    def add(self, bucket: int) -> None:
        """Count a duration, given its `bucket_of`."""
        self._counts[bucket] = self._counts.get(bucket, 0) + 1
        self._total += 1
        if self._total >= _FADES_AT:
            self._fade()

    def at(self, share: float) -> float:
        """Return the duration that `share` of all did not exceed, the longest when they are few; 0 without any."""
        left = math.ceil(share * self._total)
        for bucket in sorted(self._counts):
            left -= self._counts[bucket]
            if left <= 0:
                return _SHORTEST_S * float(_RATIO**bucket)
        return 0.0

    def _fade(self) -> None:
        self._counts = {bucket: count // 2 for bucket, count in self._counts.items() if count > 1}
        self._total = sum(self._counts.values())
