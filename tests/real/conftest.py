"""Provides the local run that the two-node story on real schedulers is compared with."""

from pathlib import Path

import pytest

from tests.faults.runs import Run, headway, only_run

STORY = Path(__file__).parents[2] / "examples/two-node-slurm"


def run_here(job: Path, runs: Path) -> Run:
    """A job of the story on this machine: two slots with one rank each. Nodes and pods have a newer C library."""
    done = headway("run", job, runs=runs, fork=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return only_run(runs)


@pytest.fixture(scope="session")
def local(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The story's unmodified job."""
    return run_here(STORY / "job.yaml", tmp_path_factory.mktemp("local"))
