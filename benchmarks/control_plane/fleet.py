"""Runs a job of simulated nodes and its coordinator, each in a process on a core of its own."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from queue import Empty, Queue
from typing import Any

from benchmarks.claim import MeasureError
from headway.runner.contract import Mesh, RunConfig, RunDirectory, Trainer
from headway.runner.lines import read_lines
from headway.runner.rundir import open_run

PROCS = 8
SPARES = 4
WAIT_S = 120.0
ROOT = Path(__file__).parents[2]


def config(nodes: int) -> RunConfig:
    """Return a job of `nodes` nodes with 8 ranks each, spares included."""
    slots = nodes - SPARES
    return RunConfig(
        slots=slots,
        procs_per_slot=PROCS,
        mesh=Mesh(dp_replicate=slots * PROCS),
        trainer=Trainer("builtin"),
        spec_hash="0" * 16,
        spares=SPARES,
    )


class Fleet:
    """The two processes of one job."""

    def __init__(self, directory: RunDirectory) -> None:
        self._directory = directory
        self._environment = {
            **os.environ,
            "HEADWAY_RUN_JSON": str(directory.run_json),
            "HEADWAY_ATTEMPT": str(directory.attempt),
            "HEADWAY_HOST": "127.0.0.1",
        }
        self._said: Queue[dict[str, Any]] = Queue()
        # Lines of other kinds than the one waited for: some agents have started before the last one is assigned its slot.
        self._unread: list[dict[str, Any]] = []
        self.coordinate(0)
        self._wait_for(directory.coordinator.exists, "a coordinator")
        self._agents = self._process("benchmarks.control_plane.agents", cores()[1], subprocess.PIPE)
        self._listening = threading.Thread(target=self._listen, daemon=True)
        self._listening.start()

    def coordinate(self, node: int) -> None:
        """Starts a coordinator, as the supervisor of `node` does."""
        self._environment["HEADWAY_NODE"] = str(node)
        self._coordinator = self._process("headway.runner.coordinator.main", cores()[0])

    def kill_coordinator(self) -> None:
        self._coordinator.send_signal(signal.SIGKILL)
        self._coordinator.wait()

    def coordinator_share(self, seconds: float) -> float:
        """Return what the coordinator uses of a core, over so many seconds."""
        return share(self._coordinator.pid, seconds)

    def do(self, order: str, **facts: Any) -> None:
        assert self._agents.stdin is not None  # noqa: S101  a pipe
        self._agents.stdin.write(json.dumps({"do": order, **facts}).encode() + b"\n")
        self._agents.stdin.flush()

    def heard(self, what: str) -> dict[str, Any]:
        """Return the next line of this kind that the agents say. Raises MeasureError when it does not come."""
        until = time.monotonic() + WAIT_S
        with contextlib.suppress(Empty):
            while not any(said["what"] == what for said in self._unread):
                self._unread.append(self._said.get(timeout=max(until - time.monotonic(), 0.0)))
            found = next(said for said in self._unread if said["what"] == what)
            self._unread.remove(found)
            return found
        raise MeasureError(f"the agents have not said {what!r} within {WAIT_S:g} s")

    def given_up(self, generation: int) -> float:
        """When the coordinator gave a node of this generation up, by the monotonic clock."""
        return self.noted(generation, "lost") - time.time() + time.monotonic()

    def noted(self, generation: int, kind: str, times: int = 1) -> float:
        """Return the wall time of the last of so many lines in the generation's journal. Raises MeasureError when it
        does not come."""
        path = self._directory.journal(generation)
        found: list[float] = []

        def look() -> bool:
            found[:] = [line["wall"] for line, _ in read_lines(path) if line["kind"] == kind]
            return len(found) >= times

        self._wait_for(look, f"the journal's {kind!r}")
        return found[-1]

    def close(self) -> None:
        # Their pipes are closed at the end.
        with self._agents, self._coordinator:
            self._agents.kill()
            self._coordinator.kill()
            self._listening.join()

    def _process(self, module: str, core: int, pipe: int | None = None) -> "subprocess.Popen[bytes]":
        command = [sys.executable, "-m", module]
        process = subprocess.Popen(command, env=self._environment, cwd=ROOT, stdin=pipe, stdout=pipe)
        os.sched_setaffinity(process.pid, {core})
        return process

    def _listen(self) -> None:
        assert self._agents.stdout is not None  # noqa: S101  a pipe
        for line in self._agents.stdout:
            self._said.put(json.loads(line))

    def _wait_for(self, what: Any, name: str) -> None:
        until = time.monotonic() + WAIT_S
        while not what():
            if time.monotonic() > until or self._coordinator.poll() is not None:
                raise MeasureError(f"{name} has not come; the coordinator's exit code: {self._coordinator.poll()}")
            time.sleep(0.02)


def cores() -> tuple[int, int]:
    """Return one for the measured process, one for the agents; the same where there is only one."""
    there = sorted(os.sched_getaffinity(0))
    return there[0], there[-1]


def cpu_s(pid: int) -> float:
    """User and system CPU seconds that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def share(pid: int, seconds: float) -> float:
    """Return what a process uses of a core, over so many seconds."""
    cpu, began = cpu_s(pid), time.monotonic()
    time.sleep(seconds)
    return (cpu_s(pid) - cpu) / (time.monotonic() - began)


@contextlib.contextmanager
def fleet(runs: Path, nodes: int) -> Iterator[Fleet]:
    """Yield a job of `nodes` nodes whose agents are joining."""
    found = Fleet(open_run(runs, f"fleet-{nodes}", config(nodes), 1))
    try:
        yield found
    finally:
        found.close()
