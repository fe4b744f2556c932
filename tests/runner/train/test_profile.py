"""Tests traces of steps on request: which steps are traced, and that no failure reaches training."""

import gzip
import json
from pathlib import Path

import pytest
import torch

from headway.runner.contract import ProfileRequest, RunDirectory, to_json
from headway.runner.train.profile import StepProfiler


@pytest.fixture
def directory(tmp_path: Path) -> RunDirectory:
    """A run with a request for two steps of rank 0."""
    found = RunDirectory(tmp_path)
    found.profiles.mkdir()
    found.profile_request.write_text(to_json(ProfileRequest("now", 2, (0,))))
    return found


def loop(profiler: StepProfiler, steps: int) -> list[bool]:
    """Steps of a job, each one matrix product; and the first rank's announcement in each."""
    announced = []
    for _ in range(steps):
        torch.ones(2, 2).mm(torch.ones(2, 2))
        announced.append(profiler.is_wanted())
        profiler.follow(wanted=announced[-1])
    return announced


def test_the_requested_number_of_steps_is_traced_once(directory: RunDirectory) -> None:
    assert loop(StepProfiler(directory, 0), 6) == [True, True, False, False, False, False]
    with gzip.open(directory.profiles / "now" / "rank-0.json.gz", "rt") as file:
        names = [event["name"] for event in json.load(file)["traceEvents"] if event.get("cat") == "cpu_op"]
    assert names.count("aten::mm") == 2
    assert [path.name for path in (directory.profiles / "now").iterdir()] == ["rank-0.json.gz"]


def test_a_rank_or_job_without_a_request_traces_nothing(directory: RunDirectory) -> None:
    other = StepProfiler(directory, 1)
    other.follow(wanted=True)
    other.follow(wanted=False)
    directory.profile_request.unlink()
    assert not any(loop(StepProfiler(directory, 0), 3))
    assert not (directory.profiles / "now").exists()


def test_an_invalid_request_is_ignored(directory: RunDirectory) -> None:
    directory.profile_request.write_text('{"steps": 1}')
    assert not any(loop(StepProfiler(directory, 0), 2))


@pytest.mark.parametrize("method", ["start", "stop", "export_chrome_trace"])
def test_a_failing_profiler_records_its_error_and_training_continues(
    directory: RunDirectory, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("no profiler here")

    monkeypatch.setattr(torch.profiler.profile, method, fail)
    loop(StepProfiler(directory, 0), 5)
    (left,) = (directory.profiles / "now").iterdir()
    assert (left.name, left.read_text()) == ("rank-0.failed", "no trace of rank 0: RuntimeError: no profiler here")
