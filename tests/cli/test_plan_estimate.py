"""`headway plan JOB`: the estimate of a step, other layouts, other numbers of GPUs, and corrections by measured steps."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from headway.cli.main import main
from headway.cli.views.estimates import step_seconds

Capture = pytest.CaptureFixture[str]

CLUSTER = """\
apiVersion: headway/v1alpha1
kind: Cluster
name: lab
scheduler: {kind: slurm}
node_groups:
  - {name: gpu, count: 4, cpus: 96, gpu: H100-SXM-80, gpus: 8, nics: [a, b, c, d, e, f, g, h], nic: ConnectX-7, hourly_cost: 20}
fabrics:
  - {name: rails, role: scale-out, transport: infiniband}
storage:
  - {name: runs, kind: posix, path: /scratch/runs, shared: true, write: 10GB/s, read: 10GB/s}
"""
ARGV = "[train.py, '{model.preset}', '{layout.pp}', '{layout.tp}', '{layout.dp_shard}', '{batch.global}', '{batch.micro}', "
ARGV += "'{batch.sequence}', '{steps}', '{recompute}', '{checkpoint.shared.steps}']"
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
checkpoint: {{tiers: [{{kind: shared, every: 100 steps}}]}}
trainer: {{kind: script, options: {{argv: {ARGV}, framework: megatron}}}}
"""


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """Write an 8-billion-parameter job on 16 GPUs."""
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


def test_estimate_follows_the_plan_and_its_parts_add_up(job: Path, capsys: Capture) -> None:
    assert main(["plan", str(job)]) == 0
    out = capsys.readouterr().out
    assert "estimate of a step, by the profile `megatron`" in out
    assert "GPU memory    fits: " in out
    assert "host memory   " in out
    assert "layout        tp 2, dp 8; 16 x 1 sequence a rank, recompute full" in out
    assert "a node; the cluster file does not set `host_memory`" in out
    assert "1,000 steps, 1.05 billion tokens: " in out
    found = asked(job, capsys, "--estimate")["estimate"]
    assert isinstance(found, dict)
    assert sum(found["parts_s"].values()) == pytest.approx(found["step_s"])
    assert sum(found["memory"]["ledger"].values()) == pytest.approx(found["memory"]["allocated"])
    assert found["tokens_s"] == pytest.approx(128 * 8192 / found["step_s"])
    assert found["mfu_full"] > found["mfu_causal"]
    assert found["step_low_s"] < found["step_s"] < found["step_high_s"]


def test_a_wide_interval_has_its_reason(job: Path, capsys: Capture) -> None:
    assert asked(job, capsys, "--estimate")["estimate"]["extrapolated"] == []  # type: ignore[index]
    cluster = job.parent / "lab.yaml"
    cluster.write_text(CLUSTER.replace("H100-SXM-80", "MI300X-192"))
    assert main(["plan", str(job), "--estimate"]) == 0
    reason = "no published step of a dense model on MI300X-192 or another CDNA3 accelerator was measured"
    assert f"\n                extrapolated: {reason}\n" in capsys.readouterr().out
    found = asked(job, capsys, "--estimate")["estimate"]
    assert isinstance(found, dict)
    assert found["extrapolated"] == [reason]


def test_host_memory_is_compared_with_that_of_the_nodes(job: Path, capsys: Capture) -> None:
    cluster = job.parent / "lab.yaml"
    for memory, verdict in (("2TiB", "fits"), ("64GiB", "does not fit")):
        cluster.write_text(CLUSTER.replace("cpus: 96", f"cpus: 96, host_memory: {memory}"))
        assert main(["plan", str(job), "--estimate"]) == 0
        assert f"host memory   {verdict}: " in capsys.readouterr().out


def test_job_that_does_not_fit_gets_proposed_changes(job: Path, capsys: Capture) -> None:
    job.write_text(JOB.replace("preset: llama-3.1-8b", "preset: llama-3.1-70b").replace("recompute: full\n", "recompute: none\n"))
    assert main(["plan", str(job), "--estimate"]) == 0
    out = capsys.readouterr().out
    assert "GPU memory    does not fit: " in out
    assert " GiB: fits\n" in out or " GiB: tight\n" in out or " GiB: still does not fit\n" in out


@pytest.mark.slow
def test_best_layout_of_a_search_is_at_least_as_fast_as_that_of_the_job(job: Path, capsys: Capture) -> None:
    found = asked(job, capsys, "--search", "--top", "3")
    estimate, search = found["estimate"], found["search"]
    assert isinstance(estimate, dict)
    assert isinstance(search, dict)
    assert len(search["ranked"]) == 3
    assert search["ranked"][0]["estimate"]["step_s"] <= estimate["step_s"]
    assert all(each["layouts"] or each["choices"] for each in search["rejections"])


def test_measured_step_replaces_the_estimate_of_the_same_job(job: Path, capsys: Capture) -> None:
    free = step_s(job, capsys)
    moved = step_s(job, capsys, "--calibrate", f"{free * 1.2:.3f}s")
    assert moved == pytest.approx(free * 1.2, rel=0.01)


def test_impossibly_fast_step_is_rejected(job: Path, capsys: Capture) -> None:
    measured = step_s(job, capsys) / 10
    assert main(["plan", str(job), "--estimate", "--calibrate", f"{measured:.3f}s"]) == 2
    assert (
        "of the peak of a H100-SXM-80: check that they are of this job, with this batch, and in this unit"
        in capsys.readouterr().err
    )


def test_metrics_of_a_run_give_a_measured_step(job: Path, capsys: Capture) -> None:
    free = step_s(job, capsys)
    lines = [json.dumps({"generation": 1, "step": step, "step_s": free * (9 if step <= 5 else 0.8)}) for step in range(1, 20)]
    (metrics := job.parent / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    assert step_s(job, capsys, "--calibrate", str(metrics)) == pytest.approx(free * 0.8, rel=0.01)
    # The run's folder gives the same.
    (job.parent / "handle.json").touch()
    assert step_s(job, capsys, "--calibrate", str(job.parent)) == pytest.approx(free * 0.8, rel=0.01)


def test_step_measured_with_another_layout_corrects_the_estimate_partly(job: Path, capsys: Capture) -> None:
    other = job.parent / "other.yaml"
    other.write_text(JOB.replace("name: case", "name: other").replace("tp: 2, dp_shard: 8", "tp: 4, dp_shard: 4"))
    measured = step_s(other, capsys) * 1.2
    free = step_s(job, capsys)
    assert free < step_s(job, capsys, "--calibrate", f"{other}={measured:.3f}s") < free * 1.2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--calibrate", "8.2"], "`8.2` is neither a time such as `8.2s`, nor a run, nor a file"),
        (["--calibrate", "/"], "`/` cannot be read: Is a directory"),
        (["--calibrate", "=8.2s"], "`=8.2s` has no job"),
        (["--calibrate", "0s"], "a measured step takes no time"),
        (["--calibrate", "1000d"], "`1000d` is a step of 86,400,000 s, and the estimate is "),
        (["--calibrate", "1ms"], "more than 100 times apart; check that it is of this job and in this unit"),
        (["--scaling", f"1..{'9' * 5000}"], " is not a range of GPUs such as `1k..100k`"),
        (["--top", "\N{ARABIC-INDIC DIGIT THREE}"], " is not a number from 1 to 1000"),
        (["--scaling", "10..2"], "`10..2` must ascend"),
        (["--scaling", "some"], "`some` is not a range of GPUs such as `1k..100k`"),
        (["--top", "0"], "`0` is not a number from 1 to 1000"),
        (["--calibrate", "job.yaml="], "`job.yaml=` has no step"),
    ],
)
def test_invalid_options_are_reported(options: list[str], message: str, job: Path, capsys: Capture) -> None:
    try:
        code = main(["plan", str(job), "--estimate", *options])
    except SystemExit as ended:
        code = int(str(ended.code))
    assert code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", " has only the first 5 steps of each generation"),
        (b'{"generation": 1, "step_s": ', "not a line of metrics.jsonl: "),
        (b"[1, 2]\n", "not a line of metrics.jsonl: [1, 2]"),
        (b'{"generation": 1, "step_s": -1}\n' * 9, "a measured step takes no time"),
        (b'{"generation": 1, "step_s": NaN}\n' * 9, "a measured step takes no time"),
        (b'{"generation": 1, "step_s": 1e400}\n' * 9, "` is a step of inf s, and the estimate is "),
        (b'{"generation": 1e400, "step_s": 1}\n' * 9, "` is not a metrics.jsonl of a run"),
        (b"[" * 100_000, "` is not a metrics.jsonl of a run"),
        (b"\xff\xfe\x00", "` is not a metrics.jsonl of a run"),
    ],
)
def test_file_that_is_not_metrics_of_a_run_is_reported(content: bytes, message: str, job: Path, capsys: Capture) -> None:
    (metrics := job.parent / "metrics.jsonl").write_bytes(content)
    assert main(["plan", str(job), "--estimate", "--calibrate", str(metrics)]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert message in error


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.00123, "1.23 ms"),
        (0.038, "38.0 ms"),
        (0.4999, "500 ms"),
        (0.9994, "999 ms"),
        (0.9996, "1.00 s"),
        (13, "13.0 s"),
        (748.2, "748 s"),
        (999.6, "1,000 s"),
        (766_000, "766,000 s"),
    ],
)
def test_step_time_is_printed_with_3_digits_and_without_an_exponent(seconds: float, words: str) -> None:
    assert step_seconds(seconds) == words


def test_small_run_is_printed_with_small_numbers(job: Path, capsys: Capture) -> None:
    job.write_text(JOB.replace("128 sequences", "16 sequences").replace("8192}", "16}").replace("steps: 1000", "steps: 1"))
    assert main(["plan", str(job), "--estimate"]) == 0
    line = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("  the run"))
    assert line.startswith("  the run       1 step, 256 tokens: 0.")
    assert " s, 0.0" in line
    assert " GPU-hours, 0.0" in line


@pytest.mark.parametrize(
    ("gpu", "compute", "code"),
    [
        ("A100-SXM-80", "fp8", 1),
        ("A100-SXM-80", "nvfp4", 1),
        ("H100-SXM-80", "nvfp4", 1),
        ("H100-SXM-80", "mxfp8", 1),
        ("MI355X-288", "nvfp4", 1),
        ("H100-SXM-80", "fp8", 0),
        ("B200-180", "nvfp4", 0),
        ("B200-180", "mxfp8", 0),
        ("A100-SXM-80", "bf16", 0),
    ],
)
def test_number_format_that_the_gpu_does_not_support_is_rejected(
    gpu: str, compute: str, code: int, job: Path, capsys: Capture
) -> None:
    (job.parent / "lab.yaml").write_text(CLUSTER.replace("H100-SXM-80", gpu))
    job.write_text(
        JOB.replace("steps: 1000", f"steps: 1000\nprecision: {{compute: {compute}}}").replace(
            "argv: [", "argv: ['{precision.compute}', "
        )
    )
    assert main(["plan", str(job), "--estimate"]) == code
    assert ("HW325" in capsys.readouterr().err) == bool(code)


@pytest.mark.slow
def test_terminal_without_block_characters_gets_other_bars(job: Path) -> None:
    command = [sys.executable, "-m", "headway.cli.main", "plan", str(job), "--estimate"]
    done = subprocess.run(command, capture_output=True, timeout=60, check=True, env={"PYTHONIOENCODING": "ascii"})
    assert b"  ####" in done.stdout


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("model: {preset: llama-3.1-8b}\n", ""), "the job has no `model`"),
        (("gpu: H100-SXM-80, gpus: 8, nics: [a, b, c, d, e, f, g, h], nic: ConnectX-7", "procs: 8"), "have no GPU"),
        ((", nic: ConnectX-7", ""), "the speed of the adapters of group `gpu` is unknown"),
    ],
)
def test_plan_reports_the_missing_input_of_an_estimate(change: tuple[str, str], message: str, job: Path, capsys: Capture) -> None:
    job.write_text(JOB.replace(*change).replace("'{model.preset}', ", "" if "model" in change[0] else "'{model.preset}', "))
    (job.parent / "lab.yaml").write_text(CLUSTER.replace(*change))
    assert main(["plan", str(job)]) == 0
    assert message in " ".join(capsys.readouterr().out.split())
    assert main(["plan", str(job), "--search"]) == 2
    assert message in capsys.readouterr().err


def test_memory_is_estimated_even_if_the_network_speed_is_unknown(job: Path, capsys: Capture) -> None:
    known = asked(job, capsys, "--estimate")["estimate"]
    (job.parent / "lab.yaml").write_text(CLUSTER.replace(", nic: ConnectX-7", ""))
    found = asked(job, capsys, "--estimate")
    assert isinstance(known, dict)
    assert (found["estimate"], found["memory"]) == (None, known["memory"])
    assert main(["plan", str(job), "--estimate"]) == 0
    out = capsys.readouterr().out
    assert "GPU memory    fits: " in out
    assert "step          unknown: the speed of the adapters of group `gpu` is unknown; set `nic: ConnectX-7`" in " ".join(
        out.split("\n")
    )


@pytest.mark.slow
def test_scaling_shows_both_kinds_over_powers_of_two(job: Path, capsys: Capture) -> None:
    found = asked(job, capsys, "--scaling", "16..64")["scaling"]
    assert isinstance(found, dict)
    assert [point["gpus"] for point in found["strong"]["points"]] == [16, 32, 64]
    assert [point["sequences"] for point in found["weak"]["points"]] == [128, 256, 512]


def test_default_schedule_that_does_not_fit_the_batch_is_reported(job: Path, capsys: Capture) -> None:
    text = JOB.replace("tp: 2, dp_shard: 8", "pp: 4, virtual_stages: 2, dp_shard: 4").replace("128 sequences", "168 sequences")
    job.write_text(
        text.replace("'{layout.pp}', ", "'{layout.pp}', '{layout.virtual_stages}', ").replace(
            "framework: megatron", "framework: torchtitan"
        )
    )
    message = "no step can be estimated: `Interleaved1F1B` runs in rounds of equal size, but 42 microbatches do not divide into 10 rounds"
    assert main(["plan", str(job)]) == 0
    assert message in capsys.readouterr().out
    for words in (["plan", str(job), "--search"], ["simulate", str(job)]):
        assert main(words) == 2
        assert message in capsys.readouterr().err


@pytest.mark.slow
def test_measured_steps_correct_estimates_for_all_gpu_counts(job: Path, capsys: Capture) -> None:
    free = asked(job, capsys, "--scaling", "16..32")["scaling"]
    slow = asked(job, capsys, "--scaling", "16..32", "--calibrate", f"{step_s(job, capsys) * 1.5:.3f}s")["scaling"]
    assert isinstance(free, dict)
    assert isinstance(slow, dict)
    pairs = zip(free["strong"]["points"], slow["strong"]["points"], strict=True)
    assert [before["tokens_s"] > after["tokens_s"] for before, after in pairs] == [True] * 2


@pytest.mark.slow
def test_scaling_beyond_the_job_requires_a_known_adapter_speed(job: Path, capsys: Capture) -> None:
    (job.parent / "lab.yaml").write_text(CLUSTER.replace(", nic: ConnectX-7", ""))
    job.write_text(JOB.replace("nodes: 2", "nodes: 1").replace("dp_shard: 8", "dp_shard: 4"))
    assert main(["plan", str(job), "--scaling", "8..8"]) == 0
    capsys.readouterr()
    assert main(["plan", str(job), "--scaling", "8..64"]) == 2
    assert "the speed of the adapters of group `gpu` is unknown; set `nic: ConnectX-7`" in capsys.readouterr().err


@pytest.mark.slow
def test_layouts_of_the_builtin_trainer_are_those_that_it_supports(job: Path, capsys: Capture) -> None:
    text = JOB.replace("layout: {tp: 2, dp_shard: 8}\n", "").replace("recompute: full\n", "").partition("trainer:")[0]
    job.write_text(text.replace("8192", "128") + "data: {kind: python-stdlib}\noptimizer: {lr: 0.001}\n")
    found = asked(job, capsys, "--search")["search"]
    assert isinstance(found, dict)
    degrees = [{name: each["layout"][name] for name in ("pp", "dp_replicate", "cp", "tp", "ep")} for each in found["ranked"]]
    assert len(degrees) > 1
    assert {each["ep"] for each in degrees} == {1}


def test_search_for_a_cluster_is_rejected(job: Path, capsys: Capture) -> None:
    assert main(["plan", str(job.parent / "lab.yaml"), "--search"]) == 2
    assert capsys.readouterr().err == "error: a cluster has no layouts; pass a job\n"
