"""`headway plan`: prints the plan of a job or a cluster."""

import argparse
import sys
from pathlib import Path

from headway.cli.documents import add_stdin, given
from headway.cli.forecast import ForecastError, asks, configure_forecast, forecast
from headway.cli.terminal import fail, stdout_console
from headway.cli.views.forecast import forecast_json, print_forecast
from headway.cli.views.plan_text import print_cluster, print_head, print_job
from headway.cli.views.problems import print_problems
from headway.compile import PlannedCluster, PlannedJob, Sources, compile_documents
from headway.jobspec.json_text import json_text
from headway.jobspec.plan import to_json
from headway.templates.cabling.names import with_names
from headway.templates.cabling.render import FORMATS


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "document", type=Path, metavar="JOB|CLUSTER", help="a TrainingJob or a Cluster document, or `-` for stdin"
    )
    parser.add_argument(
        "--cluster", type=Path, metavar="FILE", help="for a job: a Cluster document (default: the first that the job names)"
    )
    parser.add_argument(
        "--json",
        action="store_true",
        help="print JSON: the whole plan, or the result of the other options",
    )
    parser.add_argument("--ranks", action="store_true", help="for a job: list its ranks with their places in the mesh")
    parser.add_argument(
        "--cables", choices=FORMATS, help="for a cluster: print its cables only, as a table, a graph, or a containerlab topology"
    )
    add_stdin(parser)
    configure_forecast(parser)


def run(args: argparse.Namespace) -> int:
    """Prints the plan. 1 when the documents have errors, 2 for a folder, which has no plan of its own."""
    if args.document.is_dir():
        return fail(f"{args.document} is a folder; pass one document", 2)
    if args.top is not None and not args.search:
        return fail("`--top` limits the layouts that `--search` lists; add `--search`", 2)
    sources = Sources()
    document = given(args.document, sources, args.stdin_filename)
    compiled = compile_documents([document], args.cluster, kinds=("TrainingJob", "Cluster"), first_only=True, sources=sources)
    print_problems(compiled.problems, sys.stderr)
    if compiled.problems.errors:
        return 1
    try:
        for job in compiled.jobs:
            _show_job(job, args)
        for cluster in compiled.clusters:
            _show_cluster(cluster, args)
    except ForecastError as error:
        return fail(str(error), 2)
    return 0


def _show_job(planned: PlannedJob, args: argparse.Namespace) -> None:
    """Where more than the plan is asked for, only what was asked is shown to people."""
    if args.cables:
        raise ForecastError("a job has no cables; pass a cluster")
    if args.json and not asks(args):
        sys.stdout.write(to_json(planned.plan))
        return
    found = forecast(planned, args)
    if args.json:
        sys.stdout.write(json_text(forecast_json(found)))
        return
    console = stdout_console()
    if not asks(args):
        print_head(console, planned.plan)
    print_forecast(console, found, planned)
    if not asks(args):
        print_job(console, planned, ranks=args.ranks)


def _show_cluster(planned: PlannedCluster, args: argparse.Namespace) -> None:
    if asks(args):
        raise ForecastError("a cluster has no layouts; pass a job")
    if args.cables:
        # Containers are Linux, whose interfaces have the plan's names.
        shown = planned.plan if args.cables == "containerlab" else with_names(planned.plan)
        sys.stdout.write(FORMATS[args.cables](shown))
    elif args.json:
        sys.stdout.write(to_json(planned.plan))
    else:
        print_cluster(stdout_console(), planned.plan, planned.shapes)
