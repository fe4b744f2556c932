"""`headway status [RUN]`: lists a cluster's runs with their state, progress and last cause; on a terminal it keeps the list current."""

import argparse
import dataclasses
import json
import sys
import time

from headway.cli.site import add_cluster, add_run, known_run, site_of, stopping
from headway.cli.terminal import StopError
from headway.cli.views.runs import print_runs, runs_table
from headway.cli.watching import RunWatch
from headway.report.standing import RunStatus

_LOOK_EVERY_S = 2.0
_SHOWN = 20


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "List a cluster's runs: state, step, rate, goodput, nodes, last cause; on a terminal until you interrupt it."
    )
    add_run(parser, nargs="?")
    add_cluster(parser)
    parser.add_argument("--once", action="store_true", help="print the list once, also on a terminal")
    parser.add_argument("--all", action="store_true", help=f"all runs, not only the newest {_SHOWN}")
    parser.add_argument("--json", action="store_true", help="print the runs as a JSON list, once")


def run(args: argparse.Namespace) -> int:
    """0; 1 for an unknown run or mistakes in the cluster's document, 3 for what does not answer."""
    return stopping(lambda: _status(args))


def _status(args: argparse.Namespace) -> int:
    with site_of(args.cluster, args.run) as site:
        name = known_run(site.runs, args.run) if args.run else None
        watch = RunWatch(site, name, None if args.all else _SHOWN)
        found = watch.look()
        if args.json:
            print(json.dumps([dataclasses.asdict(each) for each in found], indent=2))
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
