"""`headway report RUN`: turns a run directory into one HTML page and the summary block on stdout."""

import argparse
import os
import sys
from pathlib import Path

from headway.cli.documents import load_job_plan
from headway.cli.terminal import StopError, fail
from headway.planner.estimate import estimate
from headway.planner.from_plan import EstimateError, training_of
from headway.report.directory import RunError, find_run
from headway.report.page import write_page
from headway.report.summary import summarize
from headway.report.terminal import print_summary
from headway.report.throughput import PlannedStep
from headway.runner.contract import RunDirectory
from headway.runs import searched


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Summarize a run and write its HTML report: loss, failures, checkpoints and where the time went. "
        "Works while the run is still in progress."
    )
    parser.add_argument(
        "run",
        metavar="RUN",
        help="a run directory, or its name under $HEADWAY_RUNS (default: ./runs, then where `headway torchrun` stores runs)",
    )
    parser.add_argument(
        "--job",
        metavar="JOB",
        type=Path,
        help="the TrainingJob document: also show the planner's step and memory, for a job on GPUs",
    )
    parser.add_argument(
        "--cluster", metavar="FILE", type=Path, help="with --job: a Cluster document (default: the first that it names)"
    )
    parser.add_argument(
        "-o", "--output", metavar="FILE", type=Path, help="where to write the HTML page (default: RUN/report.html)"
    )


def run(args: argparse.Namespace) -> int:
    """0; 1 when RUN is not a run; 3 when the page cannot be written there."""
    try:
        directory = find_run(args.run, searched(os.environ))
        planned = None if args.job is None else _planned(args.job, args.cluster)
        summary = summarize(directory, planned)
    except StopError as error:
        return fail(str(error), error.code) if str(error) else error.code
    except RunError as error:
        return fail(str(error), 1)
    print_summary(summary)
    page: Path = args.output or RunDirectory(directory).report
    try:
        write_page(summary, page)
    except OSError as error:
        return fail(f"`{page}` cannot be written: {error.strerror}; choose another file with `-o`", 3)
    print(f"report: {page}", file=sys.stderr)
    return 0


def _planned(job: Path, cluster: Path | None) -> PlannedStep:
    """The planner's step of the job. Raises StopError, without text for a document with errors, which have been printed."""
    compiled = load_job_plan(job, cluster)
    if compiled is None:
        raise StopError(1)
    try:
        found = estimate(training_of(compiled.plan, compiled.cluster))
    except EstimateError as error:
        raise StopError(1, f"{error}; {error.hint}, or leave out `--job`") from error
    return PlannedStep(found.step.seconds, found.step.low, found.step.high, found.memory.allocated)
