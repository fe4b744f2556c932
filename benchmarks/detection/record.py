"""Records the traces again: `python -m benchmarks.detection.record [WHAT...]`, each from a job of two real processes."""

import dataclasses
import sys
from collections.abc import Iterator
from pathlib import Path

from benchmarks.detection import trace
from benchmarks.detection.job import HANGS, SLOW
from benchmarks.detection.live import observe
from benchmarks.detection.trace import Heard, Trace

TRACES = Path(__file__).with_name("traces")
_AT_STEP, _SECONDS, _LIMIT_S = 40, 8.0, 12.0
_BEFORE_S, _FRAMES = 10.0, 5


def main() -> None:
    for what in sys.argv[1:] or [*SLOW, *HANGS]:
        observed = observe(what, _AT_STEP, _SECONDS, _LIMIT_S)
        trace.write(_cut(observed.trace), TRACES / f"{what}.jsonl")
        print(f"{what}: named {observed.named_after_s} s after, {observed.hang}", flush=True)


def _cut(whole: Trace) -> Trace:
    """Return what came shortly before, and all after; the innermost frames of stacks, and the names of files as far as
    they say something."""
    return dataclasses.replace(whole, heard=tuple(_shortened(whole.heard, whole.happened_s - _BEFORE_S)))


def _shortened(heard: tuple[Heard, ...], from_s: float) -> Iterator[Heard]:
    root = f"{Path(__file__).parents[2]}/"
    for each in heard:
        if each.at_s < from_s:
            continue
        probes = {
            rank: dataclasses.replace(probe, stack=tuple(frame.replace(root, "") for frame in probe.stack[:_FRAMES]))
            for rank, probe in each.probes.items()
        }
        yield dataclasses.replace(each, probes=probes)


if __name__ == "__main__":
    main()
