"""The committed script of the two-node story, run by a real Slurm: the same state as `headway run` of the same job."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.processes import companions, processes_of, worker
from tests.faults.runs import LIMIT_S, Run, headway, only_run, wait_for_step, wait_until

from .cluster import SlurmCluster

pytestmark = pytest.mark.slow

STORY = Path(__file__).parents[3] / "examples/two-node-slurm"
SCRIPT = STORY / "rendered/small-llama/two-cpu-nodes/slurm/job.sbatch"
STEPS = list(range(1, 31))
ENDED = {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT"}


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The same job on this machine: two slots with one rank each."""
    runs = tmp_path_factory.mktemp("local")
    done = headway("run", STORY / "job.yaml", runs=runs)
    assert done.returncode == 0, done.stdout + done.stderr
    return only_run(runs)


@pytest.fixture
def job(slurm: SlurmCluster, tmp_path: Path) -> Iterator[int]:
    """The committed script, submitted by somebody whose virtual environment is active."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {"PATH": path, "HEADWAY_RUNS": str(tmp_path / "runs")}
    number = slurm.submit(SCRIPT, env=environment, cwd=tmp_path)
    yield number
    slurm.run("scancel", str(number), check=False)


def _end(slurm: SlurmCluster, job: int, folder: Path) -> Run:
    """Waits until the job has completed; says what it printed if it did not."""
    state = slurm.wait(job, ENDED, LIMIT_S)["JobState"]
    assert state == "COMPLETED", "".join(path.read_text() for path in folder.glob("*.out"))
    return only_run(folder / "runs")


def test_the_committed_script_ends_in_the_state_of_a_local_run(slurm: SlurmCluster, job: int, local: Run, tmp_path: Path) -> None:
    run = _end(slurm, job, tmp_path)
    (start,) = run.journal("start")
    assert [node["host"] for node in start["nodes"]] == ["n1", "n2"]
    assert run.hashes() == local.hashes()
    assert run.steps() == STEPS


def test_a_killed_worker_is_replaced_inside_the_allocation(slurm: SlurmCluster, job: int, local: Run, tmp_path: Path) -> None:
    run = wait_for_step(tmp_path / "runs", 14)
    worker(run.directory, rank=1).kill()
    run = _end(slurm, job, tmp_path)
    (failure,) = run.journal("failure")
    assert (failure["cause"], failure["rank"], failure["host"]) == ("killed by SIGKILL", 1, "n2")
    assert slurm.job(job)["Restarts"] == "0"
    assert run.hashes() == local.hashes()


def test_a_requeued_job_goes_on_as_a_further_attempt_of_the_same_run(
    slurm: SlurmCluster, job: int, local: Run, tmp_path: Path
) -> None:
    run = wait_for_step(tmp_path / "runs", 14)
    slurm.run("scontrol", "requeue", str(job))
    wait_until(lambda: not processes_of(run.directory), "the end of the first attempt")
    run = _end(slurm, job, tmp_path)
    assert run.verdict(attempt=0)["verdict"] == "preempted"
    assert run.verdict(attempt=1)["verdict"] == "completed"
    assert run.journal("claim")[1]["base"]["step"] >= 14, "it saved where it stood"
    assert run.hashes() == local.hashes()
    assert run.steps() == STEPS
    assert not companions(run.directory, "headway.runner")
