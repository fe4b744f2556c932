"""Defines what the verbs of runs need of a scheduler (`Scheduler`): it tests, submits, lists and ends the jobs of named runs."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol


class JobState(StrEnum):
    """Where a job is in its scheduler's queue."""

    PENDING = "pending"
    HELD = "held"
    RUNNING = "running"
    SUSPENDED = "suspended"
    ENDING = "ending"
    ENDED = "ended"


@dataclass(frozen=True)
class ScheduledJob:
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


@dataclass(frozen=True)
class JobRequest:
    """A job to submit: the name of its run, the number and the folder of the submission, its script's text, and variables that it gets."""

    run: str
    number: int
    place: str
    script: str
    variables: Mapping[str, str]


class Scheduler(Protocol):
    """A cluster's scheduler. Each method raises CommandError if the scheduler does not answer."""

    @property
    def kind(self) -> str: ...

    def jobs(self, names: Collection[str] = (), numbers: Collection[str] = ()) -> list[ScheduledJob]:
        """Return the jobs that the scheduler still lists, in one request: all, those of these names, or those of these numbers."""
        ...

    def ended(self, number: str) -> ScheduledJob | None:
        """Return a job that has ended, from the scheduler's accounting; None if there is none or it does not know the job."""
        ...

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


class JobRefusedError(Exception):
    """The scheduler would not start, or did not take, the job; the message has its reason."""
