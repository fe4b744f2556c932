"""Measures the CPU time of a job's processes other than ranks: launcher, supervisor, agent, coordinator, keeper, standbys."""

import os
import time
from collections.abc import Collection
from pathlib import Path

from headway.runner.agent.probe import below

# CPUCLOCK_SCHED (time/posix-cpu-timers in Linux): of all threads of a process, in nanoseconds.
_PROCESS_CLOCK = 2


class Control:
    """Seen from a rank whose job was started by the process `starter`; `ranks` are the pids of all ranks of this machine."""

    def __init__(self, starter: int, ranks: Collection[int]) -> None:
        self._ranks = frozenset(ranks)
        self._root = os.getpid()
        while (parent := _parent(self._root)) not in (starter, 0, 1):
            self._root = parent

    def cpu_s(self) -> dict[int, float]:
        """Return seconds since each was forked, by pid."""
        pids = {self._root, *below(self._root)} - self._ranks
        return {pid: cpu_s for pid in pids if (cpu_s := _cpu_s(pid)) is not None}


def between_s(before: dict[int, float], after: dict[int, float]) -> float:
    """CPU seconds that all processes took between two looks, those that began in between whole."""
    return sum(max(cpu_s - before.get(pid, 0.0), 0.0) for pid, cpu_s in after.items())


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def _cpu_s(pid: int) -> float | None:
    try:
        return time.clock_gettime(~pid << 3 | _PROCESS_CLOCK)
    except OSError:
        # It has ended.
        return None
