"""Tests trackers' run ids: constant over attempts and generations, and different for each rank and run directory."""

import json
from pathlib import Path

from headway.runner.contract import RunDirectory
from headway.runner.goodput.tracking import tracker_environment


def directory(root: Path, submitted_at: float, attempt: int = 0) -> RunDirectory:
    root.mkdir(parents=True, exist_ok=True)
    found = RunDirectory(root, attempt)
    found.handle.write_text(json.dumps({"run": root.name, "submitted_at": submitted_at}))
    return found


def test_attempts_of_a_run_share_their_ids(tmp_path: Path) -> None:
    first = tracker_environment(directory(tmp_path / "llama-1", 1.5), 0, {})
    again = tracker_environment(directory(tmp_path / "llama-1", 1.5, attempt=3), 0, {})
    assert first == again
    assert (first["HEADWAY_RUN_ID"], first["WANDB_RESUME"]) == ("llama-1", "allow")
    assert first["WANDB_RUN_ID"].startswith("llama-1-")
    assert len(first["WANDB_RUN_ID"]) == len("llama-1-") + 8


def test_ranks_and_runs_with_one_name_have_separate_ids(tmp_path: Path) -> None:
    here, there = directory(tmp_path / "a" / "train-1", 1.5), directory(tmp_path / "b" / "train-1", 2.5)
    ids = {tracker_environment(at, rank, {})["WANDB_RUN_ID"] for at in (here, there) for rank in (0, 1)}
    assert len(ids) == 4
    assert tracker_environment(here, 1, {})["WANDB_RUN_ID"].endswith("-rank1")


def test_user_settings_are_kept(tmp_path: Path) -> None:
    here = directory(tmp_path / "train-1", 1.5)
    assert tracker_environment(here, 0, {"WANDB_RUN_ID": "mine"}) == {"HEADWAY_RUN_ID": "train-1"}
    assert "WANDB_RESUME" not in tracker_environment(here, 0, {"WANDB_RESUME": "must"})
    assert not any("MLFLOW" in name for name in tracker_environment(here, 0, {}))


def test_an_unreadable_handle_stops_no_run(tmp_path: Path) -> None:
    bare = RunDirectory(tmp_path / "train-1", 0)
    assert tracker_environment(bare, 0, {}) == tracker_environment(bare, 0, {})
