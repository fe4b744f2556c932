"""`headway snapshot`: keeps the code that a job's runs use, so that no edit after the submission changes them."""

import argparse
import os
from pathlib import Path

from headway.cli.documents import load_job_plan
from headway.cli.terminal import fail


def configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = (
        "Call it where the job is submitted: the ranks start in the same folder of the archive. "
        "It prints the value of HEADWAY_CODE for the job's batch script."
    )
    parser.add_argument("job", type=Path, metavar="JOB", help="a TrainingJob document; its `code.commit` is what is kept")
    parser.add_argument("--cluster", type=Path, metavar="FILE", help="a Cluster document (default: the first that the job names)")
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        metavar="FOLDER",
        help="folder of the archives, which all nodes see (default: `code` in the folder of the runs)",
    )


def run(args: argparse.Namespace) -> int:
    """Print archive and folder. 1 on errors in the documents, for uncommitted changes, and for a commit that is not there."""
    from headway.infra.snapshot import SnapshotError, make_snapshot  # noqa: PLC0415  only this verb needs it

    planned = load_job_plan(args.job, args.cluster)
    if planned is None:
        return 1
    archives = args.output or Path(os.environ.get("HEADWAY_RUNS") or planned.plan.runs) / "code"
    try:
        print(make_snapshot(Path.cwd(), planned.plan.code["commit"] or "HEAD", archives))
    except (SnapshotError, OSError) as error:
        return fail(str(error), 1)
    return 0
