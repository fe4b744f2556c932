"""A run in a list: one word for its state by its records and its scheduler."""

from pathlib import Path

import pytest

from headway.infra.submit.scheduler import JobState, ScheduledJob
from headway.report.glance import glance
from headway.report.standing import standing
from headway.report.summary import summarize
from headway.runner.contract import RunDirectory as Layout
from headway.runner.contract import SubmissionOutcome

from .run_directory import RunDirectory


def job(state: JobState, word: str, reason: str = "") -> ScheduledJob:
    return ScheduledJob("7", "r-1", "alice", state, word, reason, "n[1-2]")


RUNNING = job(JobState.RUNNING, "RUNNING")
PENDING = job(JobState.PENDING, "PENDING", "Resources")
HELD = job(JobState.HELD, "PENDING", "JobHeldUser")
CANCELLED = job(JobState.ENDED, "CANCELLED")
GONE = SubmissionOutcome("job", "7")


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    """Create a run with ten steps, a crash, and ten more."""
    run = RunDirectory(tmp_path / "r-1")
    run.begin()
    run.train(10)
    run.fail("killed by SIGKILL", rank=1)
    run.begin()
    run.train(20)
    return run


def test_glance_has_the_facts_of_the_summary(run: RunDirectory) -> None:
    seen, summary = glance(Layout(run.path)), summarize(run.path)
    assert seen is not None
    assert (seen.run, seen.step, seen.steps, seen.loss) == (summary.run, summary.steps, summary.planned_steps, summary.last_loss)
    assert (seen.goodput, seen.hosts) == (summary.goodput, summary.hosts)
    assert seen.cause.startswith("killed by SIGKILL, rank 1")
    assert seen.steps_per_s == pytest.approx(2.0)


@pytest.mark.parametrize(
    ("scheduled", "has_scheduler", "state"),
    [
        (RUNNING, True, "running"),
        (PENDING, True, "requeued"),
        (HELD, True, "held"),
        (job(JobState.ENDING, "COMPLETING"), True, "ending"),
        (CANCELLED, True, "cancelled"),
        (None, True, "lost"),
        (None, False, "running"),
    ],
)
def test_run_without_a_verdict_has_the_state_of_its_job(
    run: RunDirectory, scheduled: ScheduledJob | None, has_scheduler: bool, state: str
) -> None:
    found = standing("r-1", glance(Layout(run.path)), scheduled, GONE, has_scheduler)
    assert found.state == state
    assert found.has_ended == (state in {"cancelled", "lost"})
    assert (found.step, found.nodes) == (20, "n[1-2]" if scheduled is RUNNING else "localhost")


@pytest.mark.parametrize(
    ("scheduled", "outcome", "state", "cause"),
    [
        (PENDING, GONE, "pending", ""),
        (RUNNING, GONE, "starting", ""),
        (CANCELLED, GONE, "cancelled", ""),
        (None, GONE, "lost", ""),
        (None, SubmissionOutcome("refused", "no partition"), "refused", "no partition"),
        (None, SubmissionOutcome("void", "no job"), "not submitted", "no job"),
        (None, None, "not submitted", ""),
    ],
)
def test_run_without_an_attempt_has_the_state_of_its_submission(
    scheduled: ScheduledJob | None, outcome: SubmissionOutcome | None, state: str, cause: str
) -> None:
    found = standing("small-llama-e9b53343-1", None, scheduled, outcome, True)
    assert (found.job, found.state, found.cause) == ("small-llama", state, cause)
