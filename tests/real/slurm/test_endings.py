"""How attempts end under a real Slurm: frozen and rebooted nodes, drains, prologs, preemption, time limits, memory, exceptions."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from headway.cli.main import main
from tests.faults.processes import companions, processes_of
from tests.faults.runs import LIMIT_S, Run, only_run, wait_for_step, wait_until

from .cluster import SlurmCluster
from .configuration import Shape

pytestmark = pytest.mark.slow

SCRIPT = Path(__file__).parents[3] / "examples/two-node-slurm/rendered/small-llama/two-cpu-nodes/slurm/job.sbatch"
ENDED = {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "OUT_OF_MEMORY"}
# slurm.conf's SlurmdTimeout and ping, twice.
NOTICED_S = 90.0
MEMORY = Path("/sys/fs/cgroup/memory")

CLUSTER = """\
apiVersion: headway/v1alpha1
kind: Cluster
name: lab
scheduler: {kind: slurm, options: {partition: main}}
node_groups: [{name: cpu, count: 3, cpus: 2}]
storage: [{name: runs, kind: posix, path: runs, shared: true}]
"""
JOB = """\
apiVersion: headway/v1alpha1
kind: TrainingJob
name: ends
cluster: lab
nodes: 2
trainer: {kind: script, options: {python: false, argv: [sh, SCRIPT, "{run_directory}"]}}
"""
# A rank without torch, in shell: it saves when it is asked to end, and ends when the test lets it.
RANK = """\
echo "$RANK started, attempt $SLURM_RESTART_COUNT" >>"$1/ranks"
trap 'echo "$RANK saved" >>"$1/ranks"; exit 0' TERM
until [ -e "$0.go" ]; do sleep 0.1; done
echo "$RANK ended" >>"$1/ranks"
"""
RAISES = f'exec {sys.executable} -c "raise ValueError(41 + 1)"\n'
# It fills its control group, and the kernel kills it.
FILLS = f"""\
echo $$ >{MEMORY}/GROUP/cgroup.procs
exec {sys.executable} -c "b = [bytes(1 << 20) + b'x' for _ in range(10_000)]"
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the prolog looks for `NODE.broken`."""
    return tmp_path_factory.mktemp("prolog")


@pytest.fixture(scope="module")
def cluster(slurm_here: None, folder: Path) -> Iterator[SlurmCluster]:
    """Nodes n1 to n3 that return to service after a reboot, with partitions whose jobs those of `main` preempt."""
    prolog = folder / "prolog"
    prolog.write_text(f'#!/bin/sh\n[ ! -e "{folder}/$SLURMD_NODENAME.broken" ]\n')
    prolog.chmod(0o755)
    low = "PriorityTier=0 PreemptMode=REQUEUE GraceTime={}"
    settings = {
        "ReturnToService": "2",
        "Prolog": str(prolog),
        "PreemptType": "preempt/partition_prio",
        "PreemptMode": "REQUEUE",
    }
    partitions = {"grace-0": low.format(0), "grace-10": low.format(10)}
    with SlurmCluster(Shape(nodes=3, settings=settings, partitions=partitions)) as cluster:
        yield cluster
        # What a failed test has left.


@pytest.fixture(autouse=True)
def mended(cluster: SlurmCluster, folder: Path) -> Iterator[None]:
    yield
    for path in folder.glob("*.broken"):
        path.unlink()
    for name in cluster.shape.node_names:
        if cluster.machines[name].is_on:
            cluster.thaw_node(name)
    cluster.run("scancel", "--user=root")
    for name in cluster.shape.node_names:
        cluster.mend_node(name)


def submit(cluster: SlurmCluster, script: Path, folder: Path, *options: str) -> int:
    environment = {
        "PATH": f"{Path(sys.executable).parent}:{cluster.env['PATH']}",
        "HEADWAY_RUNS": str(folder / "runs"),
    }
    return cluster.submit(script, *options, env=environment, cwd=folder)


def submit_ranks(cluster: SlurmCluster, folder: Path, rank: str, *options: str, more: str = "") -> int:
    """Submits a job whose ranks run the shell script `rank`."""
    (folder / "rank.sh").write_text(rank)
    (folder / "lab.yaml").write_text(CLUSTER)
    (folder / "ends.yaml").write_text(JOB.replace("SCRIPT", str(folder / "rank.sh")) + more)
    assert main(["render", str(folder / "ends.yaml"), "-o", str(folder / "rendered")]) == 0
    return submit(cluster, folder / "rendered/ends/lab/slurm/job.sbatch", folder, *options)


def ranks(folder: Path) -> list[str]:
    """What the ranks of the run have written, sorted."""
    return sorted(line for path in folder.glob("runs/*/ranks") for line in path.read_text().splitlines())


def wait_for_ranks(folder: Path, line: str, count: int = 2) -> None:
    wait_until(lambda: sum(line in each for each in ranks(folder)) >= count, f"`{line}` of {count} ranks")


def completed(cluster: SlurmCluster, job: int, folder: Path) -> dict[str, str]:
    found = cluster.wait(job, ENDED, LIMIT_S)
    assert found["JobState"] == "COMPLETED", printed(folder)
    return found


def printed(folder: Path) -> str:
    return "".join(path.read_text() for path in folder.glob("*.out"))


@pytest.mark.parametrize("frozen", ["n1", pytest.param("n2", marks=pytest.mark.variant)])
def test_a_frozen_node_that_continues_later_neither_writes_nor_stops_the_next_attempt(
    cluster: SlurmCluster, frozen: str, local: Run, tmp_path: Path
) -> None:
    job = submit(cluster, SCRIPT, tmp_path)
    run = wait_for_step(tmp_path / "runs", 4)
    cluster.freeze_node(frozen)
    cluster.wait(job, {"PENDING"}, NOTICED_S)
    wait_until(lambda: len(run.journal("start")) == 2, "the next attempt")
    before = len(run.steps())
    cluster.thaw_node(frozen)
    wait_until(lambda: len(run.steps()) > before, "a step of the next attempt")
    assert completed(cluster, job, tmp_path)["Restarts"] == "1", printed(tmp_path)
    assert run.hashes() == local.hashes()
    first, second = run.journal("start")
    assert [node["host"] for node in first["nodes"]] == ["n1", "n2"]
    assert frozen not in [node["host"] for node in second["nodes"]]
    # Every commit after the claim of the second generation is its own.
    generations = [line["generation"] for line in run.journal("claim", "committed")]
    assert generations == sorted(generations)
    wait_until(lambda: not processes_of(run.directory), "the end of the frozen ranks")
