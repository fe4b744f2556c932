"""Reads the documents of verbs: one on stdin, and the plan of a job."""

import argparse
import sys
from pathlib import Path

from headway.cli.views.problems import print_problems
from headway.compile import PlannedJob, Sources, compile_documents
from headway.jobspec.load import MAX_BYTES
from headway.jobspec.suggest import listed

STDIN = Path("-")


def add_stdin(parser: argparse.ArgumentParser) -> None:
    """The option that names a document on stdin."""
    parser.add_argument(
        "--stdin-filename",
        type=Path,
        default=Path("<stdin>"),
        metavar="FILE",
        help="for `-`: the document's file, from whose folder its cluster and its other files are found",
    )


def given(path: Path, sources: Sources, name: Path) -> Path:
    """The path; for `-` the `name`, after `sources` has taken the document from stdin for that file's."""
    if path != STDIN:
        return path
    sources.take(name, sys.stdin.buffer.read(MAX_BYTES + 1))
    return name


def load_job_plan(job_file: Path, cluster_file: Path | None = None) -> PlannedJob | None:
    """The job's plan on the cluster in `cluster_file`, else on the first that it names. Problems go to stderr; None on errors."""
    compiled = compile_documents([job_file], cluster_file, kinds=("TrainingJob",), first_only=True)
    print_problems(compiled.problems, sys.stderr)
    if compiled.problems.errors:
        return None
    if len(compiled.jobs) > 1:
        names = [planned.plan.name for planned in compiled.jobs]
        print(
            f"{job_file} is a sweep of {len(names)} runs; `headway render` writes each of them: {listed(names)}", file=sys.stderr
        )
        return None
    return compiled.jobs[0]
