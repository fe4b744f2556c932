"""Tests the coordinator's process over real connections, a real chain and a real run directory: terms, admission, verdicts, the journal."""

import asyncio
import json
import os
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from headway.runner.checkpoint.chain import Chain, Claim
from headway.runner.checkpoint.stores.posix import PosixStore
from headway.runner.contract import (
    Exit,
    Mesh,
    RunConfig,
    RunDirectory,
    Timeout,
    Trainer,
    Verdict,
    from_json,
    read_verdict,
    to_json,
)
from headway.runner.coordinator import claiming, main
from headway.runner.coordinator.admission import Admission
from headway.runner.coordinator.journal import Journal
from headway.runner.coordinator.main import Server, patiently, rebuilt
from headway.runner.coordinator.state import Phase
from headway.runner.coordinator.term import Term, newest
from headway.runner.lines import append_line, read_lines
from headway.runner.messages import Link, Message, connect
from headway.runner.posix import write_atomic
from headway.runner.rundir import open_run

HOST, WAIT_S = "127.0.0.1", 60.0
CONFIG = RunConfig(slots=2, procs_per_slot=1, mesh=Mesh(dp_shard=2), trainer=Trainer("script"), spec_hash="ab")


def opened(tmp_path: Path, config: RunConfig = CONFIG) -> tuple[RunConfig, RunDirectory]:
    directory = open_run(tmp_path, "job-0123abcd-1", config, 0)
    return from_json(RunConfig, directory.run_json.read_text()), directory


def server(config: RunConfig, directory: RunDirectory, node: int = 0) -> Server:
    assert config.run is not None
    chain = Chain(PosixStore(directory.chain), config.run)
    return Server(config, directory, HOST, node, chain, rebuilt(config, chain, directory))


def journal(directory: RunDirectory, kind: str) -> list[dict[str, Any]]:
    paths = sorted(directory.journal(0).parent.glob("*.jsonl"))
    return [line for path in paths for line, _ in read_lines(path) if line["kind"] == kind]


MET: "list[Agent]" = []


class Agent:
    """A node that uses the agents' protocol and runs nothing."""

    def __init__(self, config: RunConfig, directory: RunDirectory, node: int) -> None:
        self.config, self.directory, self.node = config, directory, node
        self.messages: asyncio.Queue[Message] = asyncio.Queue()
        self.ended = asyncio.Event()
        self.generation = 0
        self.links: list[Link] = []
        MET.append(self)

    async def meet(self) -> "Agent":
        address = json.loads(self.directory.coordinator.read_text())
        assert self.config.run is not None
        secret = self.directory.secret()
        self.link = await connect(address["host"], address["port"], secret, self.config.run, 0, self._heard, self._lost)
        self.links.append(self.link)
        return self

    def _heard(self, _: Link, message: Message) -> None:
        self.messages.put_nowait(message)

    def _lost(self, _link: Link, _why: str) -> None:
        self.ended.set()

    def send(self, kind: str, **body: Any) -> None:
        self.link.send(kind, self.generation, self.node, body)

    async def join(self, *running: int) -> "Agent":
        await self.meet()
        self.send("join", host=f"host-{self.node}", domain=None, running=list(running), port=4000 + self.node)
        return self

    async def until(self, kind: str) -> Message:
        while (message := await self.messages.get()).kind != kind:
            continue
        return message

    async def started(self) -> dict[str, Any]:
        message = await self.until("start")
        self.generation = message.generation
        return message.body

    def beat(self, rank: int, step: int, age_s: float = 0.0) -> None:
        self.send("beat", port=4100 + self.node, ranks={str(rank): [step, "compute", step, age_s, None]})

    def exits(self, rank: int, code: int, *, asked: bool = False) -> None:
        self.send(
            "exited", exits=[{"rank": rank, "code": code, "how": f"exit code {code}", "asked": asked, "step": 9, "oom": False}]
        )


def run(story: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def bounded() -> None:
        MET.clear()
        async with asyncio.timeout(WAIT_S):
            await story()
            for link in [link for agent in MET for link in agent.links]:
                link.close()
            for agent in MET:
                await agent.ended.wait()

    asyncio.run(bounded())


async def serving(config: RunConfig, directory: RunDirectory, term: int = 1, node: int = 0) -> "asyncio.Task[None]":
    """A server's task, once its address is in the run directory."""
    task = asyncio.create_task(server(config, directory, node).serve())
    while not task.done():
        with suppress(OSError):
            if json.loads(directory.coordinator.read_text())["term"] == term:
                break
        await asyncio.sleep(0.01)
    return task


async def stopped(task: "asyncio.Task[None]") -> None:
    task.cancel()
    await asyncio.wait({task})


# --- a run ------------------------------------------------------------------------------------------------------------


def test_two_nodes_join_start_and_finish(tmp_path: Path) -> None:
    config, directory = opened(tmp_path)

    async def story() -> None:
        task = await serving(config, directory)
        agents = [await Agent(config, directory, node).join() for node in (1, 0)]
        for agent in agents:
            body = await agent.started()
            assert (body["slots"], body["moved"], body["master_addr"], body["master_port"]) == (2, [], "host-0", 4000)
        for agent in agents:
            agent.beat(agent.node, 9)
            agent.exits(agent.node, 0)
        for agent in agents:
            assert (await agent.until("stop")).body == {"exit_code": 0}
            await agent.ended.wait()
        await task

    run(story)
    verdict = read_verdict(directory)
    assert verdict is not None
    assert (verdict.exit_code, verdict.generation, verdict.step) == (Exit.COMPLETED, 1, 9)
    assert [(line["slots"], line["moved"], line["world_size"]) for line in journal(directory, "start")] == [(2, [], 2)]
    (ledger,) = [line for line, _ in read_lines(directory.ledger)]
    assert (ledger["generation"], ledger["slots"], ledger["spares"]) == (1, 2, 0)


def test_a_disconnected_node_is_replaced_by_the_spare(tmp_path: Path) -> None:
    config, directory = opened(tmp_path, replace(CONFIG, spares=1, cluster="small"))

    async def story() -> None:
        task = await serving(config, directory)
        spare = await Agent(config, directory, 2).join()
        first, second = [await Agent(config, directory, node).join() for node in (0, 1)]
        for agent in (first, second, spare):
            await agent.started()
        second.link.close()
        first.exits(0, 1)
        first.beat(0, 9)
        body = await first.started()
        assert body["moved"] == [[1, 2]]
        assert (await spare.started()) == body
        first.exits(0, 0)
        spare.exits(1, 0)
        await task

    run(story)
    assert [(line["node"], line["host"]) for line in journal(directory, "lost")] == [(1, "host-1")]
    assert [(line["slot"], line["from"], line["to"]) for line in journal(directory, "rebound")] == [(1, 1, 2)]
    strikes = [line for line, _ in read_lines(tmp_path / "suspects" / "small.jsonl")]
    assert [(line["host"], line["kind"]) for line in strikes] == [("host-1", "node lost")]


def test_a_transient_fault_is_a_strike_against_its_host_and_ends_nothing(tmp_path: Path) -> None:
    config, directory = opened(tmp_path, replace(CONFIG, cluster="small"))
    note = {
        "what": "note",
        "kind": "transient",
        "rank": 0,
        "ranks": [1],
        "step": 3,
        "found": "rank 1 computed what no other rank did",
    }

    async def story() -> None:
        task = await serving(config, directory)
        first, second = [await Agent(config, directory, node).join() for node in (0, 1)]
        for agent in (first, second):
            await agent.started()
        first.link.send("evidence", first.generation, 0, note)
        first.exits(0, 0)
        second.exits(1, 0)
        await task

    run(story)
    assert [line["hosts"] for line in journal(directory, "transient")] == [["host-1"]]
    strikes = [line for line, _ in read_lines(tmp_path / "suspects" / "small.jsonl")]
    assert [(line["host"], line["kind"], line["weight"]) for line in strikes] == [("host-1", "corruption", 1.0)]


def test_an_invalid_message_ends_only_its_connection(tmp_path: Path) -> None:
    config, directory = opened(tmp_path)

    async def story() -> None:
        task = await serving(config, directory)
        for kind, body in (
            ("join", {}),
            ("beat", {"port": None, "ranks": {"0": [1, "elsewhere", 1, None, None]}}),
            ("beat", {"port": None, "ranks": {"0": [None, "compute", 1, None, None]}}),
            ("beat", {"port": None, "ranks": {"0": [1, "compute", 1 << 1100, 0.5, None]}}),
            ("beat", {"port": None, "ranks": {"0": [1, "compute", 1, float("inf"), None]}}),
            ("beat", {"port": None, "ranks": {"0": [1, "compute", 1, float("nan"), None]}}),
            ("beat", {"port": None, "ranks": 3}),
            ("exited", {"exits": [{"rank": 0}]}),
            ("evidence", {"what": "refused"}),
            ("evidence", {"what": "corrupted", "ranks": 3, "found": "x"}),
            ("evidence", {"what": "corrupted", "ranks": ["x"], "found": "x"}),
            ("evidence", {"what": "corrupted", "ranks": [0], "found": "x", "sound_step": []}),
            ("evidence", {"what": "corrupted", "ranks": [0], "found": "x", "sound_step": -1}),
            ("evidence", {"what": "corrupted", "ranks": [float("inf")], "found": "x"}),
            ("evidence", {"what": "probe", "ranks": {"0": {"state": "R"}}}),
            ("committed", {}),
        ):
            agent = await Agent(config, directory, 1).meet()
            agent.send(kind, **body)
            await agent.ended.wait()
        stranger = await Agent(config, directory, 0).join()
        await stranger.meet()
        stranger.node = 1
        stranger.beat(0, 1)
        await stranger.ended.wait()
        assert not task.done()
        await stopped(task)

    run(story)


# --- the coordinator in charge ----------------------------------------------------------------------------------------


def test_a_superseded_coordinator_exits_silently_and_the_next_continues(tmp_path: Path) -> None:
    config, directory = opened(tmp_path)

    async def story() -> None:
        before = await serving(config, directory)
        agents = [await Agent(config, directory, node).join() for node in (0, 1)]
        for agent in agents:
            await agent.started()
        for term in (2, 3):
            after = await serving(config, directory, term=term, node=1)
            again = [await Agent(config, directory, node).meet() for node in (0, 1)]
            for agent in again:
                agent.generation = 1
                agent.send("join", host=f"host-{agent.node}", domain=None, running=[agent.node], port=4000)
                assert (await agent.until("assign")).body["slot"] == agent.node
            # The previous coordinator may still receive a failure, but no longer decides.
            agents[0].exits(0, -9)
            await before
            before, agents = after, again
        for agent in again:
            agent.exits(agent.node, 0)
        await after

    run(story)
    verdict = read_verdict(directory)
    assert verdict is not None
    assert verdict.exit_code == Exit.COMPLETED
    for kind in ("takeover", "adopted"):
        assert [line["term"] for line in journal(directory, kind)] == [2, 3]
    records = Chain(PosixStore(directory.chain), "job-0123abcd-1").read()
    assert [record.generation for record in records if isinstance(record.entry, Claim)] == [1]


def test_agents_get_the_existing_verdict(tmp_path: Path) -> None:
    config, directory = opened(tmp_path)

    async def story() -> None:
        task = await serving(config, directory)
        agents = [await Agent(config, directory, node).join() for node in (0, 1)]
        for agent in agents:
            await agent.started()
        verdict = Verdict("job-0123abcd-1", 0, 1, "preempted", "decided elsewhere", int(Exit.PREEMPTED))
        write_atomic(directory.verdict, to_json(verdict).encode())
        for agent in agents:
            agent.exits(agent.node, 0)
        for agent in agents:
            assert (await agent.until("stop")).body == {"exit_code": Exit.PREEMPTED}
        await task

    run(story)


def test_a_coordinator_that_starts_during_a_store_outage_waits_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(main, "RETRY_S", 0.0)
    answers: list[Exception | str] = [OSError(116, "Stale file handle"), OSError(5, "Input/output error"), "there"]

    def store() -> str:
        if isinstance(answer := answers.pop(0), Exception):
            raise answer
        return answer

    assert patiently(store, patience_s=60.0) == "there"
    answers += [OSError(5, "Input/output error"), "there"]
    with pytest.raises(OSError, match="Input/output error"):
        patiently(store, patience_s=-1.0)
    assert answers == ["there"]


def test_terms_are_taken_once_and_only_the_newest_publishes_its_address(tmp_path: Path) -> None:
    _, directory = opened(tmp_path)
    assert newest(directory) == 0
    first, second = Term.take(directory, 0, "a"), Term.take(directory, 1, "b")
    assert (first.number, second.number, first.is_over(), second.is_over()) == (1, 2, True, False)
    assert not first.publish("a", 1)
    assert second.publish("b", 2)
    assert second.is_published("b", 2)
    assert not second.is_published("b", 3)
    assert json.loads(directory.coordinator.read_text()) == {"host": "b", "port": 2, "term": 2, "node": 1}


def test_a_term_has_the_time_since_the_first_one_started(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path, 0)
    first, second = Term.take(directory, 0, "a"), Term.take(directory, 1, "b")
    os.utime(directory.term(1), (1000.0, 1000.0))
    os.utime(directory.term(2), (1012.5, 1012.5))
    assert (first.age_of_first(), second.age_of_first()) == (0.0, 12.5)


def test_a_restarted_coordinator_has_binding_restarts_and_running_ranks(tmp_path: Path) -> None:
    config, directory = opened(tmp_path, replace(CONFIG, spares=1))
    chain = Chain(PosixStore(directory.chain), "job-0123abcd-1")
    chain.read()
    first: list[dict[str, Any]] = [
        {"kind": "start", "slots": 2, "moved": [], "world_size": 2, "nodes": [{"slot": 0, "node": 0, "host": "a"}]},
        {"kind": "failure", "cause": "exit code 1"},
    ]
    second: list[dict[str, Any]] = [{"kind": "start", "slots": 2, "moved": [[1, 2]], "world_size": 2, "nodes": []}]
    for generation, lines in ((1, first), (2, second)):
        chain.claim(None, 0, "test")
        texts = [json.dumps({"wall": 0.0, "generation": generation, "attempt": 0, **line}) for line in lines]
        directory.journal(generation).write_text("".join(f"{text}\n" for text in texts))
    machine = rebuilt(config, chain, directory)
    assert (machine.phase, machine.generation.number, machine.roster.slots) == (Phase.RUNNING, 2, {0: 0, 1: 2})
    assert (machine.policy.restarts, machine.roster.host(0), machine.roster.host(2)) == (1, "a", None)
    chain.claim(None, 0, "test")
    machine = rebuilt(config, chain, directory)
    assert (machine.phase, machine.generation.number, machine.roster.slots) == (Phase.GATHERING, 3, {0: 0, 1: 2})


# --- nodes that are admitted ------------------------------------------------------------------------------------------


def test_admitted_nodes_get_unused_indexes_and_a_proof_of_the_store(tmp_path: Path) -> None:
    config, directory = opened(tmp_path)

    async def story() -> None:
        task = await serving(config, directory)
        found = []
        for asked in (None, None, 7, None):
            agent = await Agent(config, directory, -1).meet()
            agent.send("enter", host="h", domain=None, node=asked, procs=1)
            body = (await agent.until("entered")).body
            path, content = body["proof"]
            assert (Path(body["root"]) / path).read_text() == content
            assert (body["attempt"], body["run"], body["run_json"]) == (0, config.run, directory.run_json.read_text())
            found.append(body["node"])
            agent.link.close()
        assert found == [1, 2, 7, 3]
        refused = await Agent(config, directory, -1).meet()
        refused.send("enter", host="h", domain=None, node=None, procs=8)
        assert (await refused.until("entered")).body == {"refused": "it has 8 processes per node; the run has 1"}
        await stopped(task)

    run(story)
    assert Admission(config, directory).admit({"node": None, "host": "h"})["node"] == 4, "another coordinator knows them too"


@pytest.mark.parametrize("taken", [True, False])
def test_an_index_that_is_already_published_is_not_assigned(tmp_path: Path, taken: bool) -> None:
    config, directory = opened(tmp_path)
    if taken:
        directory.node(1).write_text("{}")
    assert Admission(config, directory).admit({"node": None})["node"] == (2 if taken else 1)


@pytest.mark.parametrize("hanging", ["claim", "start", "verdict"])
def test_an_unresponsive_store_still_ends_the_nodes(hanging: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Like a hard mount whose server is gone: no call fails, and the waiting thread cannot be ended."""
    config, directory = opened(tmp_path, replace(CONFIG, timeouts={**CONFIG.timeouts, "store": Timeout(0.3)}))
    released = threading.Event()

    def hangs(name: str, original: Callable[..., Any], when: Callable[..., bool]) -> Callable[..., Any]:
        def work(*args: Any) -> Any:
            if hanging == name and when(*args):
                released.wait(WAIT_S)
            return original(*args)

        return work

    monkeypatch.setattr(main, "claim", hangs("claim", claiming.claim, lambda *_: True))
    monkeypatch.setattr(Journal, "note", hangs("start", Journal.note, lambda _self, _generation, line: line["kind"] == "start"))
    monkeypatch.setattr(Journal, "decide", hangs("verdict", Journal.decide, lambda *_: True))

    async def story() -> None:
        there = server(config, directory)
        task = asyncio.create_task(there.serve())
        while not directory.coordinator.exists():
            await asyncio.sleep(0.01)
        agents = [await Agent(config, directory, node).join() for node in (0, 1)]
        if hanging == "verdict":
            for rank, agent in enumerate(agents):
                await agent.started()
                agent.exits(rank, 0)
        codes = {(await agent.until("stop")).body["exit_code"] for agent in agents}
        assert codes == {Exit.COMPLETED if hanging == "verdict" else Exit.RETRY_ELSEWHERE}
        await task
        assert there.store_hangs
        assert read_verdict(directory) is None

    try:
        run(story)
    finally:
        released.set()


def test_the_next_coordinator_has_the_nodes_with_undying_ranks(tmp_path: Path) -> None:
    config, directory = opened(tmp_path)
    assert config.run is not None
    Chain(PosixStore(directory.chain), config.run).claim(None, directory.attempt, "a coordinator before")
    lost = {"wall": 1.0, "kind": "lost", "generation": 1, "attempt": 0, "node": 1, "host": "n1", "why": "", "undying": [1]}
    append_line(directory.journal(1), lost)
    assert server(config, directory)._machine.roster.unfit == {1}


def test_earlier_attempts_without_progress_count_unless_damaged(tmp_path: Path) -> None:
    for attempt in range(2):
        before = open_run(tmp_path, "job-0123abcd-1", CONFIG, attempt, hosts=["a", "b"])
        before.job.write_text("7\n")
        before.node(1).write_text('{"host": "b"}')
        verdict = Verdict("job-0123abcd-1", attempt, 1, "retry_elsewhere", "lost", 81, suspects=(1,))
        before.verdict.write_text(to_json(verdict))
    directory = open_run(tmp_path, "job-0123abcd-1", CONFIG, 2)
    directory.job.write_text("7\n")
    directory.excused.touch()
    config = from_json(RunConfig, directory.run_json.read_text())
    chain = Chain(PosixStore(directory.chain), "job-0123abcd-1")
    machine = rebuilt(config, chain, directory)
    assert (machine.fruitless, machine.excluded, machine.is_excused) == (1, frozenset({"b"}), True)
    before.node(1).write_text("{")
    machine = rebuilt(config, chain, directory)
    assert (machine.fruitless, machine.excluded) == (0, frozenset())
