"""Starts the script by headway, torchrun tuned for quick restarts, or torchft's replica groups; one node or several of this machine."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.recovery.trace import wait_until

ROOT = Path(__file__).parents[2]
SCRIPT = Path(__file__).with_name("train.py")
TORCHFT = ROOT / ".venv-peers/torchft/bin"
LIGHTHOUSE = TORCHFT / "torchft_lighthouse"
STEPS = "100000"
STANDBY = "headway.runner.agent.standby"
RANKS = 2

# What makes torchrun's restarts quick and sound: no store shared over restarts (pytorch/pytorch#135712), quick polls and keep-alives.
TUNED = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "TORCH_ELASTIC_WORKER_IDENTICAL": "1"}
QUICK = "keep_alive_interval=1,keep_alive_max_attempt=3,last_call_timeout=1"


def free_port() -> int:
    """Return a port that was free a moment ago."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def launched(
    words: Sequence[str | Path], folder: Path, environment: dict[str, str], name: str
) -> Iterator["subprocess.Popen[Any]"]:
    """Yield a launcher, ended with everything below it when the block is left. Its output goes to a file in `folder`."""
    with (folder / f"{name}.log").open("ab") as log:
        process = subprocess.Popen(
            [str(word) for word in words],
            cwd=ROOT,
            env={**os.environ, **environment},
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        try:
            yield process
        finally:
            end(process.pid)
            process.wait()


def tree(pid: int) -> list[int]:
    """Return the process and all below it."""
    found = [pid]
    for each in found:
        for task in Path(f"/proc/{each}/task").glob("*/children"):
            with contextlib.suppress(OSError):
                found += map(int, task.read_text().split())
    return found


def end(pid: int) -> None:
    """Kills a node: the process and all below it, all stopped before the first one dies, so that none can react."""
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for each in tree(pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(each, number)


def torchrun(folder: Path) -> tuple[list[str | Path], dict[str, str]]:
    """torchrun on one node, tuned."""
    words = ["--standalone", "--nproc-per-node", "2", "--max-restarts", "100", "--monitor-interval", "0.05"]
    return [sys.executable, "-m", "torch.distributed.run", *words, SCRIPT, folder, STEPS], TUNED


def headway(folder: Path) -> tuple[list[str | Path], dict[str, str]]:
    """headway on one node."""
    words = ["torchrun", "--standalone", "--nproc-per-node", "2", "--max-restarts", "100"]
    return [sys.executable, "-m", "headway.cli.main", *words, SCRIPT, folder, STEPS], {"HEADWAY_RUNS": str(folder / "runs")}


def torchrun_node(folder: Path, port: int) -> tuple[list[str | Path], dict[str, str]]:
    """Return one of torchrun's nodes, tuned, with keep-alives each second."""
    words = [
        "--nnodes",
        "2",
        "--nproc-per-node",
        "1",
        "--max-restarts",
        "100",
        "--monitor-interval",
        "0.05",
        "--rdzv-backend",
        "c10d",
    ]
    words += ["--rdzv-endpoint", f"127.0.0.1:{port}", "--rdzv-id", "recovery", "--rdzv-conf", QUICK]
    return [sys.executable, "-m", "torch.distributed.run", *words, SCRIPT, folder, STEPS], TUNED


def headway_node(folder: Path, port: int) -> tuple[list[str | Path], dict[str, str]]:
    """Return one of headway's nodes."""
    words = ["torchrun", "--nnodes", "2", "--nproc-per-node", "1", "--max-restarts", "100", "--rdzv-backend", "c10d"]
    words += ["--rdzv-endpoint", f"127.0.0.1:{port}", "--rdzv-id", "recovery", "--rdzv-conf", QUICK]
    return [sys.executable, "-m", "headway.cli.main", *words, SCRIPT, folder, STEPS], {"HEADWAY_RUNS": str(folder / "runs")}


def standbys(pid: int) -> list[int]:
    """Return the warm standby workers below a launcher that have finished importing: they sleep, waiting for an order."""
    return [each for each in tree(pid) if _is_standby(each)]


def _is_standby(pid: int) -> bool:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    return STANDBY.encode() in words


def settle(pids: Sequence[int]) -> None:
    """Wait until processes sleep and no longer use the CPU: two looks, half a second apart, show the same."""

    def quiet() -> bool:
        before = _cpu(pids)
        time.sleep(0.5)
        return _cpu(pids) == before and all(line.startswith("S ") for line in before)

    wait_until(quiet, f"processes {list(pids)} at rest")


def _cpu(pids: Sequence[int]) -> list[str]:
    found = []
    for pid in pids:
        with contextlib.suppress(OSError):
            state, *more = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
            found.append(" ".join([state, *more[10:12]]))
    return found


@contextlib.contextmanager
def torchft_groups(folder: Path, heartbeat_ms: int) -> Iterator[list["subprocess.Popen[Any]"]]:
    """Yield two replica groups of one process each and their lighthouse."""
    with torchft_lighthouse(folder, heartbeat_ms) as launch:
        yield [launch(group) for group in range(RANKS)]


@contextlib.contextmanager
def torchft_lighthouse(folder: Path, heartbeat_ms: int) -> Iterator[Callable[[int], "subprocess.Popen[Any]"]]:
    """Yield a function that launches a replica group of one process, with their lighthouse running."""
    port = free_port()
    words: list[str | Path] = [
        LIGHTHOUSE,
        "--min_replicas",
        "1",
        "--quorum_tick_ms",
        "50",
        "--join_timeout_ms",
        "1000",
    ]
    words += ["--heartbeat_timeout_ms", str(heartbeat_ms), "--bind", f"127.0.0.1:{port}"]
    environment = {"TORCHFT_LIGHTHOUSE": f"http://127.0.0.1:{port}", "PYTHONPATH": str(ROOT)}
    with contextlib.ExitStack() as running:
        running.enter_context(launched(words, folder, {}, "lighthouse"))
        command: list[str | Path] = [TORCHFT / "python", "-m", "benchmarks.recovery.train_torchft", folder, STEPS]

        def launch(group: int) -> "subprocess.Popen[Any]":
            own = {**environment, "REPLICA_GROUP_ID": str(group)}
            return running.enter_context(launched(command, folder, own, f"group-{group}"))

        yield launch
