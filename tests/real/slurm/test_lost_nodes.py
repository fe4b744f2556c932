"""Tests nodes that are lost, or cannot start anything, under real Slurms: no job is lost, and none is left behind."""

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from headway.cli.main import main
from tests.faults.processes import companions
from tests.faults.runs import LIMIT_S, only_run, wait_until
from tests.support.webhook import Webhook

from . import shell
from .cluster import SlurmCluster
from .configuration import Shape
from .shell import submit
from .versions import CURRENT, mostly

pytestmark = pytest.mark.slow

STORY = Path(__file__).parents[3] / "examples/two-node-slurm/rendered"
SCRIPT = STORY / "small-llama/two-cpu-nodes/slurm/job.sbatch"
SPARE_SCRIPT = STORY / "small-llama-spare/three-cpu-nodes/slurm/job.sbatch"
STEPS = list(range(1, 31))
ENDED = {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT"}
# From the loss of a node to the end of the reactions of Slurm and the deputies: slurm.conf's SlurmdTimeout, a minute, and KillWait.
RELEASED_S = 150.0


@pytest.fixture
def lossy(each_slurm: SlurmCluster) -> Iterator[SlurmCluster]:
    """Nodes n1 to n3, some of which a test may lose."""
    with SlurmCluster(Shape(nodes=3), each_slurm.programs) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def three(slurm_here: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    """Nodes n1 to n3, each of which resolves its own name to loopback, as Debian's installer sets it up."""
    with SlurmCluster(Shape(nodes=3)) as cluster:
        for node in ("n1", "n2", "n3"):
            hosts = tmp_path_factory.mktemp("etc") / "hosts"
            script = f"{{ echo 127.0.1.1 {node}; grep -v ' {node}$' /etc/hosts; }} >{hosts} && mount --bind {hosts} /etc/hosts"
            cluster.nsenter(node, ["sh", "-c", script])
        yield cluster


def changed(script: Path, old: str, new: str) -> Path:
    """The script with this replacement in its text."""
    assert old in script.read_text()
    script.write_text(script.read_text().replace(old, new))
    return script


def impatient(script: Path) -> Path:
    """The script with a shorter wait for a missing node: ten minutes are long for a test."""
    patience = '"join": {"factor": 1.0, "floor_s": %s'
    return changed(script, patience % "600.0", patience % "5.0")


def rendered(folder: Path, more: str = "", options: str = "") -> Path:
    """The script of the story's job with more fields, on its cluster with more options of Slurm."""
    job, cluster = ((STORY.parent / name).read_text() for name in ("job.yaml", "cpu-cluster.yaml"))
    (folder / "job.yaml").write_text(job.replace("[two-cpu-nodes, two-h100-nodes]", "two-cpu-nodes") + more)
    changed = cluster.replace("    partition: main\n", f"    partition: main\n{options}")
    (folder / "cluster.yaml").write_text(changed.replace("path: runs", f"path: {folder}/runs"))
    assert main(["render", str(folder / "job.yaml"), "-o", str(folder / "rendered")]) == 0
    return folder / "rendered/small-llama/two-cpu-nodes/slurm/job.sbatch"


def printed(folder: Path) -> str:
    """The output of the job and of the nodes that acted for its script."""
    return "".join(path.read_text() for path in (*folder.glob("*.out"), *folder.glob("runs/*/attempts/*/deputy-*.log")))


@mostly(CURRENT)
def test_a_job_that_loses_its_batch_host_completes_on_the_spare_and_ends(lossy: SlurmCluster, tmp_path: Path) -> None:
    job = submit(lossy, shell.rendered(tmp_path, shell.RANK, "resilience: {spares: 1}\n"), tmp_path)
    shell.wait_for_ranks(tmp_path, "started")
    lossy.kill_node("n1")
    shell.wait_for_ranks(tmp_path, "started", 4)
    shell.continues(tmp_path)
    lossy.wait(job, {"PENDING"}, RELEASED_S)
    run = only_run(tmp_path / "runs")
    assert sorted(node["host"] for node in run.journal("start")[-1]["nodes"]) == ["n2", "n3"]
    assert [line for line in shell.ranks(tmp_path) if "ended" in line] == ["0 ended", "1 ended"]
    assert not companions(run.directory, "headway.runner")
    # Dependent jobs get the run's own end, in an attempt that trains nothing.
    lossy.mend_node("n1")
    assert lossy.wait(job, ENDED, LIMIT_S)["JobState"] == "COMPLETED", printed(tmp_path)
    assert lossy.job(job)["Restarts"] == "1"
    assert [path.name for path in run.directory.glob("attempts/*")] == ["0"]


def without_python(slurm: SlurmCluster, node: str) -> None:
    """The node's Python is broken, as by a missing mount or a damaged installation."""
    slurm.nsenter(node, ["mount", "--bind", "/bin/false", str(Path(sys.executable).resolve())])


def with_python(slurm: SlurmCluster, node: str) -> None:
    slurm.nsenter(node, ["umount", str(Path(sys.executable).resolve())])


@pytest.mark.parametrize("broken", [pytest.param("n1", marks=pytest.mark.variant), "n2"])
def test_a_node_that_cannot_start_its_task_is_excluded_by_name(three: SlurmCluster, broken: str, tmp_path: Path) -> None:
    script = impatient(shell.rendered(tmp_path, shell.RANK))
    shell.continues(tmp_path)
    without_python(three, broken)
    try:
        job = submit(three, script, tmp_path)
        state = three.wait(job, ENDED, LIMIT_S)["JobState"]
    finally:
        with_python(three, broken)
    assert state == "COMPLETED", printed(tmp_path)
    assert three.job(job)["ExcNodeList"] == broken
    assert three.job(job)["Restarts"] == "1"
    run = only_run(tmp_path / "runs")
    assert [{node["host"] for node in start["nodes"]} for start in run.journal("start")] == [{"n1", "n2", "n3"} - {broken}]
    assert [line for line in shell.ranks(tmp_path) if "ended" in line] == ["0 ended", "1 ended"]


@pytest.fixture
def webhook() -> Iterator[Webhook]:
    hook = Webhook()
    yield hook
    hook.close()


NOTIFY = "resilience: {notify: {webhook_env: RUN_WEBHOOK}}\n"


def test_a_job_that_no_node_can_start_is_held_after_three_attempts(three: SlurmCluster, webhook: Webhook, tmp_path: Path) -> None:
    script = rendered(tmp_path, f"{NOTIFY}scheduler: {{slurm: {{srun: [--unknown-to-srun=1]}}}}\n")
    job = submit(three, script, tmp_path, RUN_WEBHOOK=webhook.address)
    three.wait_held(job, LIMIT_S)
    (notice,) = webhook.received
    assert (notice["kind"], notice["attempt"], notice["done"]) == ("stop", 2, "the job is held")
    (attempt,) = tmp_path.glob("runs/*/attempts/2")
    assert three.job(job)["Restarts"] == "3"
    assert json.loads((attempt / "verdict.json").read_text())["verdict"] == "stop"
    assert "3 attempts in a row ended before the runner of any node had started" in printed(tmp_path)
    three.run("scancel", str(job))


def test_a_job_with_an_unwritable_runs_folder_is_held_after_three_attempts(
    three: SlurmCluster, webhook: Webhook, tmp_path: Path
) -> None:
    script = rendered(tmp_path, NOTIFY)
    (tmp_path / "file").touch()
    job = submit(three, script, tmp_path, runs="file/runs", RUN_WEBHOOK=webhook.address)
    three.wait_held(job, LIMIT_S)
    (notice,) = webhook.received
    cause = "3 attempts in a row could not be opened, on n1,n2 and n1, the last with exit code 1"
    assert (notice["attempt"], notice["cause"], notice["to_do"]) == (2, cause, f"fix the cause, then: scontrol release {job}")
    text = printed(tmp_path)
    assert re.findall(r"attempt (\d) could not be opened on (n\d): exit code 1", text) == [("0", "n1"), ("1", "n2"), ("2", "n1")]
    assert f"to try again: scontrol release {job}" in text
    three.run("scancel", str(job))


def test_a_suspended_run_is_resumed_only_after_it_is_cancelled(three: SlurmCluster, tmp_path: Path) -> None:
    # A suspended job keeps its memory.
    script = changed(shell.rendered(tmp_path, shell.RANK), "#SBATCH --mem=0\n", "#SBATCH --mem=1M\n")
    first = submit(three, script, tmp_path)
    shell.wait_for_ranks(tmp_path, "started")
    run = only_run(tmp_path / "runs")
    three.run("scontrol", "suspend", str(first))
    early = submit(three, script, tmp_path, HEADWAY_RUN=run.directory.name)
    assert three.wait(early, ENDED, LIMIT_S)["JobState"] == "FAILED"
    assert f"its job {first} is SUSPENDED; wait for its end, or cancel it: scancel {first}" in printed(tmp_path)
    three.run("scancel", str(first))
    three.wait(first, ENDED, LIMIT_S)
    wait_until(lambda: not three.run("squeue", "--noheader", f"--jobs={first}", check=False).stdout.strip(), "its end")
    assert len([line for line in shell.ranks(tmp_path) if "started" in line]) == 2
    shell.continues(tmp_path)
    again = submit(three, script, tmp_path, HEADWAY_RUN=run.directory.name)
    assert three.wait(again, ENDED, LIMIT_S)["JobState"] == "COMPLETED", printed(tmp_path)
    assert only_run(tmp_path / "runs").verdict(len([*run.directory.glob("attempts/*")]) - 1)["verdict"] == "completed"
    assert [line for line in shell.ranks(tmp_path) if "ended" in line] == ["0 ended", "1 ended"]
