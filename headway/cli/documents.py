"""Plans the job of a verb that takes one."""

import sys
from pathlib import Path

from headway.cli.views.problems import print_problems
from headway.compile import PlannedJob, compile_documents


def load_job_plan(job_file: Path, cluster_file: Path | None = None) -> PlannedJob | None:
    """The job's plan on the cluster in `cluster_file`, else on the first that it names. Problems go to stderr; None on errors."""
    compiled = compile_documents([job_file], cluster_file, kinds=("TrainingJob",), first_only=True)
    print_problems(compiled.problems, sys.stderr)
    return None if compiled.problems.errors else compiled.jobs[0]
