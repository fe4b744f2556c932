"""`headway plan JOB`: what a step takes, other layouts, other numbers of GPUs, and what measured steps change."""

import json
from pathlib import Path

import pytest

from headway.cli.main import main

Capture = pytest.CaptureFixture[str]

CLUSTER = """\
apiVersion: headway/v1alpha1
kind: Cluster
name: lab
scheduler: {kind: slurm}
nodes:
  - {group: gpu, count: 4, cpus: 96, gpu: H100-SXM-80, gpus: 8, nics: [a, b, c, d, e, f, g, h], nic: ConnectX-7, hourly_cost: 20}
fabrics:
  - {name: rails, role: scale_out, transport: infiniband}
storage:
  - {name: runs, kind: posix, path: /scratch/runs, shared: true, write: 10GB/s, read: 10GB/s}
"""
ARGV = "[train.py, '{model.preset}', '{layout.pp}', '{layout.tp}', '{layout.dp_shard}', '{batch.global}', '{batch.micro}', "
ARGV += "'{batch.sequence}', '{steps}', '{recompute}', '{checkpoint.disk.steps}']"
JOB = f"""\
apiVersion: headway/v1alpha1
kind: TrainingJob
name: case
cluster: lab
nodes: 2
model: {{preset: llama-3.1-8b}}
layout: {{tp: 2, dp_shard: 8}}
batch: {{global: 128 sequences, micro: 1, sequence: 8192}}
recompute: full
steps: 1000
checkpoint: {{tiers: [{{kind: disk, every: 100 steps}}]}}
trainer: {{kind: script, options: {{argv: {ARGV}, framework: megatron}}}}
"""


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """An 8-billion-parameter job on 16 GPUs."""
    (tmp_path / "lab.yaml").write_text(CLUSTER)
    (tmp_path / "train.py").touch()
    file = tmp_path / "job.yaml"
    file.write_text(JOB)
    return file


def asked(job: Path, capsys: Capture, *options: str) -> dict[str, object]:
    capsys.readouterr()
    assert main(["plan", str(job), "--json", *options]) == 0
    found: dict[str, object] = json.loads(capsys.readouterr().out)
    return found


def step_s(job: Path, capsys: Capture, *options: str) -> float:
    estimate = asked(job, capsys, "--estimate", *options)["estimate"]
    assert isinstance(estimate, dict)
    return float(estimate["step_s"])


def test_the_estimate_is_below_the_plan_and_adds_up(job: Path, capsys: Capture) -> None:
    assert main(["plan", str(job)]) == 0
    out = capsys.readouterr().out
    assert "estimate of a step, by the profile `megatron`" in out
    assert "GPU memory    fits: " in out
    assert "1,000 steps, 1.05 billion tokens: " in out
    found = asked(job, capsys, "--estimate")["estimate"]
    assert isinstance(found, dict)
    assert sum(found["parts_s"].values()) == pytest.approx(found["step_s"])
    assert sum(found["memory"]["ledger"].values()) == pytest.approx(found["memory"]["allocated"])
    assert found["tokens_s"] == pytest.approx(128 * 8192 / found["step_s"])
    assert found["mfu_full"] > found["mfu_causal"]
    assert found["step_low_s"] < found["step_s"] < found["step_high_s"]


def test_what_does_not_fit_says_what_to_change(job: Path, capsys: Capture) -> None:
    job.write_text(JOB.replace("preset: llama-3.1-8b", "preset: llama-3.1-70b").replace("recompute: full\n", "recompute: none\n"))
    assert main(["plan", str(job), "--estimate"]) == 0
    out = capsys.readouterr().out
    assert "GPU memory    does not fit: " in out
    assert " GiB: fits\n" in out or " GiB: tight\n" in out or " GiB: still does not fit\n" in out


def test_the_best_layout_of_a_search_is_no_slower_than_the_jobs_own(job: Path, capsys: Capture) -> None:
    found = asked(job, capsys, "--search", "--top", "3")
    estimate, search = found["estimate"], found["search"]
    assert isinstance(estimate, dict)
    assert isinstance(search, dict)
    assert len(search["ranked"]) == 3
    assert search["ranked"][0]["estimate"]["step_s"] <= estimate["step_s"]
    assert all(each["layouts"] or each["choices"] for each in search["rejections"])


def test_a_measured_step_moves_the_estimate_towards_itself(job: Path, capsys: Capture) -> None:
    free = step_s(job, capsys)
    moved = step_s(job, capsys, "--calibrate", f"{free * 1.2:.3f}s")
    assert free < moved < free * 1.2


def test_metrics_of_a_run_are_a_measured_step(job: Path, capsys: Capture) -> None:
    free = step_s(job, capsys)
    lines = [json.dumps({"generation": 1, "step": step, "step_s": free * (9 if step <= 5 else 0.8)}) for step in range(1, 20)]
    (metrics := job.parent / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    assert free * 0.8 < step_s(job, capsys, "--calibrate", str(metrics)) < free


def test_a_step_measured_with_another_layout_counts_for_that_one(job: Path, capsys: Capture) -> None:
    other = job.parent / "other.yaml"
    other.write_text(JOB.replace("name: case", "name: other").replace("tp: 2, dp_shard: 8", "tp: 4, dp_shard: 4"))
    measured = step_s(other, capsys) * 1.2
    free = step_s(job, capsys)
    assert free < step_s(job, capsys, "--calibrate", f"{other}={measured:.3f}s") < free * 1.2


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--calibrate", "no-such-file"], "No such file or directory: 'no-such-file'"),
        (["--scaling", "10..2"], "`10..2` must go up"),
        (["--scaling", "some"], "`some` is no range of GPUs such as `1k..100k`"),
        (["--top", "0"], "`0` is no number from 1 to 1000"),
        (["--calibrate", "job.yaml="], "`job.yaml=` names no step"),
    ],
)
def test_wrong_options_are_told(options: list[str], told: str, job: Path, capsys: Capture) -> None:
    try:
        code = main(["plan", str(job), "--estimate", *options])
    except SystemExit as ended:
        code = int(str(ended.code))
    assert code == 2
    assert told in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (("model: {preset: llama-3.1-8b}\n", ""), "the job has no `model`"),
        (("gpu: H100-SXM-80, gpus: 8, nics: [a, b, c, d, e, f, g, h], nic: ConnectX-7", "procs: 8"), "have no GPU"),
        ((", nic: ConnectX-7", ""), "nothing says how fast the adapters of group `gpu` are"),
    ],
)
def test_a_plan_without_what_an_estimate_needs_says_so(change: tuple[str, str], told: str, job: Path, capsys: Capture) -> None:
    job.write_text(JOB.replace(*change).replace("'{model.preset}', ", "" if "model" in change[0] else "'{model.preset}', "))
    (job.parent / "lab.yaml").write_text(CLUSTER.replace(*change))
    assert main(["plan", str(job)]) == 0
    assert told in " ".join(capsys.readouterr().out.split())
    assert main(["plan", str(job), "--search"]) == 2
    assert told in capsys.readouterr().err


def test_scaling_shows_both_kinds_over_powers_of_two(job: Path, capsys: Capture) -> None:
    found = asked(job, capsys, "--scaling", "16..64")["scaling"]
    assert isinstance(found, dict)
    assert [point["gpus"] for point in found["strong"]["points"]] == [16, 32, 64]
    assert [point["sequences"] for point in found["weak"]["points"]] == [128, 256, 512]


def test_a_cluster_has_no_layouts(job: Path, capsys: Capture) -> None:
    assert main(["plan", str(job.parent / "lab.yaml"), "--search"]) == 2
    assert capsys.readouterr().err == "error: a cluster has no layouts; name a job\n"
