"""Tests a script as trainer under a real Slurm: found from sbatch's working folder on both nodes, and restarted when a rank is killed."""

import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from headway.cli.main import main
from tests.faults.processes import worker
from tests.faults.runs import LIMIT_S, Run, only_run, wait_until

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


# In place of the example's training: the first generation saves and waits, the next one resumes and ends.
WITHOUT_TORCH = """\
import os, pathlib, sys, time
(folder,) = (pathlib.Path(word.partition("=")[2]) for word in sys.argv if word.startswith("--checkpoints="))
folder.mkdir(parents=True, exist_ok=True)
saved = folder / f"step-20-{os.environ['RANK']}"
if saved.exists():
    print("resumed from step-20")
else:
    saved.touch()
    time.sleep(600)
"""


def killed_rank(
    slurm: SlurmCluster, folder: Path, program: str | None, is_saved: Callable[[], bool]
) -> tuple[Run, list[list[str]]]:
    """Kill rank 1 of the example, or of the program in its place, on two nodes once `is_saved`; return the run, and each rank's lines."""
    example = folder / "examples/own-script"
    shutil.copytree(STORY, example, ignore=shutil.ignore_patterns("rendered"))
    (example / "cluster.yaml").write_text(CLUSTER)
    if program is not None:
        (example / "train.py").write_text(program)
    job = example / "job.yaml"
    job.write_text(job.read_text().replace("nodes: 1", "nodes: 2").replace("steps: 60", "steps: 200"))
    assert main(["render", str(job)]) == 0
    script = example / "rendered/own-script/two-ranks-here/slurm/job.sbatch"
    path = f"{Path(sys.executable).parent}:{slurm.env['PATH']}"
    number = slurm.submit(script, env={"PATH": path}, cwd=folder)
    try:
        wait_until(is_saved, "a checkpoint of the script")
        run = only_run(folder / "runs")
        worker(run.directory, rank=1).kill()
        state = slurm.wait(number, ENDED, LIMIT_S)["JobState"]
    finally:
        slurm.run("scancel", str(number), check=False)
    assert state == "COMPLETED", "".join(file.read_text() for file in folder.glob("*.out"))
    (failure,) = run.journal("failure")
    assert (failure["cause"], failure["rank"], failure["host"]) == ("killed by SIGKILL", 1, "n2")
    return run, [(run.directory / f"attempts/0/logs/{rank}/{rank}.log").read_text().splitlines() for rank in (0, 1)]


def test_a_script_on_two_nodes_survives_a_killed_rank(slurm: SlurmCluster, tmp_path: Path) -> None:
    run, logs = killed_rank(slurm, tmp_path, WITHOUT_TORCH, lambda: len([*tmp_path.glob("runs/step-20-*")]) == 2)
    assert [[node["host"] for node in start["nodes"]] for start in run.journal("start")] == [["n1", "n2"]] * 2
    assert logs == [["resumed from step-20"]] * 2


@pytest.mark.variant
def test_the_example_on_two_nodes_survives_a_killed_rank(slurm: SlurmCluster, tmp_path: Path) -> None:
    _, logs = killed_rank(slurm, tmp_path, None, lambda: any(tmp_path.glob("runs/*/own/step-20/.metadata")))
    assert all(any(line.startswith("resumed from step-") for line in lines) for lines in logs)
    assert logs[0][-1].startswith("finished step 200 ")
