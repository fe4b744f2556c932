"""Watches a real job of two ranks in this process, without a network: an agent's heartbeats, probes and flight recorders."""

import asyncio
import json
import mmap
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from torch._C._distributed_c10d import TCPStore

from benchmarks.claim import MeasureError
from benchmarks.detection.trace import Heard, Trace
from headway.runner.agent import flight, probe
from headway.runner.agent.flight import Recorder
from headway.runner.agent.processes import signal_main_thread
from headway.runner.contract import DEFAULT_TIMEOUTS, SECTIONS, STACKS_SIGNAL, HeartbeatPage, Mesh, RunConfig, Trainer
from headway.runner.health.collectives import Collective
from headway.runner.health.watch import Hang, Probe, RankBeat, Watch
from headway.runner.rundir import open_run
from headway.runner.start import START

RANKS = 2
BEAT_S, TICK_S = 0.5, 0.1
JOB = Path(__file__).with_name("job.py")


@dataclass(frozen=True)
class Observed:
    """The messages of the job, and when the watch named which rank, in seconds after rank 1's fault."""

    trace: Trace
    hang: Hang | None
    named_after_s: float | None


class Node:
    """The workers of a job on this machine, and their heartbeat page."""

    def __init__(self, folder: Path, command: list[str]) -> None:
        self._folder, self._began_s = folder, time.monotonic()
        memory = os.memfd_create("heartbeats")
        os.ftruncate(memory, HeartbeatPage.bytes_for(RANKS))
        self._page = HeartbeatPage(memoryview(mmap.mmap(memory, 0)))
        self._events, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        config = RunConfig(1, RANKS, Mesh(dp_shard=RANKS), Trainer("script", {"argv": command}), "")
        self._directory = open_run(folder, "watched", config, 0, job="job")
        self._directory.evidence.mkdir()
        self._recorder, self._asked = Recorder(self._directory, os.environ), dict[int, tuple[Path, int]]()
        self._asked_ns: dict[int, int] = {}
        descriptors = {"HEARTBEAT": memory, "EVENTS": theirs.fileno()}
        # An agent's, from the workers' environment.
        self._store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self.workers = [self._start(rank, command, descriptors, self._store.port) for rank in range(RANKS)]
        os.close(memory)
        theirs.close()

    def _start(self, rank: int, command: list[str], descriptors: Mapping[str, int], port: int) -> subprocess.Popen[bytes]:
        torchrun = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": RANKS, "LOCAL_WORLD_SIZE": RANKS, "MASTER_ADDR": "127.0.0.1"}
        more = {
            "MASTER_PORT": port,
            "TORCHELASTIC_USE_AGENT_STORE": True,
            "OMP_NUM_THREADS": 1,
            "HEADWAY_GENERATION": 1,
            "HEADWAY_ATTEMPT": 0,
            "HEADWAY_BASE": "null",
            "HEADWAY_RUN_JSON": self._directory.run_json,
            "HEADWAY_STACKS": self._stacks(rank),
            "HEADWAY_LOCAL_RANK": rank,
        }
        given = {
            **torchrun,
            **more,
            **self._recorder.variables(1),
            **{f"HEADWAY_{name}_FD": number for name, number in descriptors.items()},
        }
        return subprocess.Popen(
            [sys.executable, START, "headway.runner.boot", *command],
            env={**os.environ, **{name: str(value) for name, value in given.items()}},
            pass_fds=list(descriptors.values()),
            start_new_session=True,
        )

    def beats(self) -> dict[int, RankBeat]:
        """Return what an agent would send now."""
        return {rank: self._beat(rank) for rank, worker in enumerate(self.workers) if worker.poll() is None}

    def _beat(self, rank: int) -> RankBeat:
        words = self._page.read(rank)
        age_s = (time.monotonic_ns() - words["monotonic_ns"]) / 1e9 if words["monotonic_ns"] else None
        return RankBeat(words["step"], SECTIONS[words["section"]], words["pulse"], age_s, words["own_ns"] / 1e9)

    async def probes(self, ranks: frozenset[int]) -> dict[int, Probe]:
        pids = {rank: worker.pid for rank, worker in enumerate(self.workers) if rank in ranks and worker.poll() is None}

        def dump(sleeping: Collection[int]) -> None:
            for rank in sleeping:
                signal_main_thread(pids[rank], STACKS_SIGNAL)

        return await probe.look(pids, self._stacks, dump)

    def ask_recorders(self, ranks: frozenset[int]) -> None:
        """Ask, like an agent, the ranks that have not moved since the previous look."""
        signs_ns = {rank: self._page.read(rank)["monotonic_ns"] for rank in ranks}
        due = self._recorder.to_ask(signs_ns, time.monotonic_ns())
        self._asked |= self._recorder.ask(1, due)
        self._asked_ns |= {rank: signs_ns[rank] for rank in due}

    def recorded(self) -> dict[int, tuple[Collective, ...]]:
        """Return what they have answered since, of ranks that still stand where they stood."""
        found = flight.answers(self._asked)
        self._asked = {rank: before for rank, before in self._asked.items() if rank not in found}
        return {rank: each for rank, each in found.items() if self._page.read(rank)["monotonic_ns"] == self._asked_ns[rank]}

    def _stacks(self, rank: int) -> Path:
        return self._folder / f"stacks-{rank}.txt"

    def end(self) -> None:
        for worker in self.workers:
            if worker.poll() is None:
                os.killpg(worker.pid, signal.SIGKILL)
            worker.wait()
        self._events.close()


def observe(what: str, at: int, seconds: float, limit_s: float) -> Observed:
    """Run the job until it ends, is reported as hung, or `limit_s` have passed since the fault."""
    with tempfile.TemporaryDirectory() as folder:
        marks = Path(folder, "marks.json")
        node = Node(Path(folder), [str(JOB), what, str(at), str(seconds), str(marks)])
        try:
            return asyncio.run(_observe(node, what, marks, limit_s))
        finally:
            node.end()


async def _observe(node: Node, what: str, marks: Path, limit_s: float) -> Observed:
    began_s = time.monotonic()
    watch, heard, hang, named_s = Watch(RANKS, DEFAULT_TIMEOUTS, began_s), list[Heard](), None, None
    beat_s = began_s
    while any(worker.poll() is None for worker in node.workers) and hang is None:
        await asyncio.sleep(TICK_S)
        now_s = time.monotonic()
        if marks.exists() and now_s > json.loads(marks.read_text())["at_s"] + limit_s:
            break
        if any(worker.returncode for worker in node.workers):
            raise MeasureError(f"the job that {what} has failed: {[worker.returncode for worker in node.workers]}")
        watch.recorded(node.recorded())
        watch.ended(rank for rank, worker in enumerate(node.workers) if worker.poll() is not None)
        findings = watch.tick(now_s)
        if (hang := findings.hang) is not None:
            named_s = now_s
        if now_s >= beat_s:
            beat_s, beats = beat_s + BEAT_S, node.beats()
            watch.beat(beats, now_s)
            # All are looked at all the time, so that the trace can answer whenever a detector asks.
            probes = await node.probes(frozenset(range(RANKS)))
            heard.append(Heard(time.monotonic() - began_s, beats, probes))
        if findings.probe:
            probes = await node.probes(findings.probe)
            watch.probed(probes, time.monotonic())
            node.ask_recorders(findings.probe)
            heard.append(Heard(time.monotonic() - began_s, {}, probes))
    mark = json.loads(marks.read_text())
    trace = Trace(what, RANKS, mark["at_s"] - began_s, tuple(mark["steps_s"]), tuple(heard))
    return Observed(trace, hang, None if named_s is None else named_s - mark["at_s"])
