"""Tests that changed checkpoints are refused by name, and that the run resumes from the newest intact one."""

from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from headway.report.summary import summarize

from .runs import Run, headway, one_rank

pytestmark = pytest.mark.slow


def _flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def _truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def resumed(run: Run, folder: Path) -> "CompletedProcess[str]":
    return headway("run", one_rank(folder), "--resume", run.directory.name, runs=run.directory.parent)


@pytest.mark.variant
@pytest.mark.parametrize(
    ("file", "damage"),
    [
        pytest.param("data-0-0.bin", _flip, id="a changed byte of data"),
        pytest.param("part-0.json", _truncate, id="a truncated part"),
        pytest.param("manifest.json", Path.unlink, id="a missing manifest"),
    ],
)
def test_damage_is_named_and_the_previous_checkpoint_is_used(
    single: Run, finished: Run, tmp_path: Path, file: str, damage: Callable[[Path], None]
) -> None:
    damage(finished.checkpoints()[-1] / file)
    done = resumed(finished, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    (refused,) = {(r["step"], r["generation"], r["name"]) for r in finished.journal("refused")}
    assert refused == (60, 1, file)
    assert file in done.stdout
    assert finished.journal("claim")[-1]["base"] == {"step": 50, "generation": 1, "tier": "shared"}
    assert finished.hashes() == single.hashes()


def test_each_damaged_checkpoint_is_named_and_with_none_left_the_run_stops(finished: Run, tmp_path: Path) -> None:
    for checkpoint in finished.checkpoints():
        _flip(checkpoint / "data-0-0.bin")
    steps = finished.steps()
    done = resumed(finished, tmp_path)
    assert done.returncode == 84
    assert [(r["step"], r["generation"], r["name"]) for r in finished.journal("refused")] == [
        (60, 1, "data-0-0.bin"),
        (50, 1, "data-0-0.bin"),
    ]
    assert "data-0-0.bin" in done.stdout
    assert [claim["base"] for claim in finished.journal("claim")[1:]] == [
        {"step": step, "generation": 1, "tier": "shared"} for step in (60, 50)
    ]
    assert finished.verdict(attempt=1)["verdict"] == "unverified"
    assert finished.steps() == steps


@pytest.mark.variant
def test_a_lost_chain_with_checkpoints_present_stops_the_run(finished: Run, tmp_path: Path) -> None:
    for record in (finished.directory / "shared/chain").iterdir():
        record.unlink()
    assert resumed(finished, tmp_path).returncode == 84
    assert "the chain is empty" in finished.verdict(attempt=1)["cause"]


def test_only_the_newest_checkpoints_are_kept_and_deletions_are_reported(single: Run) -> None:
    assert [path.name for path in single.checkpoints()] == [f"step-{step:09d}.g000001" for step in (50, 60)]
    told = {commit.step: commit.retired for commit in summarize(single.directory).commits}
    assert told == {10: True, 20: True, 30: True, 40: True, 50: False, 60: False}
