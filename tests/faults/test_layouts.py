"""Tests that a run under each axis of the layout loses a worker and then a node, and ends with the same bits as an uninterrupted one."""

from pathlib import Path

import pytest

from .processes import supervisor
from .runs import JOB, LIMIT_S, going, headway, only_run, wait_for_step

# It takes minutes, and tests/runner/train/test_parallel.py restarts under each layout: `make soak`.
pytestmark = [pytest.mark.slow, pytest.mark.variant]

STEPS = 24
CASES = (
    "pp: 2",
    "tp: 2",
    "cp: 2",
    "dp_replicate: 2",
    "dp_shard: 2, sharding: none",
    "pp: 2, schedule: ZBVZeroBubble, virtual_stages: 2",
)


def job_of(folder: Path, layout: str) -> Path:
    """The faults' job over two nodes of three, one rank each."""
    folder.mkdir()
    text = (
        JOB.read_text().replace("nodes: 1\n", "nodes: 2\n").replace("steps: 60", f"steps: {STEPS}").replace("10 steps", "4 steps")
    )
    text = text.replace("layers: 1", "layers: 2").replace("micro: 4", "micro: 2")
    # Sequences that are split over `cp` take no dropout; with it, the other layouts draw other numbers.
    text = text.replace("dropout: 0.1", f"dropout: {0.0 if 'cp' in layout else 0.1}")
    (folder / "job.yaml").write_text(f"{text}layout: {{{layout}}}\nresilience: {{spares: 1, timeouts: {{agent: 5s}}}}\n")
    cluster = (JOB.parent / "cluster.yaml").read_text()
    cluster = cluster.replace("count: 1", "count: 3").replace("cpus: 2", "cpus: 1").replace("procs: 2", "procs: 1")
    (folder / "cluster.yaml").write_text(cluster)
    return folder / "job.yaml"


@pytest.mark.parametrize("layout", CASES)
def test_a_lost_worker_or_node_changes_no_bit(layout: str, tmp_path: Path) -> None:
    straight = headway("run", job_of(tmp_path / "straight", layout), runs=tmp_path / "straight/runs")
    assert straight.returncode == 0, straight.stdout + straight.stderr
    runs = tmp_path / "faulty/runs"
    with going("run", job_of(tmp_path / "faulty", layout), "--kill", "1@6", runs=runs) as launcher:
        run = wait_for_step(runs, 12)
        supervisor(run.directory, 1).kill()
        assert launcher.wait(LIMIT_S) == 0
    assert next(failure["cause"] for failure in run.journal("failure")) == "killed by SIGKILL"
    assert [line["node"] for line in run.journal("lost")] == [1]
    assert [(line["slot"], line["from"], line["to"]) for line in run.journal("rebound")] == [(1, 1, 2)]
    assert run.hashes() == only_run(tmp_path / "straight/runs").hashes()
