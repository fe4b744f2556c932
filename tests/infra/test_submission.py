"""A submission has one outcome: a client settles an interrupted one, in virtual time, and a late job is refused."""

import fcntl
import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from headway.infra.submit.runs import RunsHere
from headway.infra.submit.scheduler import JobRefusedError, JobRequest, JobState, ScheduledJob, TakenError
from headway.infra.submit.shell import Here
from headway.infra.submit.slurm import Slurm
from headway.infra.submit.submission import SETTLE_S, Desk
from headway.runner.contract import RunDirectory, read_outcome

RUN = "two-nodes-0123abcd-1"
SCRIPT = "#!/bin/bash\n"


@dataclass
class Queue(Slurm):
    """Slurm's rules with a queue in memory; `sbatch` is a line of sh that submits."""

    shell: Here
    sbatch: str = "echo 7"
    listed: list[ScheduledJob] = field(default_factory=list)
    asked: int = 0

    def jobs(self, names: Collection[str] = (), numbers: Collection[str] = ()) -> list[ScheduledJob]:
        self.asked += 1
        return [job for job in self.listed if job.name in names or job.number in numbers]

    def submission(self, request: JobRequest) -> Sequence[str]:
        return ["sh", "-c", self.sbatch]


class Clock:
    """Virtual seconds."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def queue(tmp_path: Path) -> Queue:
    return Queue(Here(str(tmp_path)))


@pytest.fixture
def desk(queue: Queue, clock: Clock, tmp_path: Path) -> Desk:
    return Desk(queue, queue.shell, RunsHere(tmp_path / "runs"), lambda text: None, lambda: clock.now_s, clock.sleep)


def interrupted(tmp_path: Path) -> RunDirectory:
    """Create the first submission of a run, whose process ended after it called sbatch."""
    directory = RunDirectory(tmp_path / "runs" / RUN)
    (directory.submissions / "1" / "started").mkdir(parents=True)
    return directory


def job(desk: Desk, number: int = 1) -> ScheduledJob:
    return ScheduledJob("7", RUN, "me", JobState.PENDING, "PENDING", place=desk.request(RUN, number, SCRIPT).place)


def test_submission_records_its_script_and_job_number(desk: Desk, tmp_path: Path) -> None:
    submitted = desk.submit(desk.request(RUN, 1, SCRIPT), {"job": "job.yaml"})
    directory = RunDirectory(tmp_path / "runs" / RUN)
    assert (submitted.job, directory.submission_numbers(), directory.submitted_script(1).read_text()) == ("7", (1,), SCRIPT)
    outcome = read_outcome(directory.outcome(1))
    assert outcome is not None
    assert outcome.job == "7"
    with pytest.raises(TakenError, match=f"submission 1 of run `{RUN}` was made by another client"):
        desk.submit(desk.request(RUN, 1, SCRIPT), {})
    assert sorted(path.name for path in directory.submissions.iterdir()) == ["1"]


def test_rejected_job_is_reported_and_the_next_submission_is_allowed(desk: Desk, queue: Queue) -> None:
    queue.sbatch = "echo 'sbatch: error: invalid partition specified: mian' >&2; exit 1"
    with pytest.raises(JobRefusedError, match="invalid partition specified: mian"):
        desk.submit(desk.request(RUN, 1, SCRIPT), {})
    queue.sbatch = "echo 8"
    assert desk.live_job(RUN) is None
    assert desk.submit(desk.request(RUN, 2, SCRIPT), {}).job == "8"


def test_timed_out_submission_is_not_a_rejection(desk: Desk, queue: Queue, clock: Clock) -> None:
    queue.sbatch = "echo 'sbatch: error: Batch job submission failed: Socket timed out on send/recv operation' >&2; exit 1"
    queue.listed = [job(desk)]
    assert desk.submit(desk.request(RUN, 1, SCRIPT), {}).job == "7"


def test_submission_that_never_reached_the_scheduler_is_void_at_once(
    desk: Desk, queue: Queue, clock: Clock, tmp_path: Path
) -> None:
    (tmp_path / "runs" / RUN / "submissions" / "1").mkdir(parents=True)
    assert desk.settled(RUN, 1).kind == "void"
    assert (clock.now_s, queue.asked) == (0.0, 0)


def test_job_that_appears_belongs_to_the_interrupted_submission(desk: Desk, queue: Queue, clock: Clock, tmp_path: Path) -> None:
    interrupted(tmp_path)
    # Another user's run has the same name.
    queue.listed = [ScheduledJob("6", RUN, "you", JobState.RUNNING, "RUNNING", place="/elsewhere/runs/submissions/1"), job(desk)]
    assert desk.settled(RUN, 1).job == "7"
    found = desk.live_job(RUN)
    assert found is not None
    assert found.number == "7"


def test_submission_without_a_job_becomes_void_and_its_late_job_is_refused(
    desk: Desk, queue: Queue, clock: Clock, tmp_path: Path
) -> None:
    """The job's script compares the outcome: tests/templates/test_slurm.py."""
    directory = interrupted(tmp_path)
    assert desk.settled(RUN, 1).kind == "void"
    assert clock.now_s >= SETTLE_S
    assert queue.asked <= SETTLE_S / 10 + 1
    outcome = read_outcome(directory.outcome(1))
    assert outcome is not None
    assert str(outcome).startswith("void no job")


def test_submission_whose_command_still_runs_is_not_void(desk: Desk, queue: Queue, clock: Clock, tmp_path: Path) -> None:
    place = interrupted(tmp_path).submissions / "1"
    lock = os.open(place / "lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(lock, fcntl.LOCK_EX)
    sleep = clock.sleep

    def ends_later(seconds: float) -> None:
        sleep(seconds)
        if clock.now_s >= 3 * SETTLE_S:
            queue.listed = [job(desk)]

    waiting = Desk(queue, queue.shell, desk.runs, lambda text: None, lambda: clock.now_s, ends_later)
    try:
        assert waiting.settled(RUN, 1).job == "7"
    finally:
        os.close(lock)
