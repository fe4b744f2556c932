"""Tests what a run has used of its limits: seconds and GPU-hours of all attempts, from the ledger."""

import dataclasses
import json
import os
from pathlib import Path

import pytest

from headway.runner.contract import Limits, Mesh, RunConfig, RunDirectory, Trainer
from headway.runner.goodput.spent import remaining

CONFIG = RunConfig(slots=4, procs_per_slot=8, mesh=Mesh(dp_shard=32), trainer=Trainer("builtin"), spec_hash="ab", spares=1)
# When the attempt began, and now: 600 s later.
BEGAN, NOW = 100_000.0, 100_600.0


def opened(folder: Path, *lines: tuple[int, float, float, int, int]) -> RunDirectory:
    """A second attempt after these accounts: generation, start, end, slots, spares."""
    directory = RunDirectory(folder, 1)
    directory.attempt_directory.mkdir(parents=True)
    directory.run_json.touch()
    os.utime(directory.run_json, (BEGAN, BEGAN))
    names = ("generation", "start", "end", "slots", "spares")
    directory.ledger.write_text("".join(json.dumps(dict(zip(names, line, strict=True))) + "\n" for line in lines))
    return directory


def limited(time_s: float | None = None, gpu_hours: float | None = None) -> RunConfig:
    return dataclasses.replace(CONFIG, limits=Limits(time_s, gpu_hours))


def test_a_run_without_limits_has_none_to_reach(tmp_path: Path) -> None:
    assert remaining(CONFIG, opened(tmp_path), NOW) == (None, "")


def test_time_of_all_attempts_counts_without_queue_time(tmp_path: Path) -> None:
    directory = opened(tmp_path, (1, 0.0, 1000.0, 4, 1), (2, 1000.0, 3000.0, 4, 1), (0, 3000.0, BEGAN, 4, 1))
    left_s, limit = remaining(limited(time_s=7200.0), directory, NOW)
    assert (left_s, limit) == (7200.0 - 3000.0 - 600.0, "2h of all attempts together (limits.run.time)")


def test_time_already_in_the_ledger_for_this_attempt_counts_once(tmp_path: Path) -> None:
    directory = opened(tmp_path, (3, BEGAN, BEGAN + 400.0, 4, 1))
    assert remaining(limited(time_s=7200.0), directory, NOW)[0] == 7200.0 - 600.0


@pytest.mark.parametrize(("hours", "left_s"), [(100.0, 100 * 3600 / 40 - 1000.0 * 3 / 5 - 600.0), (1.0, 90.0 - 1200.0)])
def test_gpu_hours_count_each_generations_nodes(hours: float, left_s: float, tmp_path: Path) -> None:
    directory = opened(tmp_path, (1, 0.0, 1000.0, 2, 1))
    found, limit = remaining(limited(gpu_hours=hours), directory, NOW)
    assert found == pytest.approx(left_s)
    assert limit == f"{hours:g} GPU-hours of all attempts together (limits.run.gpu_hours)"


def test_the_nearer_limit_is_named(tmp_path: Path) -> None:
    left_s, limit = remaining(limited(86400.0, 1.0), opened(tmp_path), NOW)
    assert left_s == pytest.approx(90.0 - 600.0)
    assert "GPU-hours" in limit
