"""Measures how much an asynchronous save slows the concurrent steps, until the save is durable."""

import random
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from benchmarks.checkpoint.peer import State
from benchmarks.checkpoint.training import Training, everyone

_CALM_STEPS = 5


class Way(Protocol):
    """A way to save during training."""

    name: str

    def start(self, step: int, state: State) -> None:
        """Begin to save; return when training may continue up to its optimizer."""
        ...

    def before_optimizer(self) -> None:
        """Return when the state may change."""
        ...

    def durable(self) -> bool:
        """Return whether all of this rank is on disk."""
        ...

    def finish(self) -> None:
        """Raise the save's error, and delete its files."""
        ...


@dataclass(frozen=True)
class Window:
    """One save during training. `inflation_s`: the window less as many undisturbed steps; `blocked_s`: until training continued."""

    inflation_s: float
    blocked_s: float
    window_s: float
    steps: int


def windows(training: Training, ways: Sequence[Way], rounds: int) -> dict[str, list[Window]]:
    """Return each way once a round, in an order drawn for each round, between undisturbed steps; collective. One round
    before is not counted."""
    found: dict[str, list[Window]] = {way.name: [] for way in ways}
    calm = _calm(training)
    for number in range(rounds + 1):
        for way in random.Random(number).sample(ways, len(ways)):
            (blocked, window, steps), before = _saved(training, way), calm
            calm = _calm(training)
            undisturbed = statistics.median(before + calm)
            if number > 0:
                found[way.name].append(Window(window - steps * undisturbed, blocked, window, steps))
    return found


def _calm(training: Training) -> list[float]:
    """Return seconds of undisturbed steps."""
    return [_one(training) for _ in range(_CALM_STEPS)]


def _one(training: Training) -> float:
    began = time.perf_counter()
    training.step()
    everyone(True)
    return time.perf_counter() - began


def _saved(training: Training, way: Way) -> tuple[float, float, int]:
    """Return seconds until training continued, seconds and steps until the save is durable on all ranks."""
    state, began, first = training.state(), time.perf_counter(), training.steps
    way.start(first, state)
    blocked = time.perf_counter() - began
    while training.step(way.before_optimizer) and not everyone(way.durable()):
        pass
    window, steps = time.perf_counter() - began, training.steps - first
    way.finish()
    return blocked, window, steps
