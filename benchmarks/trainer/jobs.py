"""Starts both jobs, and lets one at a time run: the other one, with everything that belongs to it, is stopped by SIGSTOP meanwhile."""

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from benchmarks.claim import MeasureError
from benchmarks.recovery.launchers import ROOT, launched, tree
from headway.runner.contract import Model

RANKS = 2
# About the quickstart's: 0.8 million parameters.
MODEL = Model(vocab_size=256, layers=4, hidden=128, heads=4, kv_heads=2, ffn_hidden=352)
SEQUENCE, MICRO, ROUNDS, LR = 256, 4, 2, 1e-4
# After a job has been let run again, and then those of which the time is taken.
SETTLING, STEPS = 3, 30
# Before the first block: what only the first steps take.
WARM = 40
_LIMIT_S, _LOOK_S = 300.0, 0.1

_CLUSTER = f"""apiVersion: headway/v1alpha1
kind: Cluster
name: this-machine
scheduler: {{kind: local}}
node_groups: [{{name: cpu, count: 1, cpus: {RANKS}, procs: {RANKS}}}]
storage: [{{name: runs, kind: posix, path: runs, shared: true}}]
"""
_JOB = f"""apiVersion: headway/v1alpha1
kind: TrainingJob
name: trainer
cluster: this-machine
nodes: 1
model: {{vocab_size: {MODEL.vocab_size}, layers: {MODEL.layers}, hidden: {MODEL.hidden}, heads: {MODEL.heads},
  kv_heads: {MODEL.kv_heads}, ffn_hidden: {MODEL.ffn_hidden}}}
data: {{kind: python-stdlib, options: {{limit: 1MB}}}}
batch: {{global: {RANKS * MICRO * ROUNDS} sequences, micro: {MICRO}, sequence: {SEQUENCE}}}
optimizer: {{lr: {LR}}}
steps: 1000000
checkpoint: {{tiers: [{{kind: shared, every: 500000 steps}}]}}
"""


class Trace:
    """When the steps of a job have ended, by the machine's monotonic clock: of each line of a file, which is read once."""

    def __init__(self, find: Callable[[], Path | None], time_of: Callable[[str], float]) -> None:
        self._find, self._time_of, self._read, self._times = find, time_of, 0, list[float]()

    def times(self) -> list[float]:
        path = self._find()
        if path is not None and path.stat().st_size > self._read:
            with path.open("rb") as file:
                file.seek(self._read)
                whole, _, _ = file.read().rpartition(b"\n")
            self._read += len(whole) + 1 if whole else 0
            self._times += [self._time_of(line) for line in whole.decode().splitlines()]
        return self._times


@dataclass(frozen=True)
class Side:
    """A job that is stopped between its blocks."""

    pid: int
    trace: Trace

    def let(self, number: signal.Signals) -> None:
        """Stop all of its processes, or let them run again."""
        for pid in tree(self.pid):
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def until(self, steps: int) -> list[float]:
        """Return the times once there are so many. Raises MeasureError if that takes too long."""
        until_s = time.monotonic() + _LIMIT_S
        while len(times := self.trace.times()) < steps:
            if time.monotonic() > until_s:
                raise MeasureError(f"{len(times)} of {steps} steps after {_LIMIT_S:.0f} s")
            time.sleep(_LOOK_S)
        return times

    def block_s(self) -> float:
        """Run for a block, and return the seconds of its STEPS steps."""
        first = len(self.trace.times()) + SETTLING
        self.let(signal.SIGCONT)
        try:
            times = self.until(first + STEPS)
        finally:
            self.let(signal.SIGSTOP)
        return times[first + STEPS - 1] - times[first - 1]


@contextmanager
def both(folder: Path) -> Iterator[tuple[Side, Side]]:
    """Yield the builtin trainer under `headway run` and the bare loop under torchrun, both warm and stopped."""
    with ExitStack() as running:
        sides = []
        for start in (_headway, _bare):
            words, environment, trace = start(folder)
            process = running.enter_context(launched(words, folder, environment, start.__name__.strip("_")))
            side = Side(process.pid, trace)
            # A stopped process takes its SIGKILL all the same.
            sides.append(side)
            side.until(WARM)
            side.let(signal.SIGSTOP)
        yield sides[0], sides[1]


Start = tuple[Sequence[str | Path], dict[str, str], Trace]


def _headway(folder: Path) -> Start:
    (folder / "cluster.yaml").write_text(_CLUSTER)
    (folder / "job.yaml").write_text(_JOB)
    # A standby imports torch while the first blocks run, once.
    environment = {"HEADWAY_RUNS": str(folder / "runs"), "OMP_NUM_THREADS": "1", "HEADWAY_STANDBY": "0"}
    trace = Trace(lambda: next(folder.glob("runs/*/metrics.jsonl"), None), lambda line: float(json.loads(line)["mono_s"]))
    return [sys.executable, "-m", "headway.cli.main", "run", folder / "job.yaml"], environment, trace


def _bare(folder: Path) -> Start:
    words = ["--standalone", "--nproc-per-node", str(RANKS), "-m", "benchmarks.trainer.bare", str(folder)]
    environment = {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    path = folder / "steps-0"
    trace = Trace(lambda: path if path.exists() else None, lambda line: float(line.split()[1]))
    return [sys.executable, "-m", "torch.distributed.run", *words], environment, trace
