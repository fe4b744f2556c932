"""Tests that a run's history is executed: rolled back and extended later, it ends bit for bit like one that had it from the start."""

import json
from pathlib import Path

import pytest

from .runs import JOB, Run, headway, only_run

pytestmark = pytest.mark.slow

CHANGE = "skip_samples: 24, set: {optimizer.lr: 0.001, optimizer.beta2: 0.9, batch.global: 16 sequences, steps: 40}"


def job(folder: Path, *history: str) -> Path:
    """The faults' job over 30 steps, with these entries in its history."""
    file = folder / "job.yaml"
    text = JOB.read_text()
    assert text.count("steps: 60\n") == 1
    entries = "".join(f"  - {{{entry}}}\n" for entry in history)
    file.write_text(text.replace("steps: 60\n", "steps: 30\n") + (f"history:\n{entries}" if history else ""))
    (folder / "cluster.yaml").write_text((JOB.parent / "cluster.yaml").read_text().replace("procs: 2", "procs: 1"))
    return file


def resumed(run: Run, file: Path) -> int:
    done = headway("run", file, "--resume", run.directory.name, runs=run.directory.parent)
    return done.returncode


@pytest.fixture(scope="module")
def at_once(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The reference run: it had the change from its first step on."""
    folder = tmp_path_factory.mktemp("at-once")
    done = headway("run", job(folder, f"from_step: 20, {CHANGE}"), runs=folder / "runs")
    assert done.returncode == 0, done.stdout + done.stderr
    return only_run(folder / "runs")


def test_a_finished_run_rolled_back_ends_like_one_changed_from_the_start(at_once: Run, tmp_path: Path) -> None:
    assert headway("run", job(tmp_path), runs=tmp_path / "runs").returncode == 0
    run = only_run(tmp_path / "runs")
    assert run.steps() == list(range(1, 31))
    first = f"from_step: 30, rollback_to: 20, {CHANGE}"
    assert resumed(run, job(tmp_path, first)) == 0
    assert run.steps() == [*range(1, 31), *range(21, 41)]
    assert run.journal("claim")[-1]["base"] == {"step": 20, "generation": 1, "tier": "shared"}
    assert run.hashes() == at_once.hashes()
    # Applied entries roll nothing back again; a step without a checkpoint is refused by its name.
    assert resumed(run, job(tmp_path, first)) == 0
    assert run.steps() == [*range(1, 31), *range(21, 41)]
    assert run.hashes() == at_once.hashes()
    assert resumed(run, job(tmp_path, first, "from_step: 40, rollback_to: 25")) == 84
    there = ", ".join(str(step) for step in sorted({int(path.name[5:14]) for path in run.checkpoints()}))
    assert run.verdict(3)["cause"] == (
        f"`history` goes back to step 25, but there is no valid checkpoint of that step; there are: {there}"
    )


@pytest.mark.variant
def test_a_new_run_of_a_spec_with_history_uses_the_resulting_samples(at_once: Run, tmp_path: Path) -> None:
    """Steps that were rolled back are not executed first: the whole run can be reproduced from its spec."""
    done = headway("run", job(tmp_path, f"from_step: 30, rollback_to: 20, {CHANGE}"), runs=tmp_path / "runs")
    assert done.returncode == 0, done.stdout + done.stderr
    run = only_run(tmp_path / "runs")
    assert run.steps() == list(range(1, 41))
    assert run.hashes() == at_once.hashes()


def test_a_run_trains_with_the_values_of_its_history(at_once: Run) -> None:
    run_json = json.loads((at_once.directory / "attempts/0/run.json").read_text())
    (change,) = run_json["history"]
    assert (change["from_step"], change["skip_samples"], change["set"]["batch.global_sequences"]) == (20, 24, 16)
    tokens = [json.loads(line)["tokens"] for line in (at_once.directory / "metrics.jsonl").read_text().splitlines()]
    assert tokens == [8 * 32] * 20 + [16 * 32] * 20
