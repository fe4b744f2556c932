"""Reads a trace of torch.profiler: how long the GPU computed, communicated, and communicated without computing."""

import gzip
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

Span = tuple[float, float]


class TraceTimes(Struct, frozen=True):
    """Seconds of a rank's GPU between its first and its last kernel; `exposed_s` are those of communication while nothing computed."""

    seconds: float
    compute_s: float
    communication_s: float
    exposed_s: float


def trace_times(file: Path) -> TraceTimes | None:
    """Return the times of the trace; None if it has no GPU kernels. Raises OSError, and ValueError for a file that is not a trace."""
    with gzip.open(file, "rt", encoding="utf-8") as text:
        found: Any = json.load(text)
    if not isinstance(found, dict) or not isinstance(found.get("traceEvents"), list):
        raise ValueError("not a trace of torch.profiler")
    kernels = [each for each in found["traceEvents"] if each.get("cat") == "kernel" and each.get("ph") == "X"]
    if not kernels:
        return None
    sending: list[Span] = []
    computing: list[Span] = []
    for kernel in kernels:
        span = kernel["ts"] / 1e6, (kernel["ts"] + kernel["dur"]) / 1e6
        # NCCL's and RCCL's kernels begin so.
        (sending if "nccl" in kernel["name"].lower() else computing).append(span)
    busy = _length(_union(sending + computing))
    compute_s = _length(_union(computing))
    ends = [end for _, end in sending + computing]
    begins = [begin for begin, _ in sending + computing]
    return TraceTimes(max(ends) - min(begins), compute_s, _length(_union(sending)), busy - compute_s)


def _union(spans: Iterable[Span]) -> list[Span]:
    """Return the same time as spans that do not overlap."""
    found: list[Span] = []
    for begin, end in sorted(spans):
        if found and begin <= found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], end)
        else:
            found.append((begin, end))
    return found


def _length(spans: Sequence[Span]) -> float:
    return sum(end - begin for begin, end in spans)
