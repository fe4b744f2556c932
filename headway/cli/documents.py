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


def load_job_plans(job_file: Path, cluster_file: Path | None = None) -> tuple[PlannedJob, ...]:
    """The plans of the job's runs, of which a sweep has several, on the cluster in `cluster_file`, else on the first that it names.

    Problems go to stderr; nothing on errors.
    """
    compiled = compile_documents([job_file], cluster_file, kinds=("TrainingJob",), first_only=True)
    print_problems(compiled.problems, sys.stderr)
    return () if compiled.problems.errors else compiled.jobs


def load_job_plan(job_file: Path, cluster_file: Path | None = None) -> PlannedJob | None:
    """The plan of a job with one run, as `load_job_plans`. Problems go to stderr; None on errors and for a sweep."""
    found = load_job_plans(job_file, cluster_file)
    if len(found) > 1:
        names = listed([planned.plan.name for planned in found])
        print(
            f"{job_file} is a sweep of {len(found)} runs; `headway render` writes each of them, and `headway submit` submits them: "
            f"{names}",
            file=sys.stderr,
        )
    return found[0] if len(found) == 1 else None
