"""Tests that a run's history is executed: rolled back and extended later, it ends bit for bit like one that had it from the start."""

import json
from pathlib import Path
from typing import Any

import pytest

from .runs import Run, headway, one_rank, only_run, undisturbed_hashes

pytestmark = pytest.mark.slow

CHANGE = "skip_samples: 24, set: {optimizer.lr: 0.001, optimizer.beta2: 0.9, batch.global: 16 sequences, steps: 70}"
ROLLED_BACK = f"from_step: 60, rollback_to: 50, {CHANGE}"


def job(folder: Path, *history: str) -> Path:
    """The job on one rank with these entries in its history."""
    return one_rank(folder, "history:\n" + "".join(f"  - {{{entry}}}\n" for entry in history))


def resumed(run: Run, file: Path) -> int:
    done = headway("run", file, "--resume", run.directory.name, runs=run.directory.parent)
    return done.returncode


def at_once(run: Run, attempt: int, folder: Path) -> dict[str, str]:
    """The final output of the run if it had trained with the change of its history from step 51 on, without a rollback."""
    config: dict[str, Any] = json.loads((run.directory / f"attempts/{attempt}/run.json").read_text())
    (change,) = config["history"]
    assert (change["from_step"], change["rollback_to"]) == (60, 50)
    changed = {**change, "from_step": 50, "rollback_to": None}
    (folder / "run.json").write_text(json.dumps({**config, "history": [changed]}))
    return undisturbed_hashes(folder / "run.json", folder / "at-once")


def test_a_finished_run_rolled_back_ends_like_one_changed_from_the_start(finished: Run, tmp_path: Path) -> None:
    run = finished
    assert resumed(run, job(tmp_path, ROLLED_BACK)) == 0
    assert run.steps() == [*range(1, 61), *range(51, 71)]
    assert run.journal("claim")[-1]["base"] == {"step": 50, "generation": 1, "tier": "shared"}
    tokens = [json.loads(line)["tokens"] for line in (run.directory / "metrics.jsonl").read_text().splitlines()]
    assert tokens == [8 * 32] * 60 + [16 * 32] * 20
    assert run.hashes() == at_once(run, 1, tmp_path)
    # A step without a checkpoint is refused by its name; the applied entry rolls nothing back again.
    assert resumed(run, job(tmp_path, ROLLED_BACK, "from_step: 70, rollback_to: 55")) == 84
    assert run.steps() == [*range(1, 61), *range(51, 71)]
    there = ", ".join(str(step) for step in sorted({int(path.name[5:14]) for path in run.checkpoints()}))
    assert run.verdict(2)["cause"] == (
        f"`history` goes back to step 55, but there is no valid checkpoint of that step; there are: {there}"
    )


@pytest.mark.variant
def test_a_new_run_of_a_spec_with_history_uses_the_resulting_samples(tmp_path: Path) -> None:
    """Steps that were rolled back are not executed first: the whole run can be reproduced from its spec."""
    done = headway("run", job(tmp_path, ROLLED_BACK), runs=tmp_path / "runs")
    assert done.returncode == 0, done.stdout + done.stderr
    run = only_run(tmp_path / "runs")
    assert run.steps() == list(range(1, 71))
    assert run.hashes() == at_once(run, 0, tmp_path)
