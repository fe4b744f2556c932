"""Tests the cluster that other tests build on: it runs jobs as Slurm does, and is cleaned up."""

import contextlib
import json
import signal
import subprocess
import sys
import time
from collections.abc import Collection, Iterator
from pathlib import Path

import pytest

from . import programs
from .addresses import MAX_NODES, claim_addresses
from .cluster import ClusterError, SlurmCluster
from .configuration import Shape
from .leftovers import leftovers, pid_namespace
from .machine import leashed
from .record import parse_record

REPOSITORY = Path(__file__).parents[3]
START_S = 30.0

# a batch script that appends `node restart-count` to a file, and waits to be disturbed in its first run
WAITS_IN_FIRST_RUN = """#!/bin/bash
echo "$(hostname) ${SLURM_RESTART_COUNT:-first}" >>runs.txt
[ -n "${SLURM_RESTART_COUNT:-}" ] || sleep 600
"""

HOLDS_A_CLUSTER = """
import json, signal
from tests.real.slurm.cluster import SlurmCluster
from tests.real.slurm.configuration import Shape

signal.signal(signal.SIGINT, signal.default_int_handler)
with SlurmCluster(Shape(nodes=1)) as slurm:
    job = int(slurm.run("sbatch", "--parsable", "--output=/dev/null", "--wrap=sleep 600").stdout)
    slurm.wait(job, {"RUNNING"}, 30)
    pids = [machine.pid for machine in slurm.machines.values()]
    print(json.dumps({"root": str(slurm.root), "pids": pids}), flush=True)
    signal.pause()
"""


def write_script(folder: Path, text: str) -> Path:
    path = folder / "job.sbatch"
    path.write_text(text)
    return path


def namespaces_of(slurm: SlurmCluster) -> set[str]:
    return {pid_namespace(machine.pid) for machine in slurm.machines.values()}


def wait_until_gone(root: Path, namespaces: Collection[str]) -> list[str]:
    deadline = time.monotonic() + 20
    while (left := leftovers(root, namespaces)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return left


# --- jobs -------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.fixture
def test_nodes_are_idle_and_a_step_reaches_both(slurm: SlurmCluster) -> None:
    assert {name: slurm.node_state(name) for name in slurm.shape.node_names} == {"n1": "idle", "n2": "idle"}
    assert sorted(slurm.run("srun", "-N2", "hostname").stdout.split()) == ["n1", "n2"]


@pytest.mark.slow
@pytest.mark.fixture
def test_batch_job_gets_its_variables_and_returns_its_exit_code(slurm: SlurmCluster, tmp_path: Path) -> None:
    script = write_script(tmp_path, '#!/bin/bash\necho "$GREETING from $(srun hostname | sort | xargs)"\nexit 7\n')
    job = slurm.wait(slurm.submit(script, "--nodes=2", env={"GREETING": "hello"}, cwd=tmp_path), {"FAILED"}, START_S)
    assert job["ExitCode"] == "7:0"
    assert Path(job["StdOut"]).parent == tmp_path
    assert Path(job["StdOut"]).read_text() == "hello from n1 n2\n"


@pytest.mark.slow
@pytest.mark.fixture
def test_requeued_job_runs_again_with_its_restart_count(slurm: SlurmCluster, tmp_path: Path) -> None:
    job_id = slurm.submit(write_script(tmp_path, WAITS_IN_FIRST_RUN), "--nodelist=n1", cwd=tmp_path)
    slurm.wait(job_id, {"RUNNING"}, START_S)
    wait_for_lines(tmp_path / "runs.txt", 1)
    slurm.run("scontrol", "requeue", str(job_id))
    job = slurm.wait(job_id, {"COMPLETED"}, START_S)
    assert job["Restarts"] == "1"
    assert (tmp_path / "runs.txt").read_text() == "n1 first\nn1 1\n"


@pytest.mark.slow
@pytest.mark.fixture
def test_waiting_ends_when_the_state_can_no_longer_be_reached(slurm: SlurmCluster, tmp_path: Path) -> None:
    job_id = slurm.submit(write_script(tmp_path, "#!/bin/bash\n"), cwd=tmp_path)
    with pytest.raises(ClusterError, match=f"job {job_id} is `COMPLETED`, expected .'FAILED'.") as refused:
        slurm.wait(job_id, {"FAILED"}, START_S)
    assert f"_job_complete: JobId={job_id} done" in str(refused.value)


@pytest.mark.slow
@pytest.mark.fixture
def test_waiting_times_out(slurm: SlurmCluster) -> None:
    with pytest.raises(
        ClusterError, match=r"(?s)waited 0.2 s for node `n1` in .'down'., found 'idle'; slurmctld:\n.*Running as primary"
    ):
        slurm.wait_node("n1", {"down"}, 0.2)


@pytest.mark.slow
@pytest.mark.fixture
def test_failing_client_shows_its_output(slurm: SlurmCluster) -> None:
    with pytest.raises(subprocess.CalledProcessError) as failed:
        slurm.run("scontrol", "show", "job", "999")
    assert "Invalid job id specified" in failed.value.__notes__[0]


# --- nodes ------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.fixture
def test_node_has_separate_name_processes_and_memory(slurm: SlurmCluster) -> None:
    assert slurm.nsenter("n2", ["hostname"]).stdout == "n2\n"
    assert slurm.nsenter("n2", ["cat", "/proc/1/comm"]).stdout == "bash\n"
    slurm.nsenter("n2", ["touch", "/dev/shm/of-n2"])
    assert slurm.nsenter("n2", ["ls", "/dev/shm"]).stdout == "of-n2\n"
    assert slurm.nsenter("n1", ["ls", "/dev/shm"]).stdout == ""
    assert not Path("/dev/shm/of-n2").exists()
    assert slurm.nsenter("n1", ["getent", "hosts", "n2"]).stdout.split()[1:] == ["n2"]


@pytest.mark.slow
@pytest.mark.fixture
def test_drained_node_gets_no_job_until_it_is_resumed(slurm: SlurmCluster) -> None:
    slurm.set_node("n1", "drain", "a test")
    assert slurm.wait_node("n1", {"drained"}, START_S) == "drained"
    assert slurm.run("srun", "hostname").stdout == "n2\n"
    slurm.set_node("n1", "resume", "a test")
    assert slurm.wait_node("n1", {"idle"}, START_S) == "idle"


@pytest.mark.slow
@pytest.mark.fixture
def test_lost_node_goes_down_and_its_job_runs_again_when_it_returns(slurm: SlurmCluster, tmp_path: Path) -> None:
    job_id = slurm.submit(write_script(tmp_path, WAITS_IN_FIRST_RUN), "--nodelist=n2", cwd=tmp_path)
    slurm.wait(job_id, {"RUNNING"}, START_S)
    wait_for_lines(tmp_path / "runs.txt", 1)
    try:
        slurm.kill_node("n2")
        slurm.wait_node("n2", {"down", "down*"}, 60)
        assert slurm.wait(job_id, {"PENDING"}, START_S)["Restarts"] == "1"
        slurm.boot_node("n2")
        assert slurm.node_state("n2") == "down"
    finally:
        slurm.mend_node("n2")
    assert slurm.wait(job_id, {"COMPLETED"}, 60)["NodeList"] == "n2"
    assert (tmp_path / "runs.txt").read_text() == "n2 first\nn2 1\n"
    assert "JobState=NODE_FAIL" in slurm.logs()["jobcomp.log"]


@pytest.mark.slow
@pytest.mark.fixture
def test_power_loss_ends_every_process_of_the_node_and_clears_its_memory(slurm: SlurmCluster) -> None:
    namespace = pid_namespace(slurm.node_pid("n1"))
    slurm.nsenter("n1", ["touch", "/dev/shm/of-n1"])
    assert living_in(namespace) != []
    try:
        slurm.kill_node("n1")
        assert living_in(namespace) == []
        with pytest.raises(ProcessLookupError, match="`n1` is off"):
            slurm.node_pid("n1")
        slurm.boot_node("n1")
    finally:
        slurm.mend_node("n1")
    assert slurm.nsenter("n1", ["ls", "/dev/shm"]).stdout == ""
    assert slurm.run("srun", "--nodelist=n1", "hostname").stdout == "n1\n"


def living_in(namespace: str) -> list[str]:
    return leftovers(Path("/nothing/has/this/name"), {namespace})


def wait_for_lines(path: Path, count: int) -> None:
    deadline = time.monotonic() + START_S
    while not path.exists() or path.read_text().count("\n") < count:
        assert time.monotonic() < deadline, f"{path} has not got {count} lines"
        time.sleep(0.05)


# --- cleanup ----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.fixture
def test_second_cluster_with_gpus_runs_in_parallel_and_is_cleaned_up(slurm: SlurmCluster) -> None:
    with SlurmCluster(Shape(nodes=1, gpus=2, partition="gpu")) as second:
        root, namespaces = second.root, namespaces_of(second)
        job = ("--gpus-per-task=1", "--ntasks=2", "--partition=gpu", "--gpu-bind=single:1")
        devices = second.run("srun", *job, "bash", "-c", "echo $CUDA_VISIBLE_DEVICES").stdout
        second.run("sbatch", "--output=/dev/null", "--wrap=sleep 600")
        assert sorted(devices.split()) == ["0", "1"]
        assert slurm.node_state("n1") == "idle"
        running = leftovers(root, namespaces)
        assert any("slurmctld" in line for line in running)
        assert any(line.startswith("mount of ") for line in running)
        assert str(root) not in Path("/proc/self/mountinfo").read_text()
    assert len(namespaces) == 3
    assert leftovers(root, namespaces) == []


@pytest.mark.slow
@pytest.mark.fixture
def test_failed_test_is_cleaned_up(slurm_here: None) -> None:
    cluster = SlurmCluster(Shape(nodes=1))
    namespaces: set[str] = set()

    def fail_with_a_dead_node() -> None:
        with cluster:
            namespaces.update(namespaces_of(cluster))
            cluster.kill_node("n1")
            cluster.node_pid("n1")

    with pytest.raises(ProcessLookupError, match="`n1` is off"):
        fail_with_a_dead_node()
    assert len(namespaces) == 3
    assert leftovers(cluster.root, namespaces) == []


@pytest.mark.slow
@pytest.mark.fixture
def test_controller_that_cannot_start_is_reported_and_cleaned_up(slurm_here: None) -> None:
    cluster = SlurmCluster(Shape(settings={"SelectType": "select/nonsense"}))
    with pytest.raises(ClusterError, match=r"(?s)`slurmctld` ended at its start; its logs:\n.*select/nonsense"), cluster:
        pytest.fail("a cluster with a wrong setting started")
    assert leftovers(cluster.root, set()) == []


@pytest.mark.slow
@pytest.mark.fixture
@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGINT], ids=lambda end: end.name)
def test_interrupted_process_is_cleaned_up(slurm_here: None, end: signal.Signals) -> None:
    with held_cluster() as (holder, root, namespaces):
        assert len(leftovers(root, namespaces)) > 3
        holder.send_signal(end)
        holder.wait(timeout=START_S)
        assert wait_until_gone(root, namespaces) == []


@contextlib.contextmanager
def held_cluster() -> Iterator[tuple[subprocess.Popen[str], Path, set[str]]]:
    """A process that runs a cluster and a job, the cluster's folder and PID namespaces; the process is killed in the end."""
    command = leashed([sys.executable, "-c", HOLDS_A_CLUSTER])
    with subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as holder:
        try:
            assert holder.stdout is not None
            line = holder.stdout.readline()
            assert line.startswith("{"), line + holder.stdout.read()
            held = json.loads(line)
            yield holder, Path(held["root"]), {pid_namespace(pid) for pid in held["pids"]}
        finally:
            holder.kill()


# --- parts ------------------------------------------------------------------------------------------------------------


def test_missing_programs_are_named_with_their_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "SEARCH_PATH", "/nonexistent")
    assert programs.obstacle() == "`munged`, `sbatch`, `slurmctld`, `slurmd` not found; run `apt-get install munge slurm-wlm`"


def test_two_claims_get_different_ports() -> None:
    first, second = claim_addresses(2), claim_addresses(2)
    try:
        ports = [{claim.controller_port, claim.node_port(1), claim.node_port(2)} for claim in (first, second)]
        assert len(ports[0] | ports[1]) == 6
        assert first.node_address(1) != second.node_address(1)
    finally:
        first.release()
        second.release()


def test_more_nodes_than_ports_are_rejected() -> None:
    with pytest.raises(ValueError, match=f"`{MAX_NODES + 1}` nodes asked for"):
        claim_addresses(MAX_NODES + 1)


def test_record_keeps_values_with_spaces_and_equal_signs() -> None:
    line = (
        "JobId=7 Reason=Node unexpectedly rebooted TRES=cpu=2,node=2 ReqB:S:C:T=0:0:*:* Socks/Node=* AllocTRES= NodeList=(null)\n"
    )
    assert parse_record(line) == {
        "JobId": "7",
        "Reason": "Node unexpectedly rebooted",
        "TRES": "cpu=2,node=2",
        "ReqB:S:C:T": "0:0:*:*",
        "Socks/Node": "*",
        "AllocTRES": "",
        "NodeList": "(null)",
    }
