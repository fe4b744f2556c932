"""Tests how attempts end under a real Slurm: frozen and rebooted nodes, drains, prologs, preemption, time limits, memory, exceptions."""

import os
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.faults.processes import processes_of
from tests.faults.runs import LIMIT_S, Run, only_run, wait_for_step, wait_until
from tests.support.webhook import Webhook

from .cluster import SlurmCluster
from .configuration import Shape
from .shell import RANK, SHELL, continues, ranks, rendered, submit, wait_for_ranks

pytestmark = pytest.mark.slow

SCRIPT = Path(__file__).parents[3] / "examples/two-node-slurm/rendered/small-llama/two-cpu-nodes/slurm/job.sbatch"
ENDED = {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "OUT_OF_MEMORY"}
# slurm.conf's SlurmdTimeout and ping, twice.
NOTICED_S = 90.0
MEMORY = Path("/sys/fs/cgroup/memory")
MEMORY_BYTES = 1 << 30

RAISES = "raise ValueError(41 + 1)\n"
# Ends the supervisor of its node, which ends every process of the runner there.
FELLS = """\
echo "$RANK started, attempt $SLURM_RESTART_COUNT" >>"$1/ranks"
kill -9 "$PPID"
"""
# Rank 1 fills the memory that its step may use, and the kernel kills it.
FILLS = f"""\
[ "$RANK" = 0 ] || exec {sys.executable} -c "b = [bytes([1]) * (1 << 20) for _ in range(10_000)]"
{RANK}"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which the prolog looks for `NODE.broken`."""
    return tmp_path_factory.mktemp("prolog")


@pytest.fixture(scope="module")
def cluster(slurm_here: None, folder: Path) -> Iterator[SlurmCluster]:
    """Nodes n1 to n3 that return to service after a reboot, with partitions whose jobs are preferred over those of `main`."""
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


@pytest.fixture(autouse=True)
def mended(cluster: SlurmCluster, folder: Path) -> Iterator[None]:
    """Leave idle nodes and an empty queue, also after a failed test."""
    yield
    for path in folder.glob("*.broken"):
        path.unlink()
    for name in cluster.shape.node_names:
        if cluster.machines[name].is_on:
            cluster.thaw_node(name)
    cluster.run("scancel", "--user=root")
    for name in cluster.shape.node_names:
        cluster.mend_node(name)


@pytest.fixture
def memory(cluster: SlurmCluster) -> Iterator[Path]:
    """A control group with MEMORY_BYTES, as task/cgroup creates for each step."""
    group, limit = (MEMORY, "memory.limit_in_bytes") if MEMORY.is_dir() else (MEMORY.parent, "memory.max")
    group /= f"headway-endings-{os.getpid()}"
    group.mkdir()
    (group / limit).write_text(str(MEMORY_BYTES))
    yield group
    cluster.run("scancel", "--user=root")
    wait_until(lambda: not (group / "cgroup.procs").read_text(), "the end of the step")
    group.rmdir()


def submit_ranks(cluster: SlurmCluster, folder: Path, rank: str, *options: str, more: str = "", trainer: str = SHELL) -> int:
    """Submit a job whose ranks run the shell script `rank`, or with another trainer."""
    return submit(cluster, rendered(folder, rank, more, trainer), folder, *options)


def completed(cluster: SlurmCluster, job: int, folder: Path) -> dict[str, str]:
    found = cluster.wait(job, ENDED, LIMIT_S)
    assert found["JobState"] == "COMPLETED", printed(folder)
    return found


def printed(folder: Path) -> str:
    return "".join(path.read_text() for path in folder.glob("*.out"))


def has_script(cluster: SlurmCluster, node: str) -> bool:
    """Return whether a job's batch script runs on the node."""
    return cluster.nsenter(node, ["sh", "-c", "grep -l 'slurm_scrip[t]' /proc/[0-9]*/cmdline"], check=False).returncode == 0


def hosts_of(run: Run) -> list[list[str]]:
    """The hosts of each attempt that was opened."""
    return [path.read_text().split() for path in sorted(run.directory.glob("attempts/*/hosts"))]


def test_a_frozen_batch_script_does_not_requeue_the_next_attempt(cluster: SlurmCluster, tmp_path: Path) -> None:
    job = submit_ranks(cluster, tmp_path, RANK)
    wait_for_ranks(tmp_path, "started")
    cluster.freeze_node("n1")
    cluster.wait(job, {"PENDING"}, NOTICED_S)
    wait_for_ranks(tmp_path, "started", 4)
    assert has_script(cluster, "n1")
    cluster.thaw_node("n1")
    wait_until(lambda: not has_script(cluster, "n1"), "the end of the frozen script")
    continues(tmp_path)
    assert completed(cluster, job, tmp_path)["Restarts"] == "1", printed(tmp_path)
    run = only_run(tmp_path / "runs")
    assert hosts_of(run) == [["n1", "n2"], ["n2", "n3"]]
    assert run.verdict(1)["verdict"] == "completed"
    wait_until(lambda: not processes_of(run.directory), "the end of the frozen ranks")


@pytest.mark.parametrize("partition", ["grace-0", pytest.param("grace-10", marks=pytest.mark.variant)])
def test_a_preempted_job_saves_and_resumes_after_the_other_job(cluster: SlurmCluster, partition: str, tmp_path: Path) -> None:
    job = submit_ranks(cluster, tmp_path, RANK, f"--partition={partition}")
    wait_for_ranks(tmp_path, "started")
    (tmp_path / "high.sbatch").write_text("#!/bin/sh\n")
    high = cluster.submit(tmp_path / "high.sbatch", "--nodes=3", "--exclusive", "--output=/dev/null")
    completed(cluster, high, tmp_path)
    continues(tmp_path)
    assert completed(cluster, job, tmp_path)["Restarts"] == "1", printed(tmp_path)
    run = only_run(tmp_path / "runs")
    assert [run.verdict(attempt)["verdict"] for attempt in (0, 1)] == ["preempted", "completed"]
    assert [line for line in ranks(tmp_path) if "saved" in line] == ["0 saved", "1 saved"]


@pytest.mark.variant
def test_a_time_limit_triggers_a_save_and_the_next_attempt_resumes(cluster: SlurmCluster, tmp_path: Path) -> None:
    job = submit_ranks(cluster, tmp_path, RANK, "--time=1", more="resilience: {grace: 1s}\n")
    wait_for_ranks(tmp_path, "started", 4)
    continues(tmp_path)
    assert completed(cluster, job, tmp_path)["Restarts"] == "1", printed(tmp_path)
    run = only_run(tmp_path / "runs")
    assert [run.verdict(attempt)["verdict"] for attempt in (0, 1)] == ["preempted", "completed"]
    assert [line for line in ranks(tmp_path) if "saved" in line] == ["0 saved", "1 saved"]


@pytest.mark.variant
def test_a_repeated_exception_fails_the_job_once(cluster: SlurmCluster, tmp_path: Path) -> None:
    (tmp_path / "raises.py").write_text(RAISES)
    job = submit_ranks(cluster, tmp_path, "", trainer=f"run: [{tmp_path}/raises.py]")
    ended = cluster.wait(job, ENDED, LIMIT_S)
    assert (ended["JobState"], ended["ExitCode"], ended["Restarts"]) == ("FAILED", "83:0", "0")
    run = only_run(tmp_path / "runs")
    assert [each["cause_kind"] for each in run.journal("failure")] == ["user error"] * 2
    assert run.verdict()["exit_code"] == 83
    assert "ValueError: 42" in run.verdict()["cause"]


@pytest.mark.variant
def test_a_run_whose_runner_dies_at_each_start_is_held_after_five_attempts(cluster: SlurmCluster, tmp_path: Path) -> None:
    with closing(Webhook()) as webhook:
        notify = "resilience: {notify: {webhook_env: RUN_WEBHOOK}}\n"
        job = submit_ranks(cluster, tmp_path, FELLS, f"--export=ALL,RUN_WEBHOOK={webhook.address}", more=notify)
        cluster.wait_held(job, LIMIT_S)
    assert cluster.job(job)["Restarts"] == "5"
    (notice,) = webhook.received
    assert (notice["kind"], notice["attempt"], notice["done"]) == ("stop", 4, "the job is held")
    run = only_run(tmp_path / "runs")
    assert len(hosts_of(run)) == 5
    assert run.verdict(4)["cause"].startswith("5 attempts in a row started and ended without progress")
    # A release retries in the same run.
    (tmp_path / "rank.sh").write_text(RANK)
    continues(tmp_path)
    cluster.run("scontrol", "release", str(job))
    completed(cluster, job, tmp_path)
    assert run.verdict(5)["verdict"] == "completed"


@pytest.mark.variant
def test_running_out_of_memory_twice_fails_the_job_once(cluster: SlurmCluster, memory: Path, tmp_path: Path) -> None:
    job = submit_ranks(cluster, tmp_path, FILLS, more=f"setup: ['echo $$ >{memory}/cgroup.procs']\n")
    ended = cluster.wait(job, ENDED, LIMIT_S)
    assert (ended["JobState"], ended["ExitCode"], ended["Restarts"]) == ("FAILED", "83:0", "0"), printed(tmp_path)
    run = only_run(tmp_path / "runs")
    failures = run.journal("failure")
    assert [(each["cause_kind"], each["rank"], each["host"]) for each in failures] == [("out of memory", 1, "n2")] * 2
    assert run.verdict()["exit_code"] == 83


@pytest.mark.variant
def test_a_drained_node_finishes_its_attempt_and_is_not_used_by_later_ones(cluster: SlurmCluster, tmp_path: Path) -> None:
    job = submit_ranks(cluster, tmp_path, RANK)
    wait_for_ranks(tmp_path, "started")
    cluster.set_node("n2", "drain", "test")
    assert cluster.node_state("n2") == "draining"
    assert cluster.job(job)["JobState"] == "RUNNING"
    cluster.run("scontrol", "requeue", str(job))
    wait_for_ranks(tmp_path, "started", 4)
    assert cluster.wait_node("n2", {"drained"}, NOTICED_S)
    continues(tmp_path)
    assert completed(cluster, job, tmp_path)["Restarts"] == "1", printed(tmp_path)
    run = only_run(tmp_path / "runs")
    assert hosts_of(run) == [["n1", "n2"], ["n1", "n3"]]
    assert [run.verdict(attempt)["verdict"] for attempt in (0, 1)] == ["preempted", "completed"]


@pytest.mark.variant
@pytest.mark.parametrize("broken", ["n1", "n2"])
def test_a_failing_prolog_holds_the_job_and_a_release_runs_it_elsewhere(
    cluster: SlurmCluster, folder: Path, broken: str, tmp_path: Path
) -> None:
    (folder / f"{broken}.broken").touch()
    continues(tmp_path)
    job = submit_ranks(cluster, tmp_path, RANK)
    cluster.wait_held(job, LIMIT_S)
    assert cluster.wait_node(broken, {"drained"}, NOTICED_S)
    assert ranks(tmp_path) == []
    cluster.run("scontrol", "release", str(job))
    completed(cluster, job, tmp_path)
    run = only_run(tmp_path / "runs")
    assert broken not in hosts_of(run)[-1]
    assert [line for line in ranks(tmp_path) if "ended" in line] == ["0 ended", "1 ended"]


@pytest.mark.variant
@pytest.mark.parametrize("rebooted", ["n1", "n2"])
def test_a_node_that_reboots_before_slurm_notices_costs_one_attempt(slurm_here: None, rebooted: str, tmp_path: Path) -> None:
    # A separate cluster: Slurm 22.05 counts CPUs of the lost attempt as allocated on the first node from then on.
    with SlurmCluster(Shape(nodes=3, settings={"ReturnToService": "2"})) as fresh:
        reboot_a_node(fresh, rebooted, tmp_path)


def reboot_a_node(cluster: SlurmCluster, rebooted: str, tmp_path: Path) -> None:
    job = submit_ranks(cluster, tmp_path, RANK)
    wait_for_ranks(tmp_path, "started")
    cluster.kill_node(rebooted)
    cluster.boot_node(rebooted)
    wait_for_ranks(tmp_path, "started", 4)
    continues(tmp_path)
    assert completed(cluster, job, tmp_path)["Restarts"] == "1", printed(tmp_path)
    run = only_run(tmp_path / "runs")
    assert [run.verdict(attempt)["exit_code"] for attempt in (0, 1)] == [81, 0]
    assert not processes_of(run.directory)


@pytest.mark.variant
@pytest.mark.parametrize("frozen", ["n1", "n2"])
def test_a_frozen_node_that_thaws_later_does_not_disturb_the_next_attempt(
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
    # Every commit after the second generation's claim is its own.
    generations = [line["generation"] for line in run.journal("claim", "committed")]
    assert generations == sorted(generations)
    wait_until(lambda: not processes_of(run.directory), "the end of the frozen ranks")
