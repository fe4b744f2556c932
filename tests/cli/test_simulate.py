"""`headway simulate` prints a job's goodput under failures, as text and as JSON."""

import argparse
import json
import re
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

from headway.cli.main import main
from headway.cli.verbs.simulate import configure

ROOT = Path(__file__).parents[2]
DOC = (ROOT / "docs" / "simulate.md").read_text()

Capture = pytest.CaptureFixture[str]

CLUSTER = """\
apiVersion: headway/v1alpha1
kind: Cluster
name: lab
scheduler: {kind: slurm}
node_groups:
  - {name: gpu, count: 130, held_back: 2, cpus: 96, gpu: H100-SXM-80, gpus: 8, nics: [mlx5_0]}
fabrics:
  - {name: ib, role: scale-out, transport: infiniband}
storage:
  - {name: runs, kind: posix, path: /scratch/runs, shared: true, write: 100GB/s, read: 200GB/s}
failures: {node_mtbf: 100d, repair: 1d}
"""
JOB = """\
apiVersion: headway/v1alpha1
kind: TrainingJob
name: llama
cluster: lab
nodes: 128
layout: {dp_replicate: 16}
steps: 200000
trainer:
  kind: script
  options: {argv: [train.py, "--steps={steps}", "--replicas={layout.dp_replicate}", "--every={checkpoint.shared.steps}"]}
checkpoint: {tiers: [{kind: shared, every: 200 steps}]}
"""
OPTIONS = ["--step-time", "5s", "--checkpoint-bytes", "1TB", "--seeds", "4"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "cluster.yaml").write_text(CLUSTER)
    (tmp_path / "job.yaml").write_text(JOB)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def simulated(capsys: Capture, *options: str) -> dict[str, Any]:
    assert main(["simulate", "job.yaml", "--json", *OPTIONS, *options]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_text_shows_goodput_times_causes_intervals_and_assumptions(folder: Path, capsys: Capture) -> None:
    assert main(["simulate", "job.yaml", *OPTIONS]) == 0
    text = capsys.readouterr().out
    assert text.startswith(
        "llama on lab: 128 nodes x 8 GPUs, 0 spares, 2 in the pool\n200,000 steps of 5.0 s: 11d14h without failures"
    )
    lines = [line.strip().split("  ")[0] for line in text.splitlines()]
    for title in (
        "where the time goes",
        "productive",
        "work done again",
        "what fails, in one run",
        "gpu",
        "16m40s (the job's)",
    ):
        assert title in lines
    productive = next(line for line in text.splitlines() if line.startswith("  productive"))
    assert 20 <= productive.count("█") <= 24
    assert "#" not in text
    assert "a node fails every" not in text
    assert "  a cold restart takes 600 s (https://arxiv.org/abs/2602.00277" in text


def test_tier_that_no_failure_needs_is_best_written_only_at_the_end(folder: Path, capsys: Capture) -> None:
    assert main(["simulate", "job.yaml", *OPTIONS, "--every", "peer=5m"]) == 0
    _, disk, peer = re.split("^checkpoints on ", capsys.readouterr().out, flags=re.MULTILINE)
    assert disk.splitlines()[1].startswith("best only at the end: ")
    assert re.match(r"best every .* of training \([0-9,]+ steps\)", peer.splitlines()[1])
    found = simulated(capsys, "--every", "peer=5m")
    intervals = [row["interval_s"] for row in found["intervals"]["shared"]]
    assert found["best_interval_s"]["shared"] == intervals[-1] == found["run"]["work_s"]
    assert len({round(interval, 3) for interval in intervals}) == len(intervals)


def test_json_has_every_figure(folder: Path, capsys: Capture) -> None:
    found = simulated(capsys)
    assert found["schema"] == "headway.simulation/1"
    assert found["summary"]["runs"] == 4
    assert 0.9 < found["summary"]["goodput"]["mean"] < 1
    assert sum(found["summary"]["shares"].values()) == pytest.approx(1)
    assert found["run"]["wall_s"] is None
    assert found["run"]["work_s"] == 1e6
    assert found["run"]["failures"]["node_mtbf_s"] == 100 * 86400
    assert set(found["intervals"]) == set(found["best_interval_s"]) == {"shared"}
    assert found["best_spares"] == 2


def test_same_seeds_give_the_same_bytes_and_others_do_not(folder: Path, capsys: Capture) -> None:
    first, again = simulated(capsys), simulated(capsys)
    assert first == again
    assert simulated(capsys, "--first-seed", "100")["summary"] != first["summary"]


def test_longer_time_between_failures_increases_goodput(folder: Path, capsys: Capture) -> None:
    goodput = [simulated(capsys, "--node-mtbf", mtbf)["summary"]["goodput"]["mean"] for mtbf in ("10d", "100d", "1000d")]
    assert goodput == sorted(goodput)


@pytest.mark.parametrize(
    ("options", "path", "value"),
    [
        (["--job-mtbf", "3d"], ["failures", "job_mtbf_s"], 3 * 86400),
        (["--rack-mtbf", "1y", "--rack-nodes", "4"], ["failures", "rack_nodes"], 4),
        (["--repair", "2d"], ["failures", "repair_s"], 2 * 86400),
        (["--shape", "0.8", "--node-age", "30d"], ["failures", "age_s"], 30 * 86400),
        (["--detect", "5s"], ["failures", "detect_s"], 5),
        (["--warm-restart", "10s"], ["recovery", "warm_s"], 10),
        (["--cold-restart", "20s"], ["recovery", "cold_s"], 20),
        (["--provision", "30s"], ["recovery", "provision_s"], 30),
        (["--spares", "3"], ["spares"], 3),
        (["--pool", "9"], ["pool"], 9),
        (["--gpus", "2048"], ["nodes"], 256),
        (["--days", "2"], ["wall_s"], 2 * 86400),
        (["--drop-replicas"], ["replicas", "count"], 16),
        (["--unlimited-restarts"], ["budget"], None),
        (["--block", "shared=9s"], ["tiers", "0", "block_s"], 9),
        (["--every", "shared=10m"], ["tiers", "0", "interval_s"], 600),
        (["--every", "memory=1m"], ["tiers", "1", "kind"], "memory"),
    ],
)
def test_option_overrides_the_documents(folder: Path, capsys: Capture, options: list[str], path: list[str], value: Any) -> None:
    found = simulated(capsys, *options)["run"]
    for key in path:
        found = found[int(key)] if key.isdigit() else found[key]
    assert found == value


@pytest.mark.slow
def test_late_detection_of_corruption_costs_work(folder: Path, capsys: Capture) -> None:
    # One run of many failures, of which each costs as much work as every other.
    options = ["--node-mtbf", "10d", "--unlimited-restarts", "--seeds", "1"]
    at_once = simulated(capsys, *options)["summary"]["shares"]["work done again"]
    late = simulated(capsys, *options, "--corruption-latency", "30m")["summary"]["shares"]["work done again"]
    assert late > at_once


def test_a_picture_has_a_panel_for_each_tier(folder: Path, capsys: Capture) -> None:
    assert main(["simulate", "job.yaml", *OPTIONS, "--every", "memory=1m", "--svg", "goodput.svg"]) == 0
    assert capsys.readouterr().err == "picture: goodput.svg\n"
    picture = ET.fromstring((folder / "goodput.svg").read_text())
    name = "{http://www.w3.org/2000/svg}"
    panels = picture.findall(f"{name}g")
    assert [panel.findtext(f"{name}text") for panel in panels] == [
        f"goodput over the interval of {kind} checkpoints" for kind in ("shared", "memory")
    ]
    for panel in panels:
        points = [circle.get("cx") for circle in panel.findall(f".//{name}circle")]
        assert len(points) >= 9
        below = [text.get("x") for text in panel.findall(f"{name}text") if text.get("text-anchor") == "middle"]
        assert below == [points[0], points[len(points) // 2], points[-1]], "the shortest, the middle and the longest interval"


def test_unwritable_picture_is_reported(folder: Path, capsys: Capture) -> None:
    assert main(["simulate", "job.yaml", *OPTIONS, "--svg", "missing/goodput.svg"]) == 3
    message = "error: `missing/goodput.svg` cannot be written: No such file or directory; choose another file with `--svg`\n"
    assert capsys.readouterr().err == message


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--every", "memory=0s"], "`--every memory=0s`: the interval must be above 0"),
        (["--block", "peer=1s"], "`--block peer=...`: the job has no such tier; add it with `--every peer=15m`"),
        (["--gpus", "1025"], "`--gpus 1025`: the job's nodes have 8 GPUs each; use a multiple of that"),
    ],
)
def test_options_that_do_not_fit_the_job_are_rejected(folder: Path, capsys: Capture, options: list[str], message: str) -> None:
    assert main(["simulate", "job.yaml", *OPTIONS, *options]) == 2
    assert capsys.readouterr().err == f"error: {message}\n"


def test_replicas_can_be_dropped_only_if_the_job_has_some(folder: Path, capsys: Capture) -> None:
    (folder / "job.yaml").write_text(JOB.replace("dp_replicate: 16", "dp_replicate: 1"))
    assert main(["simulate", "job.yaml", *OPTIONS, "--drop-replicas"]) == 2
    assert "`--drop-replicas`: the job has one replica" in capsys.readouterr().err


def test_step_time_is_required_without_a_model(folder: Path, capsys: Capture) -> None:
    assert main(["simulate", "job.yaml"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: the time of a step is unknown: ")
    assert error.endswith("; set `--step-time 5s`\n")
    assert main(["simulate", "job.yaml", "--step-time", "5s"]) == 2
    assert "set `--checkpoint-bytes 1TB`" in capsys.readouterr().err


def test_step_and_checkpoint_are_estimated_from_the_model(folder: Path, capsys: Capture) -> None:
    (folder / "cluster.yaml").write_text(CLUSTER.replace("nics: [mlx5_0]", "nic: ConnectX-7, nics: [mlx5_0]"))
    model = "model: {preset: llama-3.1-8b}\nbatch: {global: 1024 sequences, micro: 1, sequence: 8192}\n"
    (folder / "job.yaml").write_text(JOB.replace("steps: 200000\n", f"steps: 200000\n{model}"))
    assert main(["simulate", "job.yaml", "--json", "--seeds", "2"]) == 0
    run = json.loads(capsys.readouterr().out)["run"]
    assert 0.1 < run["step_s"] < 10
    assert 8e10 < run["tiers"][0]["write_s"] * 100e9 < 1.6e11
    assert run["work_s"] == pytest.approx(200_000 * run["step_s"])


def test_job_without_steps_requires_days(folder: Path, capsys: Capture) -> None:
    (folder / "job.yaml").write_text(JOB.replace("steps: 200000\n", "").replace('"--steps={steps}", ', ""))
    assert main(["simulate", "job.yaml", *OPTIONS]) == 2
    assert "the job has no `steps`" in capsys.readouterr().err
    assert main(["simulate", "job.yaml", *OPTIONS, "--days", "5"]) == 0
    assert "5d of steps of 5.0 s; simulated 4 times" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--step-time", "5", "`5`: expected a time above 0 such as `30s`, `15m` or `1h30m`"),
        ("--repair", "5", "`5`: expected a time such as `30s`, `15m` or `1h30m`"),
        ("--checkpoint-bytes", "1", "`1`: expected a size such as `80GiB` or `1.5TB`"),
        ("--every", "tape=5m", "`tape=5m`: expected a tier (memory, peer, shared, remote) and a time, such as `shared=15m`"),
        ("--step-time", "0s", "`0s`: expected a time above 0 such as `30s`, `15m` or `1h30m`"),
        ("--node-mtbf", "0s", "`0s`: expected a time above 0 such as `30s`, `15m` or `1h30m`"),
        ("--seeds", "0", "`0`: expected a whole number from 1 to 100,000"),
        ("--first-seed", "-5", "`-5`: expected a whole number from 0 to 100,000,000"),
        ("--spares", "-1", "`-1`: expected a whole number from 0 to 1,000,000"),
        ("--pool", "1000000000", "`1000000000`: expected a whole number from 0 to 1,000,000"),
        ("--days", "nan", "`nan`: expected a number above 0, up to 100,000"),
        ("--days", "1e300", "`1e300`: expected a number above 0, up to 100,000"),
        ("--shape", "0", "`0`: expected a number above 0, up to 100"),
    ],
)
def test_unparsable_value_is_rejected(folder: Path, capsys: Capture, option: str, value: str, message: str) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["simulate", "job.yaml", option, value])
    assert ended.value.code == 2
    assert f"argument {option}: {message}" in capsys.readouterr().err


def test_a_job_with_mistakes_is_not_simulated(folder: Path, capsys: Capture) -> None:
    (folder / "job.yaml").write_text(JOB.replace("nodes: 128", "nodes: 1280"))
    assert main(["simulate", "job.yaml", *OPTIONS]) == 1
    assert "error[HW" in capsys.readouterr().err


def test_page_has_the_source_of_every_default_and_existing_options() -> None:
    defaults = (ROOT / "headway" / "planner" / "goodput" / "failures.yaml").read_text()
    sources = {url.rstrip(".:,") for url in re.findall(r"https://[^\s\"),]+", defaults)}
    assert len(sources) > 5
    assert {source for source in sources if source not in DOC} == set()
    parser = argparse.ArgumentParser()
    configure(parser)
    options = {option for action in parser._actions for option in action.option_strings}
    assert set(re.findall(r"`(--[a-z-]+)", DOC)) - options == set()
