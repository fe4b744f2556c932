"""`headway submit JOB`: submits the job to its cluster's scheduler, once for each run, here or over SSH."""

import argparse
import sys
from pathlib import Path

from msgspec import Struct

from headway.cli.changes import judge, run_so_far
from headway.cli.documents import load_job_plans
from headway.cli.site import CLUSTER, known_run, stopping, tell
from headway.cli.terminal import StopError
from headway.cli.views.problems import print_problems
from headway.compile import PlannedJob, Problems
from headway.infra.submit.resuming import differs, next_number
from headway.infra.submit.runs import Runs
from headway.infra.submit.scheduler import ScheduledJob, Submissions, TakenError
from headway.infra.submit.site import SUBMITTING, Site, opened
from headway.jobspec.suggest import listed
from headway.report.directory import RunError
from headway.runner.contract import RunDirectory, read_verdict

_TRIES = 5


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Check and render the job, ask the scheduler whether it would start it, and submit it under the name of its run. "
        "Repeat the command if it was interrupted: a run never gets a second job. Of a sweep, each run is submitted."
    )
    parser.epilog = "Prints the name of each run on stdout."
    parser.add_argument("job", type=Path, metavar="JOB", help="a TrainingJob document")
    parser.add_argument("--cluster", type=Path, metavar="FILE", help="a Cluster document (default: the first that the job names)")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--resume", metavar="RUN", help="continue this run of the job, whose history may have new entries")
    which.add_argument("--new", action="store_true", help="start another run of a job that has one")
    parser.add_argument("--test-only", action="store_true", help="ask the scheduler, and submit nothing")


def run(args: argparse.Namespace) -> int:
    """0 for a run that has its job now; 1 for problems and for a job that the scheduler refuses, 3 for what does not answer."""
    return stopping(lambda: _submit(args))


def _submit(args: argparse.Namespace) -> int:
    runs = load_job_plans(args.job, args.cluster)
    if not runs:
        return 1
    if args.resume and len(runs) > 1:
        raise StopError(1, f"{args.job} is a sweep of {len(runs)} runs; `headway resume RUN` continues one of them")
    for planned in runs:
        _submit_run(args, planned)
    if len(runs) > 1 and not args.test_only:
        tell(f"to watch the {len(runs)} runs of the sweep: headway status {args.job}")
    return 0


def _submit_run(args: argparse.Namespace, planned: PlannedJob) -> None:
    plan = planned.plan
    if plan.scheduler not in SUBMITTING:
        message = f"`{plan.cluster}` has the scheduler `{plan.scheduler}`, and headway submits to {listed(SUBMITTING)}"
        raise StopError(1, f"{message}; run it with `headway run`")
    (script,) = (text for path, text in planned.files().items() if path.name == SUBMITTING[plan.scheduler])
    with opened(plan.scheduler, planned.scheduler, plan.runs, Path(planned.cluster_document.name)) as site:
        desk = site.desk(tell)
        for _ in range(_TRIES):
            try:
                _once(args, planned, script, site, desk)
                return
            except TakenError as error:
                tell(str(error))
    raise StopError(1, "other clients submit the same job at the same time; try again")


class _Chosen(Struct, frozen=True):
    """The run to submit, and the live job that it has already."""

    name: str
    job: ScheduledJob | None


def _once(args: argparse.Namespace, planned: PlannedJob, script: str, site: Site, desk: Submissions) -> None:
    chosen = _resumed(args, planned, site, desk) if args.resume else _of_the_job(args, planned, site.runs, desk)
    if chosen.job is not None:
        _check_same(chosen.name, chosen.job, desk, script)
        tell(f"run `{chosen.name}` has been submitted: job {chosen.job.number} is {chosen.job.word}")
        print(chosen.name)
        return
    numbers = site.runs.fetch(chosen.name).submission_numbers()
    request = desk.request(chosen.name, max(numbers, default=0) + 1, script)
    tell(desk.test(request))
    if args.test_only:
        return
    print(f"$ {desk.command(request)}", file=sys.stderr, flush=True)
    described = {"job": str(args.job), "cluster": planned.plan.cluster, "spec_hash": planned.plan.spec_hash}
    submitted = desk.submit(request, described)
    cluster = f" --cluster {args.cluster}" if args.cluster else ""
    tell(f"run `{submitted.run}` has job {submitted.job}; to watch it: headway status {submitted.run}{cluster}")
    if not cluster and planned.cluster_document.name:
        tell(
            f"`export {CLUSTER}={planned.cluster_document.name}` makes this cluster that of `status`, `logs`, `cancel` and `resume`"
        )
    print(submitted.run)


def _of_the_job(args: argparse.Namespace, planned: PlannedJob, runs: Runs, desk: Submissions) -> _Chosen:
    """The newest run of this very job if it is live or has not started, else a new one. Raises StopError if a person must choose."""
    stem = f"{planned.plan.run_stem}-"
    names = runs.names()
    number = next_number(stem, names)
    newest = f"{stem}{number - 1}"
    if newest not in names:
        return _Chosen(f"{stem}{number}", None)
    interrupted = _is_interrupted(runs, newest)
    job = desk.live_job(newest)
    if job is not None and (interrupted or not args.new):
        return _Chosen(newest, job)
    if job is None and not desk.has_begun(newest):
        # Nothing of it has begun: its submission was interrupted or refused, or its job was cancelled in the queue.
        return _Chosen(newest, None)
    if args.new:
        return _Chosen(f"{stem}{number}", None)
    directory = runs.fetch(newest)
    verdict = read_verdict(directory.at(max(directory.attempt_numbers(), default=0)))
    ended = f"has ended ({verdict.verdict}: {verdict.cause})" if verdict else "has no job any more"
    raise StopError(1, f"run `{newest}` of this job {ended}; add `--resume {newest}` to continue it, or `--new` to start another")


def _is_interrupted(runs: Runs, run: str) -> bool:
    directory = runs.fetch(run)
    numbers = directory.submission_numbers()
    return bool(numbers) and not directory.outcome(numbers[-1]).exists()


def _resumed(args: argparse.Namespace, planned: PlannedJob, site: Site, desk: Submissions) -> _Chosen:
    """The run that the option names. Raises StopError if the job cannot continue it."""
    name = known_run(site.runs, args.resume)
    job = desk.job_to_come(name)
    directory = site.runs.fetch(name, whole=True)
    if job is None:
        if not site.has_records:
            message = (
                f"this machine does not see the records of run `{name}` in `{site.runs.path}`, with which the job is compared"
            )
            raise StopError(
                1, f"{message}; set HEADWAY_RUNS to their folder, or continue the run unchanged: headway resume {name}"
            )
        if desk.has_completed(name):
            tell(f"run `{name}` has completed; it continues if the job has more steps now")
        _check_changes(planned, directory)
    return _Chosen(name, job)


def _check_changes(planned: PlannedJob, directory: RunDirectory) -> None:
    """Print what the next attempt takes up. Raises StopError for changes with which the run cannot continue."""
    why = differs(directory, planned.plan)
    taken: list[str] = []
    try:
        so_far = run_so_far(str(directory.root), ())
    except RunError:
        pass
    else:
        known = Problems((), {planned.document.name: planned.document})
        taken, refused = judge(planned.job, so_far, known)
        print_problems(known.plus(refused), sys.stderr)
        if any(problem.is_error for problem in refused):
            raise StopError(1)
    if why:
        raise StopError(1, why)
    for line in taken:
        print(line, file=sys.stderr)


def _check_same(run: str, job: ScheduledJob, desk: Submissions, script: str) -> None:
    """Raise StopError if the live job runs another script."""
    last = desk.last_submission(run)
    if last is None or last.script != script:
        what = "was not submitted by `headway submit`" if last is None else "has an earlier version of the job"
        raise StopError(
            1, f"run `{run}` has job {job.number} ({job.word}), which {what}; `headway cancel {run}` first saves and ends it"
        )
