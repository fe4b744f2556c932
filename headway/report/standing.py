"""Combines what a run's records and its scheduler know into one line of a list of runs."""

from msgspec import Struct

from headway.infra.submit.scheduler import JobState, ScheduledJob
from headway.report.glance import Glance
from headway.runner.contract import Exit, SubmissionOutcome

# Of a verdict that no other attempt follows.
_ENDS = {
    Exit.COMPLETED: "completed",
    Exit.STOP: "stopped",
    Exit.UNVERIFIED: "unverified",
    Exit.SUPERSEDED: "superseded",
}
_MAY_CONTINUE = {Exit.RETRY_HERE: "failed", Exit.RETRY_ELSEWHERE: "failed", Exit.PREEMPTED: "preempted"}
# States in which the run waits for a person.
ENDED = {
    *_ENDS.values(),
    *_MAY_CONTINUE.values(),
    "cancelled",
    "timeout",
    "refused",
    "not submitted",
    "lost",
    "node_fail",
    "out_of_memory",
}


class RunStatus(Struct, frozen=True):
    """A run in a list. `state` is one word; `why` the scheduler's reason, `cause` that of the last failure or verdict.

    `scheduler_job` is the number of its newest job. The other fields are those of `Glance`; None: not known, or not yet.
    """

    run: str
    job: str
    state: str
    why: str
    step: int | None
    steps: int | None
    steps_per_s: float | None
    loss: float | None
    goodput: float | None
    nodes: str
    attempt: int | None
    cause: str
    scheduler_job: str | None
    user: str
    submitted_at: float | None
    recorded_at: float | None

    @property
    def has_ended(self) -> bool:
        """Return whether a person must act before anything else happens, if the run is to continue."""
        return self.state in ENDED


def standing(
    name: str,
    seen: Glance | None,
    job: ScheduledJob | None,
    outcome: SubmissionOutcome | None,
    has_scheduler: bool,
    has_records: bool = True,
) -> RunStatus:
    """Return the run's line: `seen` are its records, `job` its newest job, `outcome` the outcome of its newest submission. Without
    `has_records` this machine does not see the records, and only the scheduler is asked."""
    state, why = _state(seen, job, outcome, has_scheduler) if has_records else _state_of_job(job, outcome)
    is_moving = job is not None and job.state is JobState.RUNNING
    placed = job.nodes if is_moving and job is not None else ",".join(seen.hosts) if seen is not None else ""
    return RunStatus(
        run=name,
        job=seen.job if seen is not None else name.rsplit("-", 2)[0],
        state=state,
        why=why,
        step=seen.step if seen else None,
        steps=seen.steps if seen else None,
        steps_per_s=seen.steps_per_s if seen and (is_moving or not has_scheduler) else None,
        loss=seen.loss if seen else None,
        goodput=seen.goodput if seen else None,
        nodes=placed,
        attempt=seen.attempt if seen else None,
        cause=seen.cause if seen else (outcome.text if outcome is not None and outcome.job is None else ""),
        scheduler_job=job.number if job is not None else outcome.job if outcome is not None else None,
        user=job.user if job is not None else "",
        submitted_at=seen.submitted_at if seen else None,
        recorded_at=seen.recorded_at if seen else None,
    )


def _state(
    seen: Glance | None, job: ScheduledJob | None, outcome: SubmissionOutcome | None, has_scheduler: bool
) -> tuple[str, str]:
    if job is not None and job.is_live:
        return _live(seen, job)
    verdict = seen.verdict if seen else None
    if verdict is not None and verdict.exit_code in _ENDS:
        return _ENDS[Exit(verdict.exit_code)], ""
    if job is not None and job.word != "COMPLETED":
        # Slurm: `CANCELLED by 0` in sacct.
        return job.word.partition(" ")[0].lower(), job.reason
    if verdict is not None:
        return _MAY_CONTINUE.get(Exit(verdict.exit_code), "stopped"), ""
    if seen is None and outcome is not None and outcome.kind == "refused":
        return "refused", ""
    if seen is None:
        return ("lost", "the scheduler lists no job") if outcome is not None and outcome.job else ("not submitted", "")
    return ("lost", "no verdict, and the scheduler lists no job") if has_scheduler else ("running", "no verdict yet")


def _state_of_job(job: ScheduledJob | None, outcome: SubmissionOutcome | None) -> tuple[str, str]:
    if job is None:
        return _state(None, None, outcome, has_scheduler=True)
    return (job.word.lower(), job.reason) if job.state is JobState.ENDED else (str(job.state), job.reason)


def _live(seen: Glance | None, job: ScheduledJob) -> tuple[str, str]:
    if job.state is JobState.PENDING and seen is not None and seen.attempt is not None:
        return "requeued", job.reason
    if job.state is JobState.RUNNING:
        if seen is None or seen.attempt is None or not seen.hosts:
            return "starting", job.reason
        return ("ending" if seen.verdict is not None and seen.verdict.exit_code in _ENDS else "running"), ""
    return str(job.state), job.reason
