"""Tests attempts that cannot start on one node, under a real Slurm: the next attempt excludes it, and the run completes."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.runs import LIMIT_S, Run, only_run

from .cluster import SlurmCluster
from .configuration import Shape
from .shell import submit
from .test_lost_nodes import ENDED, printed, rendered

pytestmark = [pytest.mark.slow, pytest.mark.variant]

JOIN = "resilience: {timeouts: {join: 15s}}\n"
IMAGE = f'code: {{image: "registry.example.com/train@sha256:{"0123456789abcdef" * 4}"}}\n'
# In place of pyxis, which needs a plugin of each Slurm: the same options, and the container of one node does not start.
SRUN = """\
#!/bin/sh
options='' image=''
while :; do
  case $1 in
    --container-image=*) image=$1 ;;
    --container-* | --no-container-*) ;;
    --*) options="$options $1" ;;
    *) break ;;
  esac
  shift
done
if [ -z "$image" ]; then exec REAL/srun $options "$@"; fi
start='[ "$SLURMD_NODENAME" != n2 ] || { echo "container start failed" >&2; exit 1; }; exec "$@"'
exec REAL/srun $options sh -c "$start" sh "$@"
"""


@pytest.fixture(scope="module")
def three(slurm_here: None) -> Iterator[SlurmCluster]:
    """Nodes n1 to n3."""
    with SlurmCluster(Shape(nodes=3)) as cluster:
        yield cluster


def completes_without(cluster: SlurmCluster, broken: str, script: Path, local: Run, folder: Path, **variables: str) -> None:
    """Assert that the second attempt of the job is on the other nodes, and ends as a local run does."""
    job = submit(cluster, script, folder, **variables)
    state = cluster.wait(job, ENDED, LIMIT_S)["JobState"]
    assert state == "COMPLETED", printed(folder)
    found = cluster.job(job)
    assert (found["ExcNodeList"], found["Restarts"]) == (broken, "1"), printed(folder)
    run = only_run(folder / "runs")
    assert [{node["host"] for node in start["nodes"]} for start in run.journal("start")] == [{"n1", "n2", "n3"} - {broken}]
    assert run.hashes() == local.hashes()


def test_a_cluster_setup_that_fails_on_the_first_node(three: SlurmCluster, local: Run, tmp_path: Path) -> None:
    script = rendered(tmp_path, options="    setup: ['[ \"$SLURMD_NODENAME\" != n1 ]']\n")
    completes_without(three, "n1", script, local, tmp_path)


@pytest.mark.parametrize("broken", ["n1", "n2"])
def test_a_job_setup_that_fails_on_one_node(three: SlurmCluster, broken: str, local: Run, tmp_path: Path) -> None:
    script = rendered(tmp_path, f"{JOIN}setup: ['[ \"$SLURMD_NODENAME\" != {broken} ]']\n")
    completes_without(three, broken, script, local, tmp_path)


def test_a_container_that_does_not_start_on_one_node(three: SlurmCluster, local: Run, tmp_path: Path) -> None:
    script = rendered(tmp_path, f"{JOIN}{IMAGE}", "    containers: pyxis\n")
    (tmp_path / "programs").mkdir()
    srun = tmp_path / "programs/srun"
    srun.write_text(SRUN.replace("REAL", str(three.programs.clients)))
    srun.chmod(0o755)
    path = submit_path(three, tmp_path / "programs")
    completes_without(three, "n2", script, local, tmp_path, PATH=path)
    assert "container start failed" in printed(tmp_path)


def submit_path(cluster: SlurmCluster, programs: Path) -> str:
    """PATH with the stand-in, the tests' Python and the cluster's commands."""
    return f"{programs}:{Path(sys.executable).parent}:{cluster.env['PATH']}"
