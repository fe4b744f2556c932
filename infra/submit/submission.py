"""Submits a run's job once, whatever happens to the client: one folder per submission, whose outcome is decided once.

A submission is `<run>/submissions/<number>/`, which appears with its script and request by one rename. A folder `started` gives one process
the right to call the scheduler, and the file `outcome` has the result (DECISIONS.md, "A submission has one outcome").
"""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import PurePosixPath

from msgspec import Struct

from headway.infra.submit.runs import Runs
from headway.infra.submit.scheduler import (
    Action,
    JobRefusedError,
    JobRequest,
    JobState,
    LastSubmission,
    NotDoneError,
    ScheduledJob,
    Scheduler,
    Submitted,
    TakenError,
)
from headway.infra.submit.shell import CommandError, CommandShell
from headway.jobspec.json_text import json_text
from headway.runner.contract import ATTEMPT_TAKEN, Exit, RunDirectory, SubmissionOutcome, parse_outcome, read_verdict

REQUEST_SCHEMA = "headway.request/1"

# How long a job of a submission without an answer may take to appear in the queue. A later one ends at once: its outcome is `void`.
SETTLE_S = 30.0
# Of six requests a minute that a client may make.
ASK_EVERY_S = 10.0
_LOOK_EVERY_S = 0.5
_SUBMIT_S = 180.0
_FIRST_WAIT_S, _LONGEST_WAIT_S = 1.0, 15.0

# $1: the folder of the run, $2: the number, $3: the request; then the command; stdin is the script.
# The file system decides which of several processes continues: rename(2) replaces no folder with content, mkdir(2) and link(2) nothing.
_SUBMIT = f"""
set -u
run=$1 number=$2 request=$3
shift 3
place=$run/submissions/$number
trap '' HUP INT PIPE TERM
mkdir -p "$run/submissions" && new=$(mktemp -d "$run/submissions/.tmp-XXXXXXXX") || exit 1
chmod 755 "$new" && cat >"$new/job.sbatch" && printf '%s\\n' "$request" >"$new/request.json" || exit 1
if ! mv -T "$new" "$place" 2>/dev/null; then rm -rf "$new"; exit {ATTEMPT_TAKEN}; fi
exec 9>"$place/lock" && {{ ! command -v flock >/dev/null || flock 9; }}
mkdir "$place/started" || exit {ATTEMPT_TAKEN}
answer=$("$@" 2>"$place/.tmp-errors")
code=$?
job=${{answer%%;*}}
errors=$(cat "$place/.tmp-errors"; rm -f "$place/.tmp-errors")
if [ "$code" = 0 ]; then
  printf 'job %s\\n' "$job" >"$place/.tmp-outcome"
  ln "$place/.tmp-outcome" "$place/outcome" 2>/dev/null
  rm -f "$place/.tmp-outcome"
fi
printf '%s\\n' "$answer"
printf '%s\\n' "$errors" >&2
exit "$code"
"""

# $1: the submission's folder, $2: the outcome. Prints the one that it has then.
_SETTLE = """
printf '%s\\n' "$2" >"$1/.tmp-outcome.$$" || exit 1
ln "$1/.tmp-outcome.$$" "$1/outcome" 2>/dev/null
rm -f "$1/.tmp-outcome.$$"
cat "$1/outcome"
"""


# $1: the submission's folder. Fails while its process, or the scheduler's command that it has started, still runs.
_IS_OVER = '[ ! -e "$1/lock" ] || ! command -v flock >/dev/null || flock --nonblock "$1/lock" true'


def request_text(request: JobRequest, user: str, folder: str, command: str, described: Mapping[str, str]) -> str:
    """Return what is kept of a submission as JSON: who has submitted it from where, by which command, and what describes it."""
    kept = {"schema": REQUEST_SCHEMA, "run": request.run, "number": request.number, "user": user, "folder": folder}
    return json_text({**kept, "command": command, "submitted_at": time.time(), **described})


class Desk(Struct, frozen=True):
    """Where submissions are made: the scheduler, the shell that has its commands, and the runs.

    `tell` reports to people what is waited for; `now` and `sleep` are the clock.
    """

    scheduler: Scheduler
    shell: CommandShell
    runs: Runs
    tell: Callable[[str], None]
    now: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep

    def test(self, request: JobRequest) -> str:
        """Ask the scheduler whether it would start the job. Raises JobRefusedError, CommandError."""
        return self.scheduler.test(request)

    def live_job(self, run: str) -> ScheduledJob | None:
        """Return the job that has the run or will have it; None if there is none. Settles an interrupted submission first.

        Raises CommandError.
        """
        directory = self.runs.fetch(run)
        numbers = directory.submission_numbers()
        known = [] if not numbers else [self.settled(run, numbers[-1])]
        jobs = {job.number: job for job in self.scheduler.jobs(names=[run]) if self._is_of(job, run)}
        asked = {outcome.job for outcome in known if outcome.job} | set(_jobs_of_attempts(directory))
        if missing := sorted(asked - jobs.keys()):
            jobs |= {job.number: job for job in self.scheduler.jobs(numbers=missing)}
        return next((job for job in jobs.values() if job.is_live), None)

    def settled(self, run: str, number: int) -> SubmissionOutcome:
        """Return the outcome of a submission. Without one, waits until its job appears, or gives it up after SETTLE_S.

        Raises CommandError.
        """
        place = self._place(run, number)
        if found := self._outcome(run, number):
            return found
        if self.shell.run(["mkdir", f"{place}/started"]).code == 0:
            # Its client ended before it called the scheduler, and now never will.
            return self._settle(place, SubmissionOutcome("void", "the client ended before it called the scheduler"))
        self.tell(f"submission {number} of run `{run}` was interrupted; waiting up to {SETTLE_S:g} s for its job to appear")
        since, asked = self.now(), -ASK_EVERY_S
        while True:
            if found := self._outcome(run, number):
                return found
            waited = self.now() - since
            if waited - asked >= ASK_EVERY_S or waited >= SETTLE_S:
                asked = waited
                jobs = self.scheduler.jobs(names=[run])
                if job := next((job for job in jobs if job.place == place), None):
                    return self._settle(place, SubmissionOutcome("job", job.number))
            if waited >= SETTLE_S and self.shell.run(["sh", "-c", _IS_OVER, "over", place]).code:
                self.tell("the scheduler's command of that submission is still running")
                since, asked = self.now(), 0.0
            elif waited >= SETTLE_S:
                return self._settle(place, SubmissionOutcome("void", f"no job of it was listed within {SETTLE_S:g} s"))
            self.sleep(_LOOK_EVERY_S)

    def wait_for_end(self, job: ScheduledJob) -> None:
        """Return when the job has ended, after fewer than six requests a minute. Raises CommandError."""
        wait_s = _FIRST_WAIT_S
        while any(each.is_live for each in self.scheduler.jobs(numbers=[job.number])):
            self.sleep(wait_s)
            wait_s = min(2 * wait_s, _LONGEST_WAIT_S)

    def job_to_come(self, run: str) -> ScheduledJob | None:
        """Return the run's live job; waits for the end of one that is ending, since its run can then be resumed. Raises CommandError."""
        job = self.live_job(run)
        if job is None or job.state is not JobState.ENDING:
            return job
        self.tell(f"waiting for the end of job {job.number} of run `{run}` ({job.word})")
        self.wait_for_end(job)
        return self.live_job(run)

    def request(self, run: str, number: int, script: str) -> JobRequest:
        """Return the request of a run's submission: the job gets the names of its run, its submission and the folder of runs."""
        variables = {"HEADWAY_RUN": run, "HEADWAY_SUBMISSION": str(number), "HEADWAY_RUNS": self.runs.path}
        return JobRequest(run, number, self._place(run, number), script, variables)

    def command(self, request: JobRequest) -> str:
        """Return the command that `submit` runs, as a person would type it."""
        return self.shell.shown(self.scheduler.submission(request))

    def submit(self, request: JobRequest, described: Mapping[str, str]) -> Submitted:
        """Submit the job. The caller has made sure that the run has no live job, and that all earlier submissions are settled.

        `described` is kept next to the script. Raises TakenError if another client was first, JobRefusedError for a job that the scheduler
        does not take, CommandError.
        """
        kept = request_text(request, self.shell.user, self.shell.folder, self.command(request), described)
        folder = self._folder(request.run)
        command = self.scheduler.submission(request)
        argv = ["sh", "-c", _SUBMIT, "submit", folder, str(request.number), kept.strip(), *command]
        done = self.shell.run(argv, request.script.encode(), _SUBMIT_S, detached=True)
        if done.code == ATTEMPT_TAKEN:
            raise TakenError(f"submission {request.number} of run `{request.run}` was made by another client")
        outcome = self._outcome(request.run, request.number)
        if outcome is None and self.scheduler.is_refusal(done.errors):
            outcome = self._settle(request.place, SubmissionOutcome("refused", " ".join(done.errors.split()) or done.reason))
        if outcome is None:
            self.tell(f"no answer from the scheduler: {done.reason}")
            outcome = self.settled(request.run, request.number)
        if outcome.job is None:
            raise JobRefusedError(outcome.text)
        return Submitted(request.run, outcome.job, request.number, is_new=True)

    def cancel(self, job: ScheduledJob) -> Action:
        return self._action(self.scheduler.cancel(job.number), f"job {job.number} is not cancelled")

    def release(self, job: ScheduledJob) -> Action:
        return self._action(self.scheduler.release(job.number), f"job {job.number} is still held")

    def last_submission(self, run: str) -> LastSubmission | None:
        directory = self.runs.fetch(run)
        if not (numbers := directory.submission_numbers()):
            return None
        request = json.loads(directory.request(numbers[-1]).read_text())
        return LastSubmission(numbers[-1], directory.submitted_script(numbers[-1]).read_text(), request)

    def has_begun(self, run: str) -> bool:
        return bool(self.runs.fetch(run).attempt_numbers())

    def has_completed(self, run: str) -> bool:
        directory = self.runs.fetch(run)
        verdict = read_verdict(directory.at(max(directory.attempt_numbers(), default=0)))
        return verdict is not None and verdict.exit_code == Exit.COMPLETED

    def _action(self, command: Sequence[str], refused: str) -> Action:
        def run() -> None:
            done = self.shell.run(command)
            if done.code:
                raise NotDoneError(f"{refused}: {done.reason}")

        return Action(self.shell.shown(command), run)

    def _outcome(self, run: str, number: int) -> SubmissionOutcome | None:
        path = f"{run}/submissions/{number}/outcome"
        content, _ = self.runs.read(path, 0)
        return _parsed(content.decode(errors="replace"), path)

    def _settle(self, place: str, outcome: SubmissionOutcome) -> SubmissionOutcome:
        done = self.shell.run(["sh", "-c", _SETTLE, "settle", place, str(outcome).strip()])
        found = _parsed(done.output, place)
        if done.code or found is None:
            raise CommandError(f"`{place}` cannot be written: {done.reason}")
        return found

    def _is_of(self, job: ScheduledJob, run: str) -> bool:
        return PurePosixPath(job.place).is_relative_to(self._folder(run))

    def _place(self, run: str, number: int) -> str:
        return f"{self._folder(run)}/submissions/{number}"

    def _folder(self, run: str) -> str:
        return str(PurePosixPath(self.shell.folder, self.runs.path, run))


def _parsed(text: str, where: str) -> SubmissionOutcome | None:
    try:
        return parse_outcome(text, where)
    except ValueError as error:
        raise CommandError(str(error)) from error


def _jobs_of_attempts(directory: RunDirectory) -> list[str]:
    """Return the scheduler's numbers of the jobs that have opened the run's newest attempt."""
    numbers = directory.attempt_numbers()
    newest = directory.at(numbers[-1]).job if numbers else None
    return newest.read_text().split() if newest is not None and newest.exists() else []
