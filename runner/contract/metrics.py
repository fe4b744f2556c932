"""Defines a line of metrics.jsonl."""

from dataclasses import dataclass


@dataclass(frozen=True)
class MetricsLine:
    """One line of metrics.jsonl: one optimizer step, written by rank 0.

    `memory_bytes`: peak resident memory of its process; `device_bytes`: peak of its tensors on the GPU in the step, None on CPUs.
    `communication_s`: seconds of the step for which it waited for other ranks, None with NCCL, which waits on the GPU.
    `save_s`: seconds for which saves blocked training before the step; `step_s` does not include them.
    """

    wall: float
    mono_s: float
    attempt: int
    generation: int
    step: int
    loss: float
    grad_norm: float
    tokens: int
    step_s: float
    memory_bytes: int
    save_s: float = 0.0
    device_bytes: int | None = None
    communication_s: float | None = None
