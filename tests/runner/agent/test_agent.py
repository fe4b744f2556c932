"""Tests a node as its coordinator sees it: supervisor, agent and workers are real processes; the test plays the coordinator."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from headway.runner.agent import probe, rank_processes
from headway.runner.agent.agent_state import AgentState
from headway.runner.agent.main import Agent
from headway.runner.agent.protocol import EVENTS_KEPT, KillWorkers, Request, WorkerEvent, WorkerProcess, encode
from headway.runner.contract import (
    DEFAULT_TIMEOUTS,
    SECTIONS,
    Exit,
    HeartbeatPage,
    Mesh,
    RunConfig,
    RunDirectory,
    Timeout,
    Trainer,
)
from headway.runner.health.watch import Probe
from headway.runner.messages import Link, Listener, Message, listen
from headway.runner.posix import write_atomic
from headway.runner.rundir import open_run

pytestmark = pytest.mark.slow

LIMIT_S = 60
# Node 0 would start a coordinator.
NODE = 1
# Rank 0 exits as a file specifies; the other rank waits for its own end.
SCRIPT = """
echo "$RANK of $WORLD_SIZE" >> ran
if [ "$RANK" = 1 ]; then sleep 600; fi
while [ ! -e code ]; do sleep 0.05; done
exit $(cat code)
"""


def config(script: str = SCRIPT, **more: Any) -> RunConfig:
    options = {"argv": ["sh", "-c", script], "torchrun": {"python": False, "shown": None}}
    return RunConfig(slots=1, procs_per_slot=2, mesh=Mesh(dp_shard=2), trainer=Trainer("script", options), spec_hash="", **more)


@dataclass
class Node:
    """The processes of a node, and the coordinator's end of its connection."""

    directory: RunDirectory
    process: "subprocess.Popen[bytes]"
    cwd: Path
    heard: list[Message] = field(default_factory=list)
    link: Link | None = None
    listener: Listener | None = None

    async def coordinate(self) -> None:
        """Listen where the node looks for its coordinator."""
        run = json.loads(self.directory.run_json.read_text())["run"]
        self.listener = await listen("127.0.0.1", 0, self.directory.secret(), run, self._hear, lambda _, __: None)
        write_atomic(self.directory.coordinator, json.dumps({"host": "127.0.0.1", "port": self.listener.port}).encode())

    def leave(self) -> None:
        """Stop being a coordinator."""
        if self.link is not None:
            self.link.close()
        if self.listener is not None:
            self.listener.close()
        self.link = self.listener = None

    def _hear(self, link: Link, message: Message) -> None:
        if message.kind == "join":
            self.link = link
        self.heard.append(message)

    def send(self, kind: str, generation: int, body: dict[str, Any]) -> None:
        assert self.link is not None
        self.link.send(kind, generation, NODE, body)

    def start(self, generation: int, moved: list[list[int]]) -> None:
        place = {"master_addr": "127.0.0.1", "master_port": 1, "restarts": generation - 1}
        self.send("start", generation, {"base": None, "slots": 1, "moved": moved, **place})

    def of(self, kind: str, what: str | None = None) -> list[dict[str, Any]]:
        return [m.body for m in self.heard if m.kind == kind and (what is None or m.body["what"] == what)]

    def exits(self) -> list[dict[str, Any]]:
        return [each for body in self.of("exited") for each in body["exits"]]

    def began(self) -> int:
        """How many processes have run the script's first line; a heartbeat may name a process before that."""
        ran = self.cwd / "ran"
        return len(ran.read_text().splitlines()) if ran.exists() else 0

    def running(self) -> set[str]:
        """Ranks in the newest heartbeat."""
        return set(self.of("beat")[-1]["ranks"]) if self.of("beat") else set()

    async def until(self, ready: Callable[[], bool], what: str) -> None:
        async with asyncio.timeout(LIMIT_S):
            while not ready():
                assert self.process.poll() is None, f"the node has ended before {what}"
                await asyncio.sleep(0.02)

    async def ended(self) -> int:
        return await asyncio.wait_for(asyncio.to_thread(self.process.wait), LIMIT_S)

    def children(self, module: str) -> list[int]:
        """The children of the supervisor that run this module."""
        found = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        return [int(pid) for pid in found if module.encode() in words_of(pid)]


def words_of(pid: str) -> list[bytes]:
    """The command of a process; empty once it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except FileNotFoundError:
        return []


@asynccontextmanager
async def node(tmp_path: Path, **more: Any) -> AsyncIterator[Node]:
    """A node that has joined the coordinator that the test plays."""
    directory = open_run(tmp_path, "case-0123abcd-1", config(**more), 0)
    argv = [sys.executable, "-m", "headway.runner", str(directory.run_json), "--attempt", "0", "--node", str(NODE)]
    environment = {**os.environ, "HEADWAY_NODES": "127.0.0.1,127.0.0.1", "PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen(argv, env=environment, cwd=tmp_path)
    case = Node(directory, process, tmp_path)
    try:
        await case.coordinate()
        await case.until(lambda: case.link is not None, "joining")
        yield case
    finally:
        process.kill()
        process.wait()
        case.leave()
        # The event loop closes what it was ordered to close.
        await asyncio.sleep(0)


async def going(case: Node) -> None:
    case.start(1, moved=[[0, NODE]])
    await case.until(lambda: case.running() == {"0", "1"} and case.began() == 2, "a beat of both ranks, which have begun")


def test_a_node_starts_reports_and_ends_workers_on_order(tmp_path: Path) -> None:
    async def scenario() -> int:
        async with node(tmp_path) as case:
            (joined,) = case.of("join")
            assert (joined["host"], joined["domain"], joined["running"]) == ("127.0.0.1", None, [])
            assert joined["port"] > 0, "a rendezvous socket is open before any order"
            await going(case)
            (tmp_path / "code").write_text("3")
            await case.until(lambda: len(case.exits()) == 1, "the end of rank 0")
            case.send("stop", 1, {})
            await case.until(lambda: len(case.exits()) == 2, "the end of rank 1")
            first, second = case.exits()
            assert first == {"rank": 0, "code": 3, "asked": False, "oom": False, "how": "exit code 3", "step": 0}
            assert (second["rank"], second["code"], second["asked"]) == (1, -signal.SIGTERM, True)
            case.start(2, moved=[[0, NODE]])
            await case.until(lambda: len(case.exits()) == 3 and case.began() == 4, "the end of rank 0 in the next generation")
            case.send("stop", 2, {"exit_code": int(Exit.STOP)})
            return await case.ended()

    assert asyncio.run(scenario()) == Exit.STOP
    assert sorted((tmp_path / "ran").read_text().splitlines()) == ["0 of 2"] * 2 + ["1 of 2"] * 2


def test_a_repeated_start_starts_nothing_twice(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with node(tmp_path) as case:
            await going(case)
            case.start(1, moved=[[0, NODE]])
            case.start(2, moved=[])
            await case.until(lambda: len(case.exits()) == 2, "the end of what ran before")

    asyncio.run(scenario())
    assert sorted((tmp_path / "ran").read_text().splitlines()) == ["0 of 2", "1 of 2"]


def test_a_node_without_space_for_logs_reports_ranks_as_not_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "full").write_text("a file where folders should be made")
    monkeypatch.setenv("HEADWAY_LOGS", str(tmp_path / "full" / "logs"))

    async def scenario() -> None:
        async with node(tmp_path) as case:
            await case.until(lambda: len(case.of("beat")) == 3, "beats of a spare, which has made no standbys")
            case.start(1, moved=[[0, NODE]])
            await case.until(lambda: len(case.exits()) == 2, "the end of both ranks")
            assert {(each["code"], each["asked"]) for each in case.exits()} == {(-signal.SIGKILL, False)}
            assert all(each["how"].startswith("not started: [Errno 20]") for each in case.exits())
            assert len(case.of("join")) == 1

    asyncio.run(scenario())


def an_agent(tmp_path: Path, page: HeartbeatPage) -> Agent:
    return Agent(AgentState(config(), RunDirectory(tmp_path, 0), 0, "here", page), 0)


def test_worker_events_are_kept_up_to_the_limit_for_resending(tmp_path: Path) -> None:
    agent = an_agent(tmp_path, HeartbeatPage(memoryview(bytearray(1024))))

    async def scenario() -> None:
        agent._from_supervisor = asyncio.StreamReader()
        for step in range(10 * EVENTS_KEPT):
            agent._from_supervisor.feed_data(encode(WorkerEvent({"what": "committed", "step": step})))
        agent._from_supervisor.feed_eof()
        await agent._hear_supervisor()

    asyncio.run(scenario())
    assert [event["step"] for event in agent._state.events] == list(range(9 * EVENTS_KEPT, 10 * EVENTS_KEPT))


def test_without_a_heartbeat_a_worker_is_silent_since_its_generation_began(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = HeartbeatPage(memoryview(bytearray(1024)))
    agent = an_agent(tmp_path, page)
    monkeypatch.setattr(time, "monotonic", lambda: 5000.0)
    assert agent._search.silent_s() == float("inf")
    agent._state.workers = {rank: WorkerProcess(rank, rank, 1, 0) for rank in (0, 1)}
    agent._state.started = 4990.0
    assert agent._search.silent_s() == 10.0
    page.write(1, monotonic_ns=4997 * 10**9)
    assert agent._search.silent_s() == 3.0


@pytest.mark.parametrize(
    ("looks", "looked"),
    [
        pytest.param([["collective", "collective"]], 1, id="all wait in collectives"),
        pytest.param([["save", "collective"], ["collective"]], 2, id="one saves first"),
        pytest.param([["save", None]] * 6, 6, id="they save until their time is over"),
        pytest.param([[None], []], 2, id="they end"),
    ],
)
def test_ranks_may_save_after_a_failure_unless_all_wait_in_collectives(
    looks: list[list[str | None]], looked: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = an_agent(tmp_path, HeartbeatPage(memoryview(bytearray(1024))))
    now, asked, left = [0.0], list[Request](), list(looks)

    async def sleep(seconds: float) -> None:
        now[0] += seconds

    async def look(*_: object) -> dict[int, Probe]:
        return {rank: Probe("S", 0.0, 0, (), where) for rank, where in enumerate(left.pop(0))}

    monkeypatch.setattr(asyncio, "sleep", sleep)
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(probe, "look", look)
    monkeypatch.setattr(agent._ranks, "_ask", asked.append)
    asyncio.run(agent._ranks.end_unheard(4))
    assert len(looks) - len(left) == looked
    assert now[0] == looked * rank_processes.UNHEARD_S <= DEFAULT_TIMEOUTS["terminate"].floor_s
    assert asked == [KillWorkers(4, signal.SIGKILL)]


def test_a_rank_saves_at_sigterm_after_another_rank_failed(tmp_path: Path) -> None:
    script = """
    if [ "$RANK" = 0 ]; then while [ ! -e ready ]; do sleep 0.05; done; exit 3; fi
    trap 'while [ ! -e looked ]; do sleep 0.05; done; echo saved > saved; exit 7' TERM
    touch ready; while :; do sleep 0.05; done
    """

    async def scenario() -> dict[str, Any]:
        async with node(tmp_path, script=script) as case:
            case.start(1, moved=[[0, NODE]])
            await case.until(lambda: len(case.exits()) == 1, "the failure of rank 0")
            case.send("stop", 1, {})
            # Longer than until the first look at its activity.
            await asyncio.sleep(1.5 * rank_processes.UNHEARD_S)
            (tmp_path / "looked").touch()
            await case.until(lambda: len(case.exits()) == 2, "the end of rank 1")
            return case.exits()[1]

    assert asyncio.run(scenario())["code"] == 7
    assert (tmp_path / "saved").read_text() == "saved\n"


@pytest.mark.parametrize("section", [-1, len(SECTIONS), 1 << 40])
def test_an_overwritten_page_still_yields_a_heartbeat(section: int, tmp_path: Path) -> None:
    page = HeartbeatPage(memoryview(bytearray(1024)))
    page.write(0, step=3, section=section, pulse=7)
    agent = an_agent(tmp_path, page)
    assert agent._reports.heartbeat(0) == [3, "script", 7, None, None]


@pytest.mark.parametrize("told", ["assign", "start"])
def test_a_replaced_node_ends_its_workers(told: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with node(tmp_path) as case:
            await going(case)
            if told == "assign":
                case.send("assign", 2, {"slot": None})
            else:
                case.start(2, moved=[])  # slot 0 is on node 0
            await case.until(lambda: len(case.exits()) == 2, "the end of both ranks")
            assert {(each["code"], each["asked"]) for each in case.exits()} == {(-signal.SIGKILL, True)}
            await case.until(lambda: case.running() == set(), "a beat without ranks")

    asyncio.run(scenario())


def test_a_dead_agents_successor_keeps_workers_and_resends_their_exits(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with node(tmp_path) as case:
            await going(case)
            (tmp_path / "code").write_text("3")
            await case.until(lambda: len(case.exits()) == 1, "the end of rank 0")
            (agent,) = case.children("headway.runner.agent.main")
            os.kill(agent, signal.SIGKILL)
            await case.until(lambda: len(case.of("join")) == 2 and len(case.exits()) == 2, "another agent")
            assert case.of("join")[1]["running"] == [1]
            assert case.exits()[0] == case.exits()[1]

    asyncio.run(scenario())


def test_a_probe_shows_uninstrumented_processes(tmp_path: Path) -> None:
    async def scenario() -> dict[str, Any]:
        async with node(tmp_path) as case:
            await going(case)
            found: list[dict[str, Any]] = []
            # It may still be on its way to sleep.
            while not found or found[-1]["ranks"]["1"]["state"] != "S":
                case.send("probe", 1, {"ranks": [1]})
                seen = len(found)
                await case.until(lambda: len(case.of("evidence", "probe")) > seen, "a probe")  # noqa: B023  used at once
                found = case.of("evidence", "probe")
            ranks: dict[str, Any] = found[-1]["ranks"]
            return ranks

    found = asyncio.run(scenario())
    assert list(found) == ["1"]
    assert (found["1"]["state"], found["1"]["where"]) == ("S", None)


def test_a_node_without_a_coordinator_starts_one_and_ends_no_worker(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with node(tmp_path) as case:
            await going(case)
            case.leave()
            before = case.directory.coordinator.read_text()
            await case.until(lambda: bool(case.children("headway.runner.coordinator.main")), "a coordinator here")
            await case.until(lambda: case.directory.coordinator.read_text() != before, "a coordinator that listens")
            assert len((tmp_path / "ran").read_text().splitlines()) == 2
            assert case.exits() == []

    asyncio.run(scenario())


def test_without_a_shared_store_no_node_takes_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADWAY_SHARED_STORE", "0")

    async def scenario() -> int:
        async with node(tmp_path, timeouts={**DEFAULT_TIMEOUTS, "agent": Timeout(3.0)}) as case:
            case.send("assign", 0, {"slot": 0})
            await case.until(lambda: bool(case.of("beat")), "a beat")
            case.leave()
            return await case.ended()

    assert asyncio.run(scenario()) == Exit.RETRY_ELSEWHERE


def test_a_node_stopped_without_a_coordinator_exits_within_its_grace(tmp_path: Path) -> None:
    async def scenario() -> int:
        async with node(tmp_path, grace_s=1.5) as case:
            await going(case)
            case.process.send_signal(signal.SIGTERM)
            await case.until(lambda: bool(case.of("evidence", "preempted")), "word of the signal")
            return await case.ended()  # the coordinator does not respond

    assert asyncio.run(scenario()) == Exit.PREEMPTED
