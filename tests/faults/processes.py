"""Lists the processes of a run as the kernel shows them, whatever namespace they are in."""

import os
import signal
from dataclasses import dataclass
from pathlib import Path

from headway.runner.start import START


@dataclass(frozen=True)
class Process:
    """A process with the run in its environment."""

    pid: int
    environment: dict[str, str]
    command: tuple[str, ...]

    @property
    def module(self) -> str:
        """The module that `python -m`, or START, runs in it; empty for anything else."""
        words = iter(self.command)
        return next((next(words, "") for word in words if word in ("-m", START)), "")

    @property
    def state(self) -> str:
        """The state in /proc/PID/stat: R, S, D, T or Z. Raises FileNotFoundError if the process has ended."""
        return _state(Path(f"/proc/{self.pid}"))

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)


def processes_of(run: Path) -> list[Process]:
    """Every living process whose environment or command line names the run's directory."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            state = _state(entry)
            words = tuple((entry / "cmdline").read_bytes().decode(errors="replace").split("\0")[:-1])
            pairs = (entry / "environ").read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue  # it has just ended
        environment = dict(pair.split("=", 1) for pair in pairs if "=" in pair)
        named = [environment.get("HEADWAY_RUN_JSON", ""), *words]
        if state not in "ZX" and any(word.startswith(f"{run}/") for word in named):
            found.append(Process(int(entry.name), environment, words))
    return found


def _state(entry: Path) -> str:
    return (entry / "stat").read_text().rpartition(") ")[2][0]


def worker(run: Path, rank: int) -> Process:
    """The current worker of `rank`. Raises StopIteration if there is none."""
    return next(p for p in processes_of(run) if p.environment.get("RANK") == str(rank))


def companions(run: Path, module: str) -> list[Process]:
    """The run's living agents or coordinators."""
    return [p for p in processes_of(run) if p.module == module]


def supervisor(run: Path, node: int) -> Process:
    """The supervisor of a node."""
    (found,) = [each for each in companions(run, "headway.runner") if each.command[each.command.index("--node") + 1] == str(node)]
    return found
