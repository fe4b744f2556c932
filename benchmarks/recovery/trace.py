"""Reads what a script wrote about its steps, and derives the recovery time."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.claim import MeasureError

LIMIT_S = 300.0
POLL_S = 0.005


@dataclass(frozen=True)
class Step:
    """A completed step: its number, the process, and when it ended in seconds of the machine's monotonic clock."""

    number: int
    pid: int
    ended_s: float


def steps_of(folder: Path, rank: int) -> list[Step]:
    """Return the whole lines that a rank has written so far."""
    path = folder / f"steps-{rank}"
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    fields = [line.split() for line in lines if line.endswith("\n")]
    return [Step(int(number), int(pid), float(ended)) for number, pid, ended in fields]


def await_steps(folder: Path, ranks: int, count: int) -> list[int]:
    """Return the process of each rank, once each has completed so many steps."""
    wait_until(lambda: all(len(steps_of(folder, rank)) >= count for rank in range(ranks)), f"{count} steps in {folder}")
    return [steps_of(folder, rank)[-1].pid for rank in range(ranks)]


def recovered_s(folder: Path, killed_s: float, before: set[int], ranks: int = 2) -> float:
    """Return seconds from the kill to the first step that new processes have completed on every rank."""
    wait_until(lambda: all(_first(folder, rank, before) for rank in range(ranks)), f"a step after the kill in {folder}")
    return max(step.ended_s for rank in range(ranks) if (step := _first(folder, rank, before))) - killed_s


def _first(folder: Path, rank: int, before: set[int]) -> Step | None:
    return next((step for step in steps_of(folder, rank) if step.pid not in before), None)


def wait_until(ready: Callable[[], object], what: str) -> None:
    """Polls. Raises MeasureError after LIMIT_S."""
    until = time.monotonic() + LIMIT_S
    while not ready():
        if time.monotonic() > until:
            raise MeasureError(f"{what}: not after {LIMIT_S:.0f} s")
        time.sleep(POLL_S)
