"""Tests `headway torchrun` with flags that decide what a worker is, where it prints, and which signal asks it to stop."""

import json
import signal
import socket
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.faults.runs import LIMIT_S, going, headway, only_run, wait_until
from tests.support.commands import Command

pytestmark = pytest.mark.slow


def test_streams_names_and_arguments_are_torchruns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADWAY_SECRET", "no worker's business")
    script = tmp_path / "script.py"
    script.write_text(
        # headway imports no torch ahead of a script that sets variables.
        "import os, sys\n"
        "os.environ['SET'] = '1'\n"
        "print('out', sys.argv[1], os.environ['ROLE_NAME'], os.environ['TORCHELASTIC_MAX_RESTARTS'])\n"
        "print('err', os.environ['OMP_NUM_THREADS'], file=sys.stderr)\n"
        "assert os.path.isdir(os.path.dirname(os.environ['TORCHELASTIC_ERROR_FILE']))\n"
        "assert 'HEADWAY_SECRET' not in os.environ\n"
        "began = lambda pid: int(open(f'/proc/{pid}/stat').read().rpartition(')')[2].split()[19])\n"
        "beside = open(f'/proc/{os.getppid()}/task/{os.getppid()}/children').read().split()\n"
        "(agent,) = [pid for pid in beside if 'agent.main' in open(f'/proc/{pid}/cmdline').read()]\n"
        "assert began('self') < began(agent), 'workers import while the node starts'\n"
    )
    flags = (
        "--nproc-per-node",
        "2",
        "--role",
        "tr",
        "--max-restarts",
        "0",
        "-t",
        "0:1",
        "-r",
        "1:3",
        "--log-dir",
        tmp_path / "logs",
    )
    done = headway("torchrun", *flags, script, "local=${local_rank}", runs=tmp_path / "runs")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "[tr0]:out local=0 tr 0\n"
    assert "err 1\n" in done.stderr
    (logs,) = (tmp_path / "logs").glob("script-1_*")
    printed = {str(path.relative_to(logs)): path.read_text() for path in logs.rglob("*.log")}
    assert printed == {
        "attempt_0/0/stdout.log": "out local=0 tr 0\n",
        "attempt_0/1/stdout.log": "out local=1 tr 0\n",
        "attempt_0/1/stderr.log": "err 1\n",
    }


def test_a_non_python_program_is_a_worker_and_receives_the_signal(tmp_path: Path) -> None:
    program = 'trap "echo saved $LOCAL_RANK $CUDA_VISIBLE_DEVICES; exit 0" USR1; echo ready; while :; do sleep 0.05; done'
    flags = (
        "--nproc-per-node",
        "2",
        "--virtual-local-rank",
        "--signals-to-handle",
        "SIGUSR1,SIGTERM",
        "-r",
        "1",
        "--log-dir",
        tmp_path,
    )
    words = (*flags, "--no-python", "bash", "-c", program)

    def is_printed(line: str) -> bool:
        return [path.read_text().count(line) for path in tmp_path.glob("bash-1_*/attempt_0/*/stdout.log")] == [1, 1]

    with going("torchrun", *words, runs=tmp_path / "runs") as launcher:
        wait_until(lambda: is_printed("ready"), "both ranks")
        launcher.send_signal(signal.SIGUSR1)
        assert launcher.wait(LIMIT_S) == 82
    found = sorted(path.read_text() for path in tmp_path.glob("bash-1_*/attempt_0/*/stdout.log"))
    assert found == ["ready\nsaved 0 0\n", "ready\nsaved 0 1\n"], "each sees its own device as the first"
    assert only_run(tmp_path / "runs").verdict()["verdict"] == "preempted"


def test_a_port_in_use_is_an_error_before_a_run_is_created(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        done = headway("torchrun", "--master-port", str(port), "--no-python", "true", runs=tmp_path / "runs")
    assert done.returncode == 2
    assert f"--master-port {port}: Address already in use" in done.stderr
    assert not (tmp_path / "runs").exists()


def test_two_launchers_on_one_machine_are_two_nodes(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    program = 'echo "$RANK/$WORLD_SIZE $GROUP_RANK $MASTER_ADDR"'
    flags = ("--nnodes", "1:2", "--rdzv-backend", "c10d", "--rdzv-endpoint", f"localhost:{port}", "--rdzv-id", "pair")
    words = (*flags, "--rdzv-conf", "last_call_timeout=200", "--no-python", "bash", "-c", program)
    with ExitStack() as stack:
        # Nothing else is in the environment.
        start = ("torchrun", *words), {"HEADWAY_RUNS": str(tmp_path)}
        both = [stack.enter_context(Command(*start)) for _ in range(2)]
        printed = [process.communicate(timeout=LIMIT_S) for process in both]
        assert [process.returncode for process in both] == [0, 0], printed
    assert sorted(out for out, _ in printed) == ["0/2 0 127.0.0.1\n", "1/2 1 127.0.0.1\n"]
    assert sum("can join, as with torchrun; set HEADWAY_SECRET_FILE" in err for _, err in printed) == 1, "only the host prints it"
    assert json.loads((tmp_path / "pair/attempts/0/run.json").read_text())["min_slots"] == 1
