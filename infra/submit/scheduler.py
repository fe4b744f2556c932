"""Defines what the verbs of runs need of a scheduler: it lists jobs (`Queue`), and tests, submits and ends those of named runs
(`Submissions`). `Scheduler` is one whose commands a shell runs."""

from collections.abc import Callable, Collection, Mapping, Sequence
from enum import StrEnum
from typing import Protocol

from msgspec import Struct


class JobState(StrEnum):
    """Where a job is in its scheduler's queue."""

    PENDING = "pending"
    HELD = "held"
    RUNNING = "running"
    SUSPENDED = "suspended"
    ENDING = "ending"
    ENDED = "ended"


class ScheduledJob(Struct, frozen=True):
    """A job as the scheduler knows it.

    A job of `headway submit` has the `name` of its run, and `place` is the folder of its submission; two folders of runs may hold runs of
    one name. `state` is one of a few; `word` is the scheduler's own, and `reason` why the job waits, or how it ended. `nodes` is the
    scheduler's list.
    """

    number: str
    name: str
    user: str
    state: JobState
    word: str
    reason: str = ""
    nodes: str = ""
    place: str = ""

    @property
    def is_live(self) -> bool:
        """Return whether the job has its run, or will have it."""
        return self.state is not JobState.ENDED


class JobRequest(Struct, frozen=True):
    """A job to submit: the name of its run, the number and the folder of the submission, its script's text, and variables that it gets."""

    run: str
    number: int
    place: str
    script: str
    variables: Mapping[str, str]


class Submitted(Struct, frozen=True):
    """The job of a run: the scheduler's number, the submission's number, and whether this call made it."""

    run: str
    job: str
    number: int
    is_new: bool


class LastSubmission(Struct, frozen=True):
    """The newest submission of a run: its number, its script, and what was recorded with it."""

    number: int
    script: str
    request: Mapping[str, str]


class Action(Struct, frozen=True):
    """Something that a person could also do by the command `shown`. `run` raises NotDoneError, CommandError."""

    shown: str
    run: Callable[[], None]


class Queue(Protocol):
    """The list of a scheduler's jobs. Each method raises CommandError if the scheduler does not answer."""

    @property
    def kind(self) -> str: ...

    def jobs(self, names: Collection[str] = (), numbers: Collection[str] = ()) -> list[ScheduledJob]:
        """Return the jobs that the scheduler still lists, in one request: all, those of these names, or those of these numbers."""
        ...

    def ended(self, number: str) -> ScheduledJob | None:
        """Return a job that has ended, from the scheduler's accounting; None if there is none or it does not know the job."""
        ...


class Submissions(Protocol):
    """Where the jobs of a cluster's runs are submitted and ended. Each method raises CommandError if the scheduler does not answer."""

    def test(self, request: JobRequest) -> str:
        """Return when or where the job would start, without submitting it. Raises JobRefusedError."""
        ...

    def live_job(self, run: str) -> ScheduledJob | None:
        """Return the job that has the run or will have it; None if there is none. Settles an interrupted submission first."""
        ...

    def job_to_come(self, run: str) -> ScheduledJob | None:
        """Return the run's live job; waits for the end of one that is ending, since its run can then be resumed."""
        ...

    def wait_for_end(self, job: ScheduledJob) -> None:
        """Return when the job has ended."""
        ...

    def request(self, run: str, number: int, script: str) -> JobRequest:
        """Return the request of a run's submission."""
        ...

    def command(self, request: JobRequest) -> str:
        """Return the command that submits the job, as a person would type it."""
        ...

    def submit(self, request: JobRequest, described: Mapping[str, str]) -> Submitted:
        """Submit the job. The caller has made sure that the run has no live job, and that all earlier submissions are settled.

        `described` is kept next to the script. Raises TakenError if another client was first, JobRefusedError for a job that the scheduler
        does not take.
        """
        ...

    def cancel(self, job: ScheduledJob) -> Action:
        """Return what ends the job, which may save first."""
        ...

    def release(self, job: ScheduledJob) -> Action:
        """Return what gives a held job back to the queue."""
        ...

    def last_submission(self, run: str) -> LastSubmission | None:
        """Return the newest submission of the run; None if headway has not submitted it."""
        ...

    def has_begun(self, run: str) -> bool:
        """Return whether an attempt of the run has begun."""
        ...

    def has_completed(self, run: str) -> bool:
        """Return whether the run has trained all its steps."""
        ...


class Scheduler(Queue, Protocol):
    """A scheduler whose commands a shell runs (`Desk` in submission.py)."""

    def test(self, request: JobRequest) -> str:
        """Return when and where the job would start, without submitting it. Raises JobRefusedError."""
        ...

    def submission(self, request: JobRequest) -> Sequence[str]:
        """Return the command that submits the script in the submission's folder, and prints the job's number on its first line."""
        ...

    def is_refusal(self, errors: str) -> bool:
        """Return whether these errors of the command mean that there is no job; otherwise it may exist."""
        ...

    def cancel(self, number: str) -> Sequence[str]:
        """Return the command that ends the job, which may save first."""
        ...

    def release(self, number: str) -> Sequence[str]:
        """Return the command that gives a held job back to the queue."""
        ...


class TakenError(Exception):
    """Another client has made this submission, or one of the same number, at the same moment."""


class NotDoneError(Exception):
    """The scheduler has refused to end or to release a job; the message has its reason."""


class JobRefusedError(Exception):
    """The scheduler would not start, or did not take, the job; the message has its reason."""
