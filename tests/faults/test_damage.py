"""Tests that changed checkpoints are refused by name, and that the run resumes from the newest intact one."""

from collections.abc import Callable
from pathlib import Path

import pytest

from headway.report.summary import summarize

from .runs import JOB, Run, headway

pytestmark = pytest.mark.slow


def _flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def _truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


@pytest.mark.parametrize(
    ("file", "damage"),
    [
        pytest.param("data-0-0.bin", _flip, id="a changed byte of data"),
        pytest.param("part-0.json", _truncate, id="a truncated part", marks=pytest.mark.variant),
        pytest.param("manifest.json", Path.unlink, id="a missing manifest", marks=pytest.mark.variant),
    ],
)
def test_damage_is_named_and_the_previous_checkpoint_is_used(
    uninterrupted: Run, finished: Run, file: str, damage: Callable[[Path], None]
) -> None:
    newest = finished.checkpoints()[-1]
    damage(newest / file)
    done = headway("run", JOB, "--resume", finished.directory.name, runs=finished.directory.parent)
    assert done.returncode == 0, done.stdout + done.stderr
    (refused,) = {(r["step"], r["generation"], r["name"]) for r in finished.journal("refused")}
    assert refused == (60, 1, file)
    assert file in done.stdout
    assert finished.journal("claim")[-1]["base"] == {"step": 50, "generation": 1, "tier": "shared"}
    assert finished.hashes() == uninterrupted.hashes()


def test_the_run_stops_without_training_if_no_checkpoint_verifies(finished: Run) -> None:
    for checkpoint in finished.checkpoints():
        _flip(checkpoint / "data-0-0.bin")
    steps = finished.steps()
    done = headway("run", JOB, "--resume", finished.directory.name, runs=finished.directory.parent)
    assert done.returncode == 84
    assert finished.verdict(attempt=1)["verdict"] == "unverified"
    assert finished.steps() == steps


@pytest.mark.variant
def test_a_lost_chain_with_checkpoints_present_stops_the_run(finished: Run) -> None:
    for record in (finished.directory / "shared/chain").iterdir():
        record.unlink()
    done = headway("run", JOB, "--resume", finished.directory.name, runs=finished.directory.parent)
    assert done.returncode == 84
    assert "the chain is empty" in finished.verdict(attempt=1)["cause"]


def test_only_the_newest_checkpoints_are_kept_and_deletions_are_reported(uninterrupted: Run) -> None:
    assert [path.name for path in uninterrupted.checkpoints()] == [f"step-{step:09d}.g000001" for step in (40, 50, 60)]
    told = {commit.step: commit.retired for commit in summarize(uninterrupted.directory).commits}
    assert told == {10: True, 20: True, 30: True, 40: False, 50: False, 60: False}
