"""Computes how fast a run has trained: step, tokens, operations a second, share of the peak, memory and exposed communication."""

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from headway.runner.contract import MetricsLine, RunConfig, step_flops

# The first steps of a generation compile kernels, fill caches and set up communicators (headway/planner/speed/calibrate.py has as many).
WARM_UP = 5


@dataclass(frozen=True)
class PlannedStep:
    """The planner's step: seconds with the interval of 9 of 10 such runs, and bytes in a GPU's tensors."""

    seconds: float
    low: float
    high: float
    memory_bytes: float


@dataclass(frozen=True)
class Throughput:
    """The median over a run's valid steps after each generation's warm-up.

    `flops_causal` and `flops_full` are operations a second of one rank, where attention counts the half that a causal mask leaves or
    the full square; `mfu_causal` and `mfu_full` their shares of a GPU's peak in bf16. `exposed` is the share of the time that
    rank 0 waited for communication. None: not known.
    """

    step_s: float
    tokens_s: float
    memory_bytes: int
    device_bytes: int | None
    exposed: float | None
    flops_causal: float | None
    flops_full: float | None
    mfu_causal: float | None
    mfu_full: float | None


def throughput(lines: Sequence[MetricsLine], config: RunConfig | None) -> Throughput | None:
    """Return the throughput of the steps; None if there are none beyond the warm-up."""
    counted = list(_counted(lines))
    seconds = sum(line.step_s for line in counted)
    if seconds <= 0:
        return None
    rates = _rates(counted, config)
    peak = None if config is None or config.peak_tflops is None else config.peak_tflops * 1e12
    causal, full = rates or (None, None)
    devices = [line.device_bytes for line in counted if line.device_bytes is not None]
    waits = [line.communication_s for line in counted if line.communication_s is not None]
    return Throughput(
        step_s=statistics.median(line.step_s for line in counted),
        tokens_s=statistics.median(line.tokens / line.step_s for line in counted if line.step_s > 0),
        memory_bytes=max(line.memory_bytes for line in counted),
        device_bytes=max(devices, default=None),
        exposed=sum(waits) / seconds if len(waits) == len(counted) else None,
        flops_causal=causal,
        flops_full=full,
        mfu_causal=None if causal is None or peak is None else causal / peak,
        mfu_full=None if full is None or peak is None else full / peak,
    )


def _counted(lines: Sequence[MetricsLine]) -> Iterator[MetricsLine]:
    seen: dict[tuple[int, int], int] = {}
    for line in lines:
        place = line.attempt, line.generation
        seen[place] = seen.get(place, 0) + 1
        if seen[place] > WARM_UP:
            yield line


def _rates(lines: Sequence[MetricsLine], config: RunConfig | None) -> tuple[float, float] | None:
    """Return operations a second of one rank, causal and full; None for a trainer whose model headway does not know."""
    if config is None or config.model is None or config.batch is None:
        return None
    model, batch = config.model, config.batch
    found = [
        [
            flops / line.step_s
            for flops in step_flops(model, replace(batch, global_sequences=line.tokens // batch.sequence_length))
        ]
        for line in lines
        if line.step_s > 0
    ]
    causal, full = (statistics.median(each) / config.world_size for each in zip(*found, strict=True))
    return causal, full
