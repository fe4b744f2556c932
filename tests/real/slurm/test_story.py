"""The committed scripts of the two-node story under real Slurms: the same state as `headway run` of the same job."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.processes import Process, companions, processes_of, worker
from tests.faults.runs import LIMIT_S, Run, headway, only_run, wait_for_step, wait_until

from .cluster import SlurmCluster
from .configuration import Shape

pytestmark = pytest.mark.slow

STORY = Path(__file__).parents[3] / "examples/two-node-slurm"
SCRIPT = STORY / "rendered/small-llama/two-cpu-nodes/slurm/job.sbatch"
GPU_SCRIPT = STORY / "rendered/small-llama/two-h100-nodes/slurm/job.sbatch"
SPARE_SCRIPT = STORY / "rendered/small-llama-spare/three-cpu-nodes/slurm/job.sbatch"
STEPS = list(range(1, 31))
ENDED = {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT"}


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The same job on this machine: two slots with one rank each. The nodes of the current Slurm have a newer C library."""
    runs = tmp_path_factory.mktemp("local")
    done = headway("run", STORY / "job.yaml", runs=runs)
    assert done.returncode == 0, done.stdout + done.stderr
    return only_run(runs)


@pytest.fixture
def job(each_slurm: SlurmCluster, tmp_path: Path) -> Iterator[int]:
    """The committed script, submitted by somebody whose virtual environment is active."""
    path = f"{Path(sys.executable).parent}:{each_slurm.env['PATH']}"
    environment = {"PATH": path, "HEADWAY_RUNS": str(tmp_path / "runs")}
    number = each_slurm.submit(SCRIPT, env=environment, cwd=tmp_path)
    yield number
    each_slurm.run("scancel", str(number), check=False)


def _end(slurm: SlurmCluster, job: int, folder: Path) -> Run:
    """Waits until the job has completed; says what it printed if it did not."""
    state = slurm.wait(job, ENDED, LIMIT_S)["JobState"]
    assert state == "COMPLETED", "".join(path.read_text() for path in folder.glob("*.out"))
    return only_run(folder / "runs")


def test_the_committed_script_ends_in_the_state_of_a_local_run(
    each_slurm: SlurmCluster, job: int, local: Run, tmp_path: Path
) -> None:
    run = _end(each_slurm, job, tmp_path)
    (start,) = run.journal("start")
    assert [node["host"] for node in start["nodes"]] == ["n1", "n2"]
    assert run.hashes() == local.hashes()
    assert run.steps() == STEPS


def test_a_killed_worker_is_replaced_inside_the_allocation(
    each_slurm: SlurmCluster, job: int, local: Run, tmp_path: Path
) -> None:
    run = wait_for_step(tmp_path / "runs", 14)
    worker(run.directory, rank=1).kill()
    run = _end(each_slurm, job, tmp_path)
    (failure,) = run.journal("failure")
    assert (failure["cause"], failure["rank"], failure["host"]) == ("killed by SIGKILL", 1, "n2")
    assert each_slurm.job(job)["Restarts"] == "0"
    assert run.hashes() == local.hashes()


def test_a_requeued_job_goes_on_as_a_further_attempt_of_the_same_run(
    each_slurm: SlurmCluster, job: int, local: Run, tmp_path: Path
) -> None:
    run = wait_for_step(tmp_path / "runs", 14)
    each_slurm.run("scontrol", "requeue", str(job))
    wait_until(lambda: not processes_of(run.directory), "the end of the first attempt")
    run = _end(each_slurm, job, tmp_path)
    assert run.verdict(attempt=0)["verdict"] == "preempted"
    assert run.verdict(attempt=1)["verdict"] == "completed"
    assert run.journal("claim")[1]["base"]["step"] >= 14, "it saved where it stood"
    assert run.hashes() == local.hashes()
    assert run.steps() == STEPS
    assert not companions(run.directory, "headway.runner")


def test_a_spare_takes_the_place_of_a_lost_node_inside_the_allocation(
    each_slurm: SlurmCluster, local: Run, tmp_path: Path
) -> None:
    with SlurmCluster(Shape(nodes=3), each_slurm.programs) as slurm:
        path = f"{Path(sys.executable).parent}:{slurm.env['PATH']}"
        job = slurm.submit(SPARE_SCRIPT, env={"PATH": path, "HEADWAY_RUNS": str(tmp_path / "runs")}, cwd=tmp_path)
        run = wait_for_step(tmp_path / "runs", 14)
        _supervisor(run, node=1).kill()
        run = _end(slurm, job, tmp_path)
        assert slurm.job(job)["Restarts"] == "0"
    (rebound,) = run.journal("rebound")
    assert (rebound["slot"], rebound["from"], rebound["to"]) == (1, 1, 2)
    assert run.hashes() == local.hashes()
    assert sorted(set(run.steps())) == STEPS


def _supervisor(run: Run, node: int) -> Process:
    """The supervisor of the node with this index."""
    (found,) = (each for each in companions(run.directory, "headway.runner") if each.environment["SLURM_NODEID"] == str(node))
    return found


def test_the_gpu_script_is_accepted_by_a_cluster_of_its_size_and_by_no_smaller_one(each_slurm: SlurmCluster) -> None:
    with SlurmCluster(Shape(nodes=2, cpus=96, gpus=8, partition="gpu"), each_slurm.programs) as enough:
        assert "using 192 processors on nodes n[1-2] in partition gpu" in _test_only(enough, GPU_SCRIPT)
    with SlurmCluster(Shape(nodes=2, cpus=96, gpus=7, partition="gpu"), each_slurm.programs) as too_small:
        assert "Requested node configuration is not available" in _test_only(too_small, GPU_SCRIPT)


def _test_only(slurm: SlurmCluster, script: Path) -> str:
    """Where and when the controller would start it, or why never."""
    return slurm.run("sbatch", "--test-only", str(script), check=False).stderr
