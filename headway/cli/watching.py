"""Follows the runs of a cluster: the records at each look, the scheduler at most four times a minute."""

import re
import time
from collections.abc import Callable, Sequence
from pathlib import PurePosixPath

from headway.infra.submit.scheduler import ScheduledJob
from headway.infra.submit.site import Site
from headway.report.glance import Glance, glance
from headway.report.standing import RunStatus, standing
from headway.runner.contract import RunDirectory, SubmissionOutcome, read_outcome

# Four of the six requests a minute that a controller grants to a person who watches.
ASK_EVERY_S = 15.0
# A longer list of names would not fit a command line of squeue; without names it lists all jobs.
_MOST_NAMES = 500


class RunWatch:
    """The newest `most` runs of a site, or the one called `run`, or of each of the `jobs` the newest, whether it was submitted or not.

    `now` is a monotonic clock in seconds; `older` counts the runs beyond `most`.
    """

    def __init__(
        self,
        site: Site,
        run: str | None = None,
        most: int | None = None,
        now: Callable[[], float] = time.monotonic,
        jobs: Sequence[str] = (),
    ) -> None:
        self._site, self._run, self._most, self._now, self._of = site, run, most, now, tuple(jobs)
        self.older = 0
        self._asked: float | None = None
        self._jobs: Sequence[ScheduledJob] = ()
        # From the accounting, by number: a job that has ended does not change.
        self._ended: dict[str, ScheduledJob | None] = {}
        self._shown: dict[str, RunStatus] = {}

    def look(self) -> list[RunStatus]:
        """Return the runs, the newest first. Raises CommandError."""
        names = [self._run] if self._run is not None else self._site.runs.names()
        newest = {job: next((name for name in names if _is_of(name, job)), None) for job in self._of}
        if self._of:
            names = [name for name in newest.values() if name is not None]
        else:
            names, self.older = names[: self._most], len(names[self._most :]) if self._most is not None else 0
        is_due = self._asked is None or self._now() - self._asked >= ASK_EVERY_S
        # A run that has ended changes only by a job, which the scheduler then lists.
        moving = [name for name in names if is_due or not (name in self._shown and self._shown[name].has_ended)]
        directories = {name: self._site.runs.fetch(name) for name in moving}
        seen = {name: glance(directory) for name, directory in directories.items()}
        if is_due:
            self._ask(names, seen)
        for name, directory in directories.items():
            if seen[name] is not None or directory.submission_numbers() or self._job(name, directory, None) is not None:
                self._shown[name] = self._standing(name, directory, seen[name])
        if self._of:
            return [
                self._shown[name] if name in self._shown else standing(job, None, None, None, True)
                for job, name in newest.items()
            ]
        return [self._shown[name] for name in names if name in self._shown]

    def _ask(self, names: Sequence[str], seen: dict[str, Glance | None]) -> None:
        if self._site.scheduler is None or not names:
            return
        # A job that was submitted by hand has the name of its job document.
        asked = sorted({*names, *(each.job for each in seen.values() if each is not None)})
        self._jobs = self._site.scheduler.jobs(names=asked if len(asked) <= _MOST_NAMES else ())
        self._asked = self._now()

    def _standing(self, name: str, directory: RunDirectory, seen: Glance | None) -> RunStatus:
        numbers = directory.submission_numbers()
        outcome = _outcome(directory, numbers[-1]) if numbers else None
        job = self._job(name, directory, outcome)
        scheduler = self._site.scheduler
        number = (outcome.job if outcome else None) or _opened_by(directory)
        is_silent = seen is None or seen.verdict is None
        if job is None and number is not None and is_silent and scheduler is not None:
            if number not in self._ended:
                self._ended[number] = scheduler.ended(number)
            job = self._ended[number]
        return standing(name, seen, job, outcome, scheduler is not None, self._site.has_records)

    def _job(self, name: str, directory: RunDirectory, outcome: SubmissionOutcome | None) -> ScheduledJob | None:
        known = {_opened_by(directory), outcome.job if outcome else None}
        folder = PurePosixPath(self._site.runs.path, name)
        found = [job for job in self._jobs if job.number in known or PurePosixPath(job.place).is_relative_to(folder)]
        return max(found, key=lambda job: (job.is_live, int(job.number) if job.number.isdecimal() else 0), default=None)


def _is_of(run: str, job: str) -> bool:
    """Return whether the run is one of the job, by their names: the job's, a hash of its spec, and a number."""
    return re.fullmatch(rf"{re.escape(job)}-[0-9a-f]{{8}}-\d+", run) is not None


def _outcome(directory: RunDirectory, number: int) -> SubmissionOutcome | None:
    try:
        return read_outcome(directory.outcome(number))
    except (OSError, ValueError):
        return None


def _opened_by(directory: RunDirectory) -> str | None:
    """The number of the job that has opened the newest attempt; behind a JobSet's is the number of its restart."""
    attempts = directory.attempt_numbers()
    try:
        return directory.at(attempts[-1]).job.read_text().strip().partition("/")[0] if attempts else None
    except OSError:
        return None
