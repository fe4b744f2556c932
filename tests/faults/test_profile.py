"""Tests `headway profile` on a training run of two ranks: the requested steps are traced, and the run ends as without a request."""

import gzip
import json
from pathlib import Path

import pytest

from headway.runner.contract import RunDirectory
from tests.faults.runs import JOB, LIMIT_S, Run, going, headway, only_run, wait_for_step

# test_crash.py traces a run on one rank.
pytestmark = [pytest.mark.slow, pytest.mark.variant]


def test_steps_of_a_live_run_are_traced_on_the_requested_ranks(uninterrupted: Run, tmp_path: Path) -> None:
    with going("run", JOB, runs=tmp_path) as launcher:
        run = wait_for_step(tmp_path, 3)
        done = headway("profile", run.directory, "--steps", "2", "--ranks", "1,0", runs=tmp_path)
        assert launcher.wait(LIMIT_S) == 0
    assert done.returncode == 0, done.stdout + done.stderr
    traces = [Path(line) for line in done.stdout.splitlines()]
    assert [trace.name for trace in traces] == ["rank-1.json.gz", "rank-0.json.gz"]
    for trace in traces:
        with gzip.open(trace, "rt") as file:
            names = [event.get("name") for event in json.load(file)["traceEvents"] if event.get("cat") == "user_annotation"]
        assert names.count("Optimizer.step#AdamW.step") == 2
    assert not RunDirectory(run.directory).profile_request.exists()
    assert only_run(tmp_path).hashes() == uninterrupted.hashes()
