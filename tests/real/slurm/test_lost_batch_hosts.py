"""Tests that the batch script's node loses power at any moment of a run, with and without a spare: the run ends as a local one does."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.faults.processes import companions
from tests.faults.runs import LIMIT_S, Run, only_run, wait_for_step, wait_until

from .cluster import SlurmCluster
from .configuration import Shape
from .shell import submit
from .test_lost_nodes import ENDED, SCRIPT, SPARE_SCRIPT, STEPS, printed

pytestmark = [pytest.mark.slow, pytest.mark.variant]


@pytest.fixture(scope="module")
def four(slurm_here: None) -> Iterator[SlurmCluster]:
    """Nodes n1 to n4."""
    with SlurmCluster(Shape(nodes=4)) as cluster:
        yield cluster


@pytest.fixture(autouse=True)
def mended(four: SlurmCluster) -> Iterator[None]:
    """Leave idle nodes and an empty queue, also after a failed test."""
    yield
    four.run("scancel", "--user=root")
    for name in four.shape.node_names:
        four.mend_node(name)


def before_step_1(runs: Path) -> None:
    wait_until(lambda: any(runs.glob("*/attempts/0/nodes/0.json")), "the runner of the first node")


def between_saves(runs: Path) -> None:
    wait_for_step(runs, 14)


def in_a_save(runs: Path) -> None:
    # Saves are every ten steps, and are written while the next steps run.
    wait_until(lambda: any(runs.glob("*/shared/checkpoints/*")), "the files of a save")


def after_the_last_step(runs: Path) -> None:
    wait_for_step(runs, STEPS[-1])


@pytest.mark.parametrize("script", [SCRIPT, SPARE_SCRIPT], ids=["no-spare", "spare"])
@pytest.mark.parametrize("moment", [before_step_1, between_saves, in_a_save, after_the_last_step])
def test_a_lost_batch_host_changes_no_result_and_leaves_no_job(
    four: SlurmCluster, moment: Callable[[Path], None], script: Path, local: Run, tmp_path: Path
) -> None:
    job = submit(four, script, tmp_path)
    moment(tmp_path / "runs")
    four.kill_node("n1")
    # Slurm's own reaction, SlurmdTimeout later (test_lost_nodes.py waits for that).
    four.set_node("n1", "down", "power")
    assert four.wait(job, ENDED, LIMIT_S)["JobState"] == "COMPLETED", printed(tmp_path)
    run = only_run(tmp_path / "runs")
    assert run.hashes() == local.hashes()
    assert sorted(set(run.steps())) == STEPS
    last = max(run.directory.glob("attempts/*"), key=lambda path: int(path.name))
    assert run.verdict(int(last.name))["verdict"] == "completed"
    wait_until(lambda: not companions(run.directory, "headway.runner"), "the end of every process")
