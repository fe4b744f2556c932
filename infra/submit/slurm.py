"""Implements the scheduler of the verbs (`Scheduler`) by Slurm's commands, on this machine or on a login node."""

from collections.abc import Collection, Iterator, Sequence

from headway.infra.submit.scheduler import JobRefusedError, JobRequest, JobState, ScheduledJob
from headway.infra.submit.shell import CommandError, CommandResult, CommandShell

# Behind the submission of a job, its script counts the attempts that could not be opened.
_COUNT = " headway:not-opened"
# Number, user, state, reason, nodes, name and comment: the two last may contain any character.
_FORMAT = "%A|%u|%T|%r|%N|%j|%k"
_FIELDS = 7

_LIVE = {
    "PENDING": JobState.PENDING,
    "CONFIGURING": JobState.RUNNING,
    "RUNNING": JobState.RUNNING,
    "RESIZING": JobState.RUNNING,
    "SIGNALING": JobState.RUNNING,
    "SUSPENDED": JobState.SUSPENDED,
    "STOPPED": JobState.SUSPENDED,
    "COMPLETING": JobState.ENDING,
    "STAGE_OUT": JobState.ENDING,
    "REQUEUED": JobState.PENDING,
    "REQUEUE_FED": JobState.PENDING,
    "REQUEUE_HOLD": JobState.HELD,
    "RESV_DEL_HOLD": JobState.HELD,
    "SPECIAL_EXIT": JobState.HELD,
}
# The client waited for an answer that did not come: the job may be in the queue (SchedMD/slurm src/common/slurm_errno.c).
_UNANSWERED = (
    "timed out",
    "contact slurm controller",
    "zero bytes",
    "communication",
    "connection",
    "transmit",
    "unexpected message",
)


class Slurm:
    """Slurm's commands in a shell. A job's name is its run's and its comment the folder of its submission, so that Slurm finds the job of
    a run that no file knows."""

    kind = "slurm"

    def __init__(self, shell: CommandShell) -> None:
        self.shell = shell

    def jobs(self, names: Collection[str] = (), numbers: Collection[str] = ()) -> list[ScheduledJob]:
        chosen = [f"--name={','.join(names)}"] if names else []
        chosen += [f"--jobs={','.join(numbers)}"] if numbers else []
        done = self.shell.run(["squeue", "--noheader", "--states=all", *chosen, f"--format={_FORMAT}"])
        if done.code and "Invalid job id" not in done.errors:
            raise CommandError(f"squeue: {done.reason}")
        return list(_jobs(done.output))

    def ended(self, number: str) -> ScheduledJob | None:
        command = ["sacct", "--noheader", "--parsable2", "--allocations", f"--jobs={number}"]
        try:
            done = self.shell.run([*command, "--format=JobIDRaw,User,State,ExitCode,NodeList,JobName"])
        except CommandError:
            return None
        lines = [] if done.code else [line.split("|", 5) for line in done.output.splitlines() if line.count("|") >= 5]
        if not lines:
            return None
        job, user, state, code, nodes, name = lines[-1]
        word = state.partition(" ")[0]
        return ScheduledJob(job, name, user, _LIVE.get(word, JobState.ENDED), word, f"exit code {code.partition(':')[0]}", nodes)

    def test(self, request: JobRequest) -> str:
        command = ["sbatch", "--test-only", f"--job-name={request.run}"]
        done = self.shell.run([*_with_variables(request), *command], stdin=request.script.encode())
        if done.code:
            raise JobRefusedError(_said(done))
        return _said(done)

    def submission(self, request: JobRequest) -> Sequence[str]:
        options = ["--parsable", f"--job-name={request.run}", f"--comment={request.place}"]
        return [*_with_variables(request), "sbatch", *options, f"{request.place}/job.sbatch"]

    def is_refusal(self, errors: str) -> bool:
        return not any(words in errors.lower() for words in _UNANSWERED)

    def cancel(self, number: str) -> Sequence[str]:
        return ["scancel", number]

    def release(self, number: str) -> Sequence[str]:
        return ["scontrol", "release", number]


def _with_variables(request: JobRequest) -> list[str]:
    return ["env", *(f"{name}={value}" for name, value in request.variables.items())]


def _said(done: CommandResult) -> str:
    lines = [line.removeprefix("sbatch: ").removeprefix("error: ") for line in done.errors.splitlines()]
    return "; ".join(line.strip() for line in lines if line.strip()) or done.reason


def _jobs(output: str) -> Iterator[ScheduledJob]:
    for line in output.splitlines():
        fields = line.split("|", _FIELDS - 1)
        if len(fields) == _FIELDS:
            number, user, word, reason, nodes, name, comment = fields
            state = _LIVE.get(word, JobState.ENDED)
            if state is JobState.PENDING and "held" in reason.lower():
                state = JobState.HELD
            yield ScheduledJob(
                number, name, user, state, word, "" if reason == "None" else reason, nodes, comment.partition(_COUNT)[0]
            )
