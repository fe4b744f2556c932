"""Defines a line of metrics.jsonl."""

from dataclasses import dataclass


@dataclass(frozen=True)
class MetricsLine:
    """One line of metrics.jsonl: one optimizer step, written by rank 0.

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
