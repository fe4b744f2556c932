"""Computes how fast a run has trained: step, tokens, operations a second, share of the peak, memory and exposed communication."""

import statistics
from collections.abc import Iterator, Sequence

from msgspec import Struct

from headway.runner.contract import MetricsLine, RunConfig, step_rates

# The first steps of a generation compile kernels, fill caches and set up communicators (headway/planner/speed/calibrate.py has as many).
WARM_UP = 5


class PlannedStep(Struct, frozen=True):
    """The planner's step: seconds with the interval of 9 of 10 such runs, and bytes in a GPU's tensors."""

    seconds: float
    low: float
    high: float
    memory_bytes: float


class Throughput(Struct, frozen=True):
    """The median over a run's valid steps after each generation's warm-up.

    `tflops_causal` and `tflops_full` are 10^12 operations a second of one rank, where attention counts the half that a causal mask
    leaves or the full square; `mfu_causal` and `mfu_full` their shares of a GPU's peak in bf16. `exposed` is the share of the time
    that rank 0 waited for communication. None: not known.
    """

    step_s: float
    tokens_s: float
    memory_bytes: int
    device_bytes: int | None
    exposed: float | None
    tflops_causal: float | None
    tflops_full: float | None
    mfu_causal: float | None
    mfu_full: float | None


def throughput(lines: Sequence[MetricsLine], config: RunConfig | None) -> Throughput | None:
    """Return the throughput of the steps; None if there are none beyond the warm-up."""
    counted = list(_counted(lines))
    seconds = sum(line.step_s for line in counted)
    if seconds <= 0:
        return None
    rates = [step_rates(config, line.tokens, line.step_s) for line in counted if line.step_s > 0]
    medians = {name: statistics.median(each[name] for each in rates) for name in rates[0]}
    devices = [line.device_bytes for line in counted if line.device_bytes is not None]
    waits = [line.communication_s for line in counted if line.communication_s is not None]
    return Throughput(
        step_s=statistics.median(line.step_s for line in counted),
        tokens_s=medians["tokens_per_s"],
        memory_bytes=max(line.memory_bytes for line in counted),
        device_bytes=max(devices, default=None),
        exposed=sum(waits) / seconds if len(waits) == len(counted) else None,
        tflops_causal=medians.get("tflops_causal"),
        tflops_full=medians.get("tflops_full"),
        mfu_causal=medians.get("mfu_causal"),
        mfu_full=medians.get("mfu_full"),
    )


def _counted(lines: Sequence[MetricsLine]) -> Iterator[MetricsLine]:
    seen: dict[tuple[int, int], int] = {}
    for line in lines:
        place = line.attempt, line.generation
        seen[place] = seen.get(place, 0) + 1
        if seen[place] > WARM_UP:
            yield line
