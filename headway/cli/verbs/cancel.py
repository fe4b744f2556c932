"""`headway cancel RUN`: ends the job of a run, which saves first; the run can be resumed."""

import argparse

from headway.cli.site import add_cluster, add_run, carry_out, known_run, site_of, stopping, tell
from headway.report.glance import glance


def configure(parser: argparse.ArgumentParser) -> None:
    add_run(parser)
    add_cluster(parser)
    parser.add_argument("--no-wait", action="store_true", help="return at once; without it, wait until the job has ended")


def run(args: argparse.Namespace) -> int:
    """0 for a run that has no job now; 1 for an unknown run or a job that the scheduler does not end, 3 for what does not answer."""
    return stopping(lambda: _cancel(args))


def _cancel(args: argparse.Namespace) -> int:
    with site_of(args.cluster, args.run) as site:
        name = known_run(site.runs, args.run)
        desk = site.desk(tell)
        job = desk.live_job(name)
        if job is None:
            tell(f"run `{name}` has no job in the queue")
            return 0
        carry_out(desk.cancel(job))
        if not args.no_wait:
            desk.wait_for_end(job)
        seen = glance(site.runs.fetch(name))
        committed = seen.verdict.committed_step if seen is not None and seen.verdict is not None else None
        saved = "" if committed is None else f"; step {committed:,} is saved"
        tell(f"job {job.number} of run `{name}` is cancelled{saved}; to continue: headway resume {name}")
    return 0
