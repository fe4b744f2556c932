"""Tests the builtin trainer on a GPU: bf16, compiled, FSDP2 over NCCL."""

import json
from pathlib import Path

import pytest

from tests.faults.runs import LIMIT_S, Run, going, headway, only_run, wait_for_step

CLUSTER = """\
apiVersion: headway/v1alpha1
kind: Cluster
name: one-gpu
scheduler: {kind: local}
node_groups:
  - {name: gpu, count: 1, cpus: 8, gpus: 1, gpu: H100-SXM-80, host_memory: 64GiB}
storage:
  - {name: runs, kind: posix, path: runs, shared: true}
"""
JOB = """\
apiVersion: headway/v1alpha1
kind: TrainingJob
name: on-a-gpu
cluster: one-gpu
nodes: 1
model: {vocab_size: 256, layers: 2, hidden: 512, heads: 8, kv_heads: 4, ffn_hidden: 1536, dropout: 0.1}
data: {kind: python-stdlib, options: {limit: 8MB}}
batch: {global: 16 sequences, micro: 8, sequence: 512}
precision: {compute: bf16}
compile: true
optimizer: {lr: 0.001, warmup_steps: 10}
steps: 60
seed: 1
checkpoint: {tiers: [{kind: memory, every: 5 steps}, {kind: shared, every: 20 steps}], keep: 3}
"""


def _job(folder: Path, more: str = "", **changes: str) -> Path:
    (folder / "cluster.yaml").write_text(CLUSTER)
    text = JOB
    for name, value in changes.items():
        text = "\n".join(f"{name}: {value}" if line.startswith(f"{name}:") else line for line in text.splitlines())
    (folder / "job.yaml").write_text(f"{text}\n{more}")
    return folder / "job.yaml"


def _done(job: Path, *words: str, runs: Path) -> Run:
    done = headway("run", job, *words, runs=runs)
    assert done.returncode == 0, done.stdout + done.stderr
    print(done.stdout, done.stderr)
    return only_run(runs)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("uninterrupted")
    return _done(_job(folder), runs=folder / "runs")


def test_a_killed_rank_resumes_from_the_keepers_memory_bit_for_bit(uninterrupted: Run, tmp_path: Path) -> None:
    run = _done(_job(tmp_path), "--kill", "0@33", runs=tmp_path / "runs")
    assert run.hashes() == uninterrupted.hashes()
    base = run.journal("claim")[1]["base"]
    assert base["tier"] == "memory"
    assert base["step"] >= 25


def test_a_recomputed_step_has_the_same_bits(tmp_path: Path) -> None:
    """Detection of silent corruption relies on this: the same kernels on the same input."""
    run = _done(
        _job(tmp_path, "resilience: {corruption: {replay: 10 steps}}", steps="30", compile="false"), runs=tmp_path / "runs"
    )
    assert run.journal("corruption") == []


def test_gpu_throughput_memory_and_trace_are_measured(tmp_path: Path) -> None:
    job = _job(tmp_path, steps="400")
    with going("run", job, runs=tmp_path / "runs") as launcher:
        run = wait_for_step(tmp_path / "runs", 20)
        traced = headway("profile", run.directory, "--steps", "3", runs=tmp_path / "runs")
        assert launcher.wait(LIMIT_S) == 0
    print(traced.stdout, traced.stderr)
    assert "GPU of rank 0: computes" in traced.stdout
    report = headway("report", run.directory, "--job", job, runs=tmp_path / "runs").stdout
    print(report)
    assert "MFU" in report
    assert "in tensors on the GPU" in report
    last = json.loads((run.directory / "metrics.jsonl").read_text().splitlines()[-1])
    assert last["device_bytes"] > 100e6
