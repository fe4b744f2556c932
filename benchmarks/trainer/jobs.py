"""Starts both jobs, and lets one at a time run: the other one, with everything that belongs to it, is stopped by SIGSTOP meanwhile."""

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
from headway.runner.lines import read_lines

RANKS = 2
# About the quickstart's: 0.8 million parameters.
MODEL = Model(vocab_size=256, layers=4, hidden=128, heads=4, kv_heads=2, ffn_hidden=352)
SEQUENCE, MICRO, ROUNDS, LR = 256, 4, 2, 1e-4
# After a job has been let run again, and then those of which the time is taken.
SETTLING, STEPS = 3, 30
# Before the first block: what only the first steps take.
WARM = 40
_LIMIT_S, _LOOK_S = 300.0, 0.02

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


@dataclass(frozen=True)
class Side:
    """A job that is stopped between its blocks. `times` returns when its steps have ended, by the machine's monotonic clock."""

    pid: int
    times: Callable[[], list[float]]

    def let(self, number: signal.Signals) -> None:
        """Stop all of its processes, or let them run again."""
        for pid in tree(self.pid):
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def until(self, steps: int) -> list[float]:
        """Return the times once there are so many. Raises MeasureError if that takes too long."""
        until_s = time.monotonic() + _LIMIT_S
        while len(times := self.times()) < steps:
            if time.monotonic() > until_s:
                raise MeasureError(f"{len(times)} of {steps} steps after {_LIMIT_S:.0f} s")
            time.sleep(_LOOK_S)
        return times

    def block_s(self) -> float:
        """Run for a block, and return the seconds of its STEPS steps."""
        before = len(self.times())
        self.let(signal.SIGCONT)
        try:
            times = self.until(before + SETTLING + STEPS)
        finally:
            self.let(signal.SIGSTOP)
        return times[before + SETTLING + STEPS - 1] - times[before + SETTLING - 1]


@contextmanager
def both(folder: Path) -> Iterator[tuple[Side, Side]]:
    """Yield the builtin trainer under `headway run` and the bare loop under torchrun, both warm and stopped."""
    with ExitStack() as running:
        sides = []
        for start in (_headway, _bare):
            words, environment, times = start(folder)
            process = running.enter_context(launched(words, folder, environment, start.__name__.strip("_")))
            side = Side(process.pid, times)
            # A stopped process takes its SIGKILL all the same.
            sides.append(side)
            side.until(WARM)
            side.let(signal.SIGSTOP)
        yield sides[0], sides[1]


Start = tuple[Sequence[str | Path], dict[str, str], Callable[[], list[float]]]


def _headway(folder: Path) -> Start:
    (folder / "cluster.yaml").write_text(_CLUSTER)
    (folder / "job.yaml").write_text(_JOB)
    # A standby imports torch while the first blocks run, once.
    environment = {"HEADWAY_RUNS": str(folder / "runs"), "OMP_NUM_THREADS": "1", "HEADWAY_STANDBY": "0"}

    def times() -> list[float]:
        return [float(line["mono_s"]) for path in folder.glob("runs/*/metrics.jsonl") for line, _ in read_lines(path)]

    return [sys.executable, "-m", "headway.cli.main", "run", folder / "job.yaml"], environment, times


def _bare(folder: Path) -> Start:
    words = ["--standalone", "--nproc-per-node", str(RANKS), "-m", "benchmarks.trainer.bare", str(folder)]

    def times() -> list[float]:
        path = folder / "steps-0"
        lines = path.read_text().splitlines(keepends=True) if path.exists() else []
        return [float(line.split()[1]) for line in lines if line.endswith("\n")]

    environment = {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    return [sys.executable, "-m", "torch.distributed.run", *words], environment, times
