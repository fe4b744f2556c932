"""Starts both jobs, whose steps take turns."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks.claim import MeasureError
from benchmarks.overhead.baton import Baton
from benchmarks.overhead.job import NOBODY, SIDES
from benchmarks.overhead.jobs import Measured
from benchmarks.recovery.launchers import ROOT, launched
from benchmarks.trainer.turns import TURNS
from headway.runner.contract import Model

RANKS = 2
# About the quickstart's: 0.8 million parameters.
MODEL = Model(vocab_size=256, layers=4, hidden=128, heads=4, kv_heads=2, ffn_hidden=352)
SEQUENCE, MICRO, ROUNDS, LR = 128, 4, 2, 1e-4
TRAINERS = ROOT / ".venv-peers/trainers/bin/python"
_TITAN = Path(__file__).with_name("titan.py")
_HOOKED = Path(__file__).with_name("hooked")
_LIMIT_S, _LOOK_S = 600.0, 0.25

# A job that fails is an error of the benchmark: a second start would wait for a turn that the first has had.
_LAUNCH = ("--standalone", "--nproc-per-node", str(RANKS), "--max-restarts", "0")
# A standby imports torch while the first steps run, once.
_ENVIRONMENT = {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "HEADWAY_STANDBY": "0"}

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

Start = Callable[[Path], tuple[Sequence[str | Path], dict[str, str]]]
"""Returns the command of a job in its folder, and the variables of its environment in addition to the common ones."""


def measure(folder: Path, first: str, starts: tuple[Start, Start], steps: int) -> Measured:
    """Start both jobs, of which `first` has the first turn, and return the seconds of their turns. Raises MeasureError if that takes too
    long."""
    baton, until_s = Baton(folder, (*SIDES, NOBODY), make=True), time.monotonic() + _LIMIT_S
    results = [folder / f"{side}.json" for side in SIDES]
    try:
        with ExitStack() as running:
            jobs = []
            for side, start in zip(SIDES, starts, strict=True):
                own = folder / f"job-{side}"
                own.mkdir()
                words, more = start(own)
                turns = json.dumps([side, first, str(folder), os.getpid(), steps])
                jobs.append(running.enter_context(launched(words, own, _ENVIRONMENT | more | {TURNS: turns}, "output")))
            baton.give(first)
            _wait(lambda: baton.take(NOBODY, _LOOK_S), jobs, folder, until_s)
            baton.give(first)
            _wait(lambda: all(path.exists() for path in results), jobs, folder, until_s)
    finally:
        baton.close()
    ours, other = (json.loads(path.read_text()) for path in results)
    return Measured(tuple(ours["turn_s"]), tuple(other["turn_s"]), ours["control_s"], ours["set_up_s"], False, 0)


def _wait(is_done: Callable[[], bool], jobs: "Sequence[subprocess.Popen[Any]]", folder: Path, until_s: float) -> None:
    """Wait for both jobs. Raises MeasureError with what they printed last, since the folder of their logs is temporary."""
    while not is_done():
        if time.monotonic() > until_s or any(job.poll() is not None for job in jobs):
            ends = [path.read_text(errors="replace")[-2000:] for path in sorted(folder.glob("job-*/output.log"))]
            raise MeasureError("the jobs have not taken all of their turns; their output ends with:\n" + "\n---\n".join(ends))
        time.sleep(_LOOK_S)


def builtin(folder: Path) -> tuple[Sequence[str | Path], dict[str, str]]:
    """The builtin trainer under `headway run`."""
    (folder / "cluster.yaml").write_text(_CLUSTER)
    (folder / "job.yaml").write_text(_JOB)
    more = {"HEADWAY_RUNS": str(folder / "runs"), "PYTHONPATH": f"{_HOOKED}:{ROOT}"}
    return [sys.executable, "-m", "headway.cli.main", "run", folder / "job.yaml"], more


def bare(folder: Path) -> tuple[Sequence[str | Path], dict[str, str]]:
    """The bare loop under torchrun."""
    return [sys.executable, "-m", "torch.distributed.run", *_LAUNCH, "-m", "benchmarks.trainer.bare"], {}


def titan(folder: Path) -> tuple[Sequence[str | Path], dict[str, str]]:
    """torchtitan under `headway torchrun`."""
    more = {"HEADWAY_RUNS": str(folder / "runs")}
    return [TRAINERS, "-m", "headway.cli.main", "torchrun", *_LAUNCH, _TITAN, folder], more


def titan_under_torchrun(folder: Path) -> tuple[Sequence[str | Path], dict[str, str]]:
    """torchtitan under torchrun."""
    return [TRAINERS, "-m", "torch.distributed.run", *_LAUNCH, _TITAN, folder], {}
