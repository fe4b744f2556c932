"""Lets the trainings of both sides take one step at a time, in turns, as `benchmarks.overhead` does: of a machine that others share,
which becomes faster and slower by 10 % for seconds and for minutes, both have the same moments."""

import json
import os
import time
from pathlib import Path

import torch.distributed as dist

from benchmarks.overhead.job import NOBODY, SIDES, Turns

TURNS = "BENCHMARK_TURNS"
"""Variable with the arguments of `Alternation`, as JSON."""
# Before the first turn that counts: what only the first steps take.
SET_UP = 40


class Alternation:
    """One rank's part. Each step of the training begins with `before_step`, and all that follows until the next one is its turn."""

    def __init__(self, side: str, first: str, folder: str, starter: int, steps: int) -> None:
        self._side, self._first, self._folder, self._starter, self._steps = side, first, Path(folder), starter, steps
        self._other = next(name for name in SIDES if name != side)
        self._turns: Turns | None = None
        self._took_s, self._began_s, self._set_up_s = list[float](), 0.0, 0.0

    @classmethod
    def of(cls, environment: "os._Environ[str]") -> "Alternation":
        return cls(*json.loads(environment[TURNS]))

    def before_step(self) -> None:
        """Hand the turn over, and return with the next one; collective."""
        if self._turns is None:
            self._turns = Turns(self._side, self._folder, self._starter)
        else:
            dist.barrier()
            self._took_s.append(time.perf_counter() - self._began_s)
            is_set_up = len(self._took_s) == SET_UP and self._side != self._first
            self._turns.hand_over(NOBODY if is_set_up else self._other)
        if len(self._took_s) == SET_UP + self._steps:
            self._end(self._turns)
        self._turns.wait()
        if len(self._took_s) == SET_UP:
            self._set_up_s = self._turns.begin()
        dist.barrier()
        self._began_s = time.perf_counter()

    def _end(self, turns: Turns) -> None:
        """Write what was measured, and wait to be killed: an end would take time from the other's last turn."""
        if dist.get_rank() == 0:
            found = {"turn_s": self._took_s[SET_UP:], "control_s": turns.control_s, "set_up_s": self._set_up_s}
            part = self._folder / f"{self._side}.part"
            part.write_text(json.dumps(found))
            part.rename(self._folder / f"{self._side}.json")
        while True:
            time.sleep(1)
