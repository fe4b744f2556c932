"""Tests a script as trainer under a real Slurm: found from sbatch's working folder on both nodes, and restarted when a rank is killed."""

import shutil
import sys
from pathlib import Path

import pytest

from headway.cli.main import main
from tests.faults.processes import worker
from tests.faults.runs import LIMIT_S, only_run, wait_until

from .cluster import SlurmCluster

pytestmark = pytest.mark.slow

STORY = Path(__file__).parents[3] / "examples/own-script"
CLUSTER = """\
apiVersion: headway/v1alpha1
kind: Cluster
name: two-ranks-here
scheduler: {kind: slurm, options: {partition: main}}
node_groups: [{name: cpu, count: 2, cpus: 1}]
storage: [{name: runs, kind: posix, path: runs, shared: true}]
"""
ENDED = {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT"}


def test_the_example_on_two_nodes_survives_a_killed_rank(slurm: SlurmCluster, tmp_path: Path) -> None:
    folder = tmp_path / "examples/own-script"
    shutil.copytree(STORY, folder, ignore=shutil.ignore_patterns("rendered"))
    (folder / "cluster.yaml").write_text(CLUSTER)
    job = folder / "job.yaml"
    job.write_text(job.read_text().replace("nodes: 1", "nodes: 2").replace("steps: 60", "steps: 200"))
    assert main(["render", str(job)]) == 0
    script = folder / "rendered/own-script/two-ranks-here/slurm/job.sbatch"
    path = f"{Path(sys.executable).parent}:{slurm.env['PATH']}"
    number = slurm.submit(script, env={"PATH": path}, cwd=tmp_path)
    try:
        wait_until(lambda: any(tmp_path.glob("runs/*/own/step-20/.metadata")), "a checkpoint of the script")
        run = only_run(tmp_path / "runs")
        worker(run.directory, rank=1).kill()
        state = slurm.wait(number, ENDED, LIMIT_S)["JobState"]
    finally:
        slurm.run("scancel", str(number), check=False)
    assert state == "COMPLETED", "".join(file.read_text() for file in tmp_path.glob("*.out"))
    (failure,) = run.journal("failure")
    assert (failure["cause"], failure["rank"], failure["host"]) == ("killed by SIGKILL", 1, "n2")
    first, second = ((run.directory / f"attempts/0/logs/{rank}/{rank}.log").read_text().splitlines() for rank in (0, 1))
    assert any(line.startswith("resumed from step-") for line in first)
    assert any(line.startswith("resumed from step-") for line in second)
    assert first[-1].startswith("finished step 200 ")
