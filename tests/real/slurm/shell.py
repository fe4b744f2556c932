"""Provides jobs whose ranks are a shell script: the outcome of a job does not depend on its ranks' computation."""

import sys
from pathlib import Path

from headway.cli.main import main
from tests.faults.runs import wait_until

from .cluster import SlurmCluster

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
"""
SHELL = 'trainer: {kind: script, options: {python: false, argv: [sh, SCRIPT, "{run_directory}"]}}'

# A rank without torch, in shell: it saves when asked to stop, and ends when the test releases it.
RANK = """\
echo "$RANK started, attempt $SLURM_RESTART_COUNT" >>"$1/ranks"
trap 'echo "$RANK saved" >>"$1/ranks"; exit 0' TERM
until [ -e "$0.go" ]; do sleep 0.1; done
echo "$RANK ended" >>"$1/ranks"
"""


def rendered(folder: Path, rank: str, more: str = "", trainer: str = SHELL) -> Path:
    """The script of a job whose ranks run the shell script `rank`, or with another trainer; `more`: further fields of the job."""
    (folder / "rank.sh").write_text(rank)
    (folder / "lab.yaml").write_text(CLUSTER)
    (folder / "ends.yaml").write_text(JOB + trainer.replace("SCRIPT", str(folder / "rank.sh")) + "\n" + more)
    assert main(["render", str(folder / "ends.yaml"), "-o", str(folder / "rendered")]) == 0
    return folder / "rendered/ends/lab/slurm/job.sbatch"


def submit(cluster: SlurmCluster, script: Path, folder: Path, *options: str, runs: str = "runs", **variables: str) -> int:
    """Submit a script with its runs below the folder."""
    path = f"{Path(sys.executable).parent}:{cluster.env['PATH']}"
    environment = {"PATH": path, "HEADWAY_RUNS": str(folder / runs), **variables}
    return cluster.submit(script, *options, env=environment, cwd=folder)


def ranks(folder: Path) -> list[str]:
    """The lines that the ranks of the run have written, sorted."""
    return sorted(line for path in folder.glob("runs/*/ranks") for line in path.read_text().splitlines())


def wait_for_ranks(folder: Path, line: str, count: int = 2) -> None:
    wait_until(lambda: sum(line in each for each in ranks(folder)) >= count, f"`{line}` of {count} ranks")


def continues(folder: Path) -> None:
    """Release the ranks, so that they end."""
    (folder / "rank.sh.go").touch()
