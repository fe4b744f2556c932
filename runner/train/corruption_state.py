"""Keeps the running state of the silent-corruption checks: the last verified step, and usual gradient norms."""

import time
from collections import deque
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from headway.runner.contract import Corruption

# Steps in the running median.
NORMS = 128
# With fewer steps, no norm is unusual.
LEAST = 16


@dataclass
class CorruptionState:
    """`step`: up to there other ranks have reproduced every rank's results, at `wall` (Unix seconds, by the first
    rank's clock)."""

    step: int = 0
    wall: float = field(default_factory=time.time)
    norms: deque[float] = field(default_factory=lambda: deque(maxlen=NORMS))

    def usual(self) -> float | None:
        """The median of the last gradient norms; None while there are too few."""
        return median(self.norms) if len(self.norms) >= LEAST else None

    def is_unusual(self, norm: float, checks: Corruption) -> bool:
        """Return whether the norm exceeds the usual one by the configured factor."""
        usual = self.usual()
        return checks.grad_norm_factor is not None and usual is not None and norm > checks.grad_norm_factor * usual

    def state_dict(self) -> dict[str, Any]:
        return {"step": self.step, "wall": self.wall, "norms": list(self.norms)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.step, self.wall, self.norms = state["step"], state["wall"], deque(state["norms"], maxlen=NORMS)

    def held(self, step: int) -> None:
        """Record that all ranks have computed this step identically."""
        self.step, self.wall = step, time.time()
