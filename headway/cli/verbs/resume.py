"""`headway resume RUN`: gives a run that has ended, or that is held, a job again, by the script of its last submission."""

import argparse
import sys

from headway.cli.site import add_cluster, add_run, carry_out, known_run, site_of, stopping, tell
from headway.cli.terminal import StopError
from headway.infra.submit.scheduler import JobState, ScheduledJob, Submissions, TakenError
from headway.infra.submit.site import Site


def configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = "To continue a run by an edited job: headway submit JOB --resume RUN"
    add_run(parser)
    add_cluster(parser)


def run(args: argparse.Namespace) -> int:
    """0 for a run that has a job now; 1 for one that cannot be resumed so, 3 for what does not answer."""
    return stopping(lambda: _resume(args))


def _resume(args: argparse.Namespace) -> int:
    with site_of(args.cluster, args.run) as site:
        name = known_run(site.runs, args.run)
        desk = site.desk(tell)
        job = desk.job_to_come(name)
        if job is not None:
            return _release(desk, name, job)
        try:
            return _submit_again(site, name)
        except TakenError:
            # Another client was first: its job is the run's.
            job = desk.live_job(name)
            if job is None:
                raise StopError(1, f"another client has submitted run `{name}`, and its job has ended already") from None
            return _release(desk, name, job)


def _release(desk: Submissions, name: str, job: ScheduledJob) -> int:
    if job.state is not JobState.HELD:
        tell(f"run `{name}` has a job: {job.number} is {job.word}")
        return 0
    carry_out(desk.release(job))
    tell(f"job {job.number} of run `{name}` is back in the queue")
    return 0


def _submit_again(site: Site, name: str) -> int:
    last = site.desk(tell).last_submission(name)
    if last is None:
        raise StopError(1, f"run `{name}` was not submitted by headway; to continue it: headway submit JOB --resume {name}")
    desk = site.desk(tell, last.request["folder"])
    if desk.has_completed(name):
        raise StopError(1, f"run `{name}` has completed; to give it more steps: headway submit JOB --resume {name}")
    request = desk.request(name, last.number + 1, last.script)
    tell(desk.test(request))
    print(f"$ {desk.command(request)}", file=sys.stderr, flush=True)
    submitted = desk.submit(request, {key: last.request[key] for key in ("job", "cluster", "spec_hash") if key in last.request})
    tell(f"run `{name}` has job {submitted.job}")
    return 0
