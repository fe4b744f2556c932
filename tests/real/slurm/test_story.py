"""Tests the committed scripts of the two-node story under real Slurms: the same state as `headway run` of the same job."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.processes import Process, companions, processes_of
from tests.faults.runs import LIMIT_S, Run, only_run, wait_for_step, wait_until

from .cluster import SlurmCluster
from .configuration import Shape
from .versions import INSTALLED, mostly

pytestmark = pytest.mark.slow

STORY = Path(__file__).parents[3] / "examples/two-node-slurm"
SCRIPT = STORY / "rendered/small-llama/two-cpu-nodes/slurm/job.sbatch"
GPU_SCRIPT = STORY / "rendered/small-llama/two-h100-nodes/slurm/job.sbatch"
SPARE_SCRIPT = STORY / "rendered/small-llama-spare/three-cpu-nodes/slurm/job.sbatch"
STEPS = list(range(1, 31))
ENDED = {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT"}


@pytest.fixture
def job(each_slurm: SlurmCluster, tmp_path: Path) -> Iterator[int]:
    """The committed script, submitted from an active virtual environment."""
    path = f"{Path(sys.executable).parent}:{each_slurm.env['PATH']}"
    environment = {"PATH": path, "HEADWAY_RUNS": str(tmp_path / "runs")}
    number = each_slurm.submit(SCRIPT, env=environment, cwd=tmp_path)
    yield number
    each_slurm.run("scancel", str(number), check=False)


def _end(slurm: SlurmCluster, job: int, folder: Path) -> Run:
    """Wait until the job has completed; report its output if it did not."""
    state = slurm.wait(job, ENDED, LIMIT_S)["JobState"]
    assert state == "COMPLETED", "".join(path.read_text() for path in folder.glob("*.out"))
    return only_run(folder / "runs")


@mostly(INSTALLED)
def test_the_script_survives_a_requeue_and_ends_like_a_local_run(
    each_slurm: SlurmCluster, job: int, local: Run, tmp_path: Path
) -> None:
    run = wait_for_step(tmp_path / "runs", 4)
    stood = run.steps()[-1]
    each_slurm.run("scontrol", "requeue", str(job))
    wait_until(lambda: not processes_of(run.directory), "the end of the first attempt")
    run = _end(each_slurm, job, tmp_path)
    assert [run.verdict(attempt)["verdict"] for attempt in (0, 1)] == ["preempted", "completed"]
    assert [[node["host"] for node in start["nodes"]] for start in run.journal("start")] == [["n1", "n2"]] * 2
    first, again = (claim["base"] or {"step": 0} for claim in run.journal("claim"))
    assert first["step"] == 0
    assert again["step"] >= stood, "it saved where it stood"
    assert run.steps() == STEPS, "a requeue costs no step"
    assert run.hashes() == local.hashes()
    assert not companions(run.directory, "headway.runner")


# tests/real/slurm/test_lost_nodes.py loses the whole node.
@pytest.mark.variant
def test_a_spare_replaces_a_lost_node_inside_the_allocation(each_slurm: SlurmCluster, local: Run, tmp_path: Path) -> None:
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


def test_the_gpu_script_is_accepted_only_by_a_cluster_of_its_size(each_slurm: SlurmCluster) -> None:
    with SlurmCluster(Shape(nodes=2, cpus=96, gpus=8, partition="gpu"), each_slurm.programs) as enough:
        assert "using 192 processors on nodes n[1-2] in partition gpu" in _test_only(enough, GPU_SCRIPT)
    with SlurmCluster(Shape(nodes=2, cpus=96, gpus=7, partition="gpu"), each_slurm.programs) as too_small:
        assert "Requested node configuration is not available" in _test_only(too_small, GPU_SCRIPT)


def _test_only(slurm: SlurmCluster, script: Path) -> str:
    """Where and when the controller would start it, or the reason why never."""
    return slurm.run("sbatch", "--test-only", str(script), check=False).stderr
