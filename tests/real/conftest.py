"""The run that those of the two-node story on real schedulers are compared with."""

from pathlib import Path

import pytest

from tests.faults.runs import Run, headway, only_run

STORY = Path(__file__).parents[2] / "examples/two-node-slurm"


@pytest.fixture(scope="session")
def local(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The story's job on this machine: two slots with one rank each. Nodes and pods have a newer C library."""
    runs = tmp_path_factory.mktemp("local")
    done = headway("run", STORY / "job.yaml", runs=runs)
    assert done.returncode == 0, done.stdout + done.stderr
    return only_run(runs)
