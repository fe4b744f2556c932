"""Trains layers of Llama 3 8B on one GPU, by `headway run` and by a bare FSDP2 loop under torchrun."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.claim import MeasureError
from headway.runner.contract import RunConfig, RunDirectory, from_json

ROOT = Path(__file__).parents[2]
LIMIT_S = 400
# Steps before compilation, the allocator and clocks have settled.
WARM_UP = 8

_CLUSTER = """\
apiVersion: headway/v1alpha1
kind: Cluster
name: one-gpu
scheduler: {{kind: local}}
node_groups:
  - {{name: gpu, count: 1, cpus: {cpus}, gpus: 1, gpu: {gpu}, host_memory: 120GiB}}
storage:
  - {{name: runs, kind: posix, path: runs, shared: true}}
"""
_JOB = """\
apiVersion: headway/v1alpha1
kind: TrainingJob
name: llama-8b-layers
cluster: one-gpu
nodes: 1
model: {{vocab_size: 32000, layers: {layers}, hidden: 4096, heads: 32, kv_heads: 8, ffn_hidden: 14336, rope_theta: 500000}}
data: {{kind: python-stdlib, options: {{limit: 8MB}}}}
batch: {{global: {together} sequences, micro: {micro}, sequence: {sequence}}}
precision: {{compute: bf16}}
compile: true
optimizer: {{lr: 0.0001, warmup_steps: 10}}
steps: {steps}
seed: 1
checkpoint: {{tiers: [{{kind: shared, every: {steps} steps}}]}}
"""


@dataclass(frozen=True)
class Load:
    """The size of what both train: layers, and `rounds` of `micro` sequences a step."""

    layers: int
    rounds: int
    micro: int
    sequence: int
    steps: int

    @property
    def tokens(self) -> int:
        """The tokens of a step."""
        return self.rounds * self.micro * self.sequence


@dataclass(frozen=True)
class Measured:
    """Of one job: seconds of each step after the first ones, and bytes of tensors on the device at most."""

    steps_s: list[float]
    device_bytes: int


def builtin(folder: Path, load: Load, gpu: str) -> tuple[Measured, RunConfig]:
    """Train by `headway run`, and return what its metrics show and the run's configuration."""
    (folder / "cluster.yaml").write_text(_CLUSTER.format(cpus=os.cpu_count(), gpu=gpu))
    job = folder / "job.yaml"
    together = load.rounds * load.micro
    job.write_text(_JOB.format(layers=load.layers, together=together, micro=load.micro, sequence=load.sequence, steps=load.steps))
    _ended([sys.executable, "-m", "headway.cli.main", "run", str(job)], folder / "builtin.log", HEADWAY_RUNS=str(folder / "runs"))
    (run,) = (path.parent for path in (folder / "runs").glob("*/handle.json"))
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    steps_s = [line["step_s"] for line in lines if line["step"] > WARM_UP]
    print(_said(run, job), file=sys.stderr)
    config = from_json(RunConfig, RunDirectory(run).run_json.read_text())
    return Measured(steps_s, max(line["device_bytes"] for line in lines)), config


def bare(folder: Path, load: Load, deterministic: bool) -> Measured:
    """Train by a bare loop under torchrun."""
    words = [load.layers, load.rounds, load.micro, load.sequence, load.steps, int(deterministic)]
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "1", "-m", "benchmarks.gpu.bare"]
    _ended([*command, str(folder), *map(str, words)], folder / "bare.log")
    found = json.loads((folder / "measured.json").read_text())
    return Measured([took for step, took in found["steps"].items() if int(step) > WARM_UP], found["device_bytes"])


def _said(run: Path, job: Path) -> str:
    command = [sys.executable, "-m", "headway.cli.main", "report", str(run), "--job", str(job)]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT).stdout


def _ended(command: Sequence[str], log: Path, **more: str) -> None:
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}", "HEADWAY_STANDBY": "0", **more}
    with log.open("wb") as file:
        done = subprocess.run(command, stdout=file, stderr=file, env=environment, timeout=LIMIT_S, check=False)
    if done.returncode != 0:
        raise MeasureError(f"{' '.join(command)} ended with {done.returncode}: {log.read_text()[-6000:]}")
