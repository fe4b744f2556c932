"""torchtitan and the examples of a Hugging Face Trainer and a LightningCLI train on CPUs, are killed, and resume from their checkpoints."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.trainer.on_cpu import DATASET, tokenizer_in
from tests.support import LIGHT

from .jobs import PEERS, ROOT

TITAN_CLUSTER = """apiVersion: headway/v1alpha1
kind: Cluster
name: this-machine
scheduler: {kind: local}
node_groups: [{name: cpu, count: 1, cpus: 2, procs: 2}]
storage: [{name: runs, kind: posix, path: runs, shared: true}]
"""
TITAN_JOB = f"""apiVersion: headway/v1alpha1
kind: TrainingJob
name: titan
cluster: this-machine
nodes: 1
trainer:
  kind: torchtitan
  options:
    module: llama3
    config: llama3_debugmodel
    arguments: {{parallelism.spmd_backend: partial_dtensor, metrics.log_freq: 1, metrics.disable_color_printing: true}}
data: {{kind: dataset, options: {{name: {DATASET}, tokenizer: tokenizer}}}}
model: {{vocab_size: 2048, layers: 6, hidden: 256, heads: 16, kv_heads: 16, ffn_hidden: 768}}
layout: {{dp_shard: 2}}
batch: {{global: 2 sequences, micro: 1, sequence: 128}}
precision: {{compute: fp32}}
recompute: none
optimizer: {{lr: 0.001, warmup_steps: 2}}
steps: 40
seed: 1
checkpoint: {{tiers: [{{kind: shared, every: 10 steps}}]}}
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("story", "file", "last", "ranks"),
    [
        # One rank, since each imports for seconds.
        ("hf", "training_args.json", 100, 1),
        pytest.param("hf", "training_args.json", 100, 2, marks=pytest.mark.variant),
        pytest.param("lightning", "lightning.yaml", 200, 2, marks=pytest.mark.variant),
    ],
)
def test_rendered_trainer_resumes_after_a_kill(story: str, file: str, last: int, ranks: int, tmp_path: Path) -> None:
    for name, old, new in (
        (f"{story}.yaml", "dp_replicate: 2", f"dp_replicate: {ranks}"),
        ("here.yaml", "procs: 2", f"procs: {ranks}"),
    ):
        text = (ROOT / "examples/trainers" / name).read_text()
        assert text.count(old) == 1
        (tmp_path / name).write_text(text.replace(old, new))
    runs = tmp_path / "runs"
    command = [
        str(Path(sys.executable).with_name("headway")),
        "run",
        str(tmp_path / f"{story}.yaml"),
        "--kill",
        f"{ranks - 1}@50",
    ]
    environment = {"HEADWAY_STANDBY": "0", "PYTHONPATH": LIGHT, **os.environ, "HEADWAY_RUNS": str(runs)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    (run,) = (path for path in runs.iterdir() if (path / "handle.json").exists())
    config = json.loads((run / "attempts/0/config" / file).read_text())
    assert str(run / "checkpoints") in json.dumps(config)
    assert f"finished step {last} parameters" in (run / "attempts/0/logs/0/0.log").read_text()
    # The first generation was killed; the next has loaded its checkpoint, and each file is recorded.
    assert len(list((run / "shared/journal").glob("*.jsonl"))) == 2
    assert any((run / "shared/saved").iterdir())


@pytest.mark.slow
@pytest.mark.variant
@pytest.mark.skipif(not PEERS.exists(), reason="make .venv-peers/trainers/installed.stamp")
def test_torchtitan_is_killed_and_repeats_the_same_losses(tmp_path: Path) -> None:
    (tmp_path / "cluster.yaml").write_text(TITAN_CLUSTER)
    (tmp_path / "job.yaml").write_text(TITAN_JOB)
    (tmp_path / "sitecustomize.py").write_text("from benchmarks.trainer.on_cpu import install\n\ninstall()\n")
    tokenizer_in(tmp_path / "tokenizer")
    environment = {"HEADWAY_STANDBY": "0", "OMP_NUM_THREADS": "1", **os.environ, "HEADWAY_RUNS": str(tmp_path / "runs")}
    environment["PYTHONPATH"] = f"{tmp_path}:{ROOT}"
    command = [str(PEERS), "-m", "headway.cli.main", "run", "job.yaml", "--kill", "1@15"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    (run,) = (tmp_path / "runs").iterdir()
    log = (run / "attempts/0/logs/0/0.log").read_text()
    first, loaded, second = log.partition(f"Loading the checkpoint from {run}/torchtitan/checkpoint/step-10.")
    assert loaded, log[-2000:]
    before, after = (dict(re.findall(r"step:\D*?(\d+)\b.*?loss:\D*?([\d.]+)", output)) for output in (first, second))
    assert list(after) == [str(step) for step in range(11, 41)]
    repeated = set(before) & set(after)
    assert {"11", "12"} <= repeated
    assert all(before[step] == after[step] for step in repeated)
    assert any((run / "shared/saved").iterdir())
