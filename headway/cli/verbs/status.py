"""`headway status [RUN|JOB]`: lists a cluster's runs with their state, progress and last cause; on a terminal it keeps the list current."""

import argparse
import json
import sys
import time
from pathlib import Path

from msgspec.structs import asdict

from headway.cli.documents import load_job_plans
from headway.cli.site import add_cluster, known_run, site_of, stopping
from headway.cli.terminal import StopError
from headway.cli.views.runs import print_runs, runs_table
from headway.cli.watching import RunWatch
from headway.infra.submit.site import Site, opened
from headway.report.standing import RunStatus

_LOOK_EVERY_S = 2.0
_SHOWN = 20


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "List a cluster's runs: state, step, rate, goodput, nodes, last cause; on a terminal until you interrupt it."
    )
    parser.add_argument(
        "run",
        metavar="RUN|JOB",
        nargs="?",
        help="the name of a run; or a TrainingJob document: the newest run of the job, of a sweep that of each point",
    )
    add_cluster(parser)
    parser.add_argument("--once", action="store_true", help="print the list once, also on a terminal")
    parser.add_argument("--all", action="store_true", help=f"all runs, not only the newest {_SHOWN}")
    parser.add_argument("--json", action="store_true", help="print the runs as a JSON list, once")


def run(args: argparse.Namespace) -> int:
    """0; 1 for an unknown run or mistakes in the cluster's document, 3 for what does not answer."""
    return stopping(lambda: _status(args))


def _status(args: argparse.Namespace) -> int:
    if args.run and Path(args.run).suffix in (".yaml", ".yml"):
        return _status_of_job(args)
    with site_of(args.cluster, args.run) as site:
        name = known_run(site.runs, args.run) if args.run else None
        return _show(args, RunWatch(site, name, None if args.all else _SHOWN), site)


def _status_of_job(args: argparse.Namespace) -> int:
    planned = load_job_plans(Path(args.run), args.cluster)
    if not planned:
        return 1
    first = planned[0]
    with opened(first.plan.scheduler, first.scheduler, first.plan.runs, Path(first.cluster_document.name)) as site:
        return _show(args, RunWatch(site, jobs=[each.plan.name for each in planned]), site)


def _show(args: argparse.Namespace, watch: RunWatch, site: Site) -> int:
    found = watch.look()
    if args.json:
        print(json.dumps([asdict(each) for each in found], indent=2))
    elif not found:
        raise StopError(1, f"there are no runs in `{site.runs.path}`")
    elif args.once or not sys.stdout.isatty():
        print_runs(found, watch.older)
    else:
        _follow(watch, found)
    return 0


def _follow(watch: RunWatch, found: list[RunStatus]) -> None:
    from rich.live import Live  # noqa: PLC0415 (only a terminal needs it)

    from headway.cli.terminal import stdout_console  # noqa: PLC0415

    console = stdout_console()
    try:
        with Live(runs_table(found, watch.older, console.width), console=console, auto_refresh=False) as live:
            while True:
                time.sleep(_LOOK_EVERY_S)
                found = watch.look()
                live.update(runs_table(found, watch.older, console.width), refresh=True)
    except KeyboardInterrupt:
        return
