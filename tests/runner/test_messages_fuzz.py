"""Tests 10,000 messages that no agent or coordinator of the run would send: they change, stop and keep nothing."""

import asyncio
import json
import os
import random
import resource
import socket
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from headway.runner import messages
from headway.runner.checkpoint.chain import Chain
from headway.runner.checkpoint.stores.posix import PosixStore
from headway.runner.contract import Exit, Mesh, RunConfig, RunDirectory, Trainer, read_verdict
from headway.runner.coordinator.machine import Coordinator
from headway.runner.coordinator.main import Server, rebuilt
from headway.runner.coordinator.state import Phase
from headway.runner.messages import CHALLENGE_BYTES, MAX_LINE_BYTES, ChannelError, Link, Message, Side, connect
from headway.runner.rundir import open_run

HOST, RUN, NODES = "127.0.0.1", "fuzz", 2
AGAINST_COORDINATOR, AGAINST_AGENT, AT_ONCE = 7000, 3000, 50
GROWTH_BYTES = 64 << 20


class Lines:
    """The bytes that a peer could send on one connection, with or without the secret."""

    def __init__(self, secret: bytes, agents: bytes, coordinators: bytes, seed: int) -> None:
        self.random = random.Random(seed)
        self._secret = secret
        self._challenges = agents + coordinators

    def signed(self, raw: bytes, side: Side, secret: bytes | None = None) -> bytes:
        return messages._mac(secret or self._secret, side.encode() + b"\0" + self._challenges + raw) + b" " + raw + b"\n"

    def message(self, side: Side, secret: bytes | None = None, **changes: Any) -> bytes:
        kind, body = (
            ("beat", {"port": 1, "ranks": {"0": [9999, "compute", 9, 0.1, None]}})
            if side == "agent"
            else ("stop", {"exit_code": 83})
        )
        fields = {"run": RUN, "generation": 1, "node": 0, "incarnation": 0, "seq": 0, "kind": kind, "body": body}
        return self.signed(json.dumps({**fields, **changes}).encode(), side, secret)

    def flipped(self, line: bytes) -> bytes:
        changed = bytearray(line)
        changed[self.random.randrange(len(line) - 1)] ^= 1 << self.random.randrange(8)
        return bytes(changed)

    def cut(self, line: bytes) -> bytes:
        return line[: self.random.randrange(len(line) - 1)]


Attack = Callable[[Lines, Side, bytes], bytes]

OTHER_TYPES: tuple[dict[str, Any], ...] = ({"node": "0"}, {"body": []}, {"seq": None})
# Bytes in place of a challenge.
BEFORE: Mapping[str, Attack] = {
    "nothing": lambda _, __, ___: b"",
    "noise": lambda lines, _, __: lines.random.randbytes(lines.random.randrange(1, 5000)),
    "http": lambda _, __, ___: b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n",
    "no end": lambda lines, _, __: b"0" * lines.random.randrange(33, 1 << 17),
    "another length": lambda lines, _, __: lines.random.randbytes(lines.random.choice([8, 15, 17, 64])).hex().encode() + b"\n",
    "half a challenge": lambda lines, _, __: b"ab" * lines.random.randrange(1, 16),
    "a line at once": lambda lines, side, _: lines.message(side),
}
# Bytes after a valid challenge. The third argument is a line that was authentic on another connection.
AFTER: Mapping[str, Attack] = {
    "noise": lambda lines, _, __: lines.random.randbytes(lines.random.randrange(1, 5000)) + b"\n",
    "not signed": lambda lines, side, _: lines.message(side).partition(b" ")[2],
    "another secret": lambda lines, side, _: lines.message(side, lines.random.randbytes(32)),
    "another run": lambda lines, side, _: lines.message(side, run="fuzz-2"),
    "replayed": lambda _, __, line: line,
    "sent twice": lambda lines, side, _: 2 * lines.message(side, kind="beat" if side == "agent" else "welcome", body={}),
    "flipped": lambda lines, side, _: lines.flipped(lines.message(side)),
    "cut": lambda lines, side, _: lines.cut(lines.message(side)),
    "cut and ended": lambda lines, side, _: lines.cut(lines.message(side)) + b"\n",
    "out of order": lambda lines, side, _: lines.message(side, seq=1) + lines.message(side, seq=0),
    "the other part": lambda lines, side, _: lines.message("coordinator" if side == "agent" else "agent"),
    "a kind of the other side": lambda lines, side, _: lines.message(side, kind="stop" if side == "agent" else "beat"),
    "an unknown kind": lambda lines, side, _: lines.message(side, kind="shell", body={"run": "rm"}),
    "too long": lambda lines, side, _: lines.message(side, body={"text": "a" * lines.random.choice([5000, 70000])}, seq=1),
    "no record": lambda lines, side, _: lines.signed(
        lines.random.choice([b"", b"[]", b"{", b"null", b"\xff", b"[" * 3000]), side
    ),
    "other fields": lambda lines, side, _: lines.message(side, None, **{lines.random.choice(["x", "mac", "to"]): 1}),
    "other types": lambda lines, side, _: lines.message(side, **lines.random.choice(OTHER_TYPES)),
}
# Authentic and well-formed, but not a message of an agent.
NONSENSE: tuple[dict[str, Any], ...] = (
    {"kind": "join", "body": {}},
    {"kind": "join", "body": {"host": "x", "running": 7, "port": None}},
    {"kind": "beat", "body": {"port": 1, "ranks": {"0": [1, "elsewhere", 1, 1, 1]}}},
    {"kind": "exited", "body": {"exits": [{"rank": 0, "code": 1, "how": "", "asked": False, "step": 0, "oom": False}]}},
    {"kind": "exited", "body": {"exits": 3}},
    {"kind": "evidence", "body": {"what": "preempted"}},
    {"kind": "evidence", "body": {"what": "exception"}},
    {"kind": "committed", "body": {"step": "x"}},
)


@pytest.fixture
def directory(tmp_path: Path) -> RunDirectory:
    config = RunConfig(NODES, 1, Mesh(dp_replicate=NODES), Trainer("builtin"), "0" * 16)
    return open_run(tmp_path, RUN, config, 1)


class Honest:
    """A well-behaved agent of a node."""

    def __init__(self, node: int) -> None:
        self.node, self.generation = node, 0
        self.lost: list[str] = []
        self.started, self.stopped = asyncio.Event(), asyncio.Event()

    async def join(self, directory: RunDirectory, port: int) -> None:
        self.link = await connect(HOST, port, directory.secret(), RUN, 0, self._heard, lambda _, why: self.lost.append(why))
        self._send("join", {"host": f"node{self.node}", "domain": None, "running": [], "port": 1000})
        await asyncio.wait_for(self.started.wait(), 60)

    def beat(self, port: int) -> None:
        self._send("beat", {"port": port, "ranks": {self.node: [5, "compute", 5, 0.1, None]}})

    def finish(self) -> None:
        facts = {"rank": self.node, "code": 0, "how": "exit code 0", "asked": False, "step": 5, "oom": False}
        self._send("exited", {"exits": [facts]})

    def _send(self, kind: str, body: Mapping[str, Any]) -> None:
        self.link.send(kind, self.generation, self.node, body)

    def _heard(self, _: Link, message: Message) -> None:
        self.generation = message.generation
        if message.kind == "start":
            self.started.set()
        if message.kind == "stop":
            self.stopped.set()


def state(machine: Coordinator) -> dict[str, Any]:
    """All decisions and beliefs of the machine, except times and the sockets that the honest heartbeats name."""
    generation = machine.generation
    members = {node: (each.host, each.generation, each.connected, each.lost) for node, each in machine.roster.members.items()}
    return {
        "phase": machine.phase,
        "generation": (generation.number, generation.alive, generation.exits, generation.raised, generation.best_step),
        "refused": (machine.refused, generation.refused, generation.committed, machine.preempting, machine.verdict),
        "members": members,
        "slots": machine.roster.slots,
        "policy": (machine.policy.restarts, machine.policy.budget),
    }


async def until(what: Callable[[], Any]) -> None:
    async with asyncio.timeout(60):
        while not what():
            await asyncio.sleep(0.01)


def _rss_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


# --- attacks on the coordinator ---------------------------------------------------------------------------------------


async def strike(port: int, secret: bytes, seed: int, replayed: bytes) -> str:
    """Make one connection to the coordinator with one attack and wait until the coordinator ends it. Return the attack's name."""
    reader, writer = await asyncio.open_connection(HOST, port)
    try:
        theirs = bytes.fromhex((await reader.readline()).decode())
        mine = random.Random(seed).randbytes(CHALLENGE_BYTES)
        lines = Lines(secret, mine, theirs, seed)
        name, data = _attack(lines, mine, replayed)
        writer.write(data)
        writer.write_eof()
        async with asyncio.timeout(60):
            await reader.read()
        return name
    # Its unread bytes are lost with the connection.
    except ConnectionError:
        return "reset"
    finally:
        writer.close()


def _attack(lines: Lines, mine: bytes, replayed: bytes) -> tuple[str, bytes]:
    hello = mine.hex().encode() + b"\n"
    which = lines.random.choice([BEFORE, AFTER, AFTER, None])
    if which is None:
        return "nonsense", hello + lines.message("agent", **lines.random.choice(NONSENSE))
    name = lines.random.choice(list(which))
    return name, (hello if which is AFTER else b"") + which[name](lines, "agent", replayed)


@pytest.mark.slow
def test_hostile_messages_neither_change_nor_stop_a_coordinator(
    directory: RunDirectory, caplog: pytest.LogCaptureFixture
) -> None:
    config = RunConfig(NODES, 1, Mesh(dp_replicate=NODES), Trainer("builtin"), "0" * 16, run=RUN)
    secret = directory.secret()

    async def scenario() -> None:
        chain = Chain(PosixStore(directory.chain), RUN)
        machine = rebuilt(config, chain, directory)
        server = Server(config, directory, HOST, 0, chain, machine)
        serving = asyncio.create_task(server.serve())
        await until(directory.coordinator.exists)
        port = json.loads(directory.coordinator.read_text())["port"]
        honest = [Honest(node) for node in range(NODES)]
        await asyncio.gather(*(each.join(directory, port) for each in honest))
        for each in honest:
            each.beat(2000)
        await until(lambda: [machine.roster.members[node].port for node in range(NODES)] == NODES * [2000])
        before, rss = state(machine), _rss_bytes()
        assert before["phase"] is Phase.RUNNING
        replayed = Lines(secret, b"a" * 16, b"b" * 16, 0).message("agent")
        met: set[str] = set()
        for first in range(0, AGAINST_COORDINATOR, AT_ONCE):
            met.update(await asyncio.gather(*(strike(port, secret, first + i, replayed) for i in range(AT_ONCE))))
            for each in honest:
                each.beat(3000 + first)
        await until(lambda: [machine.roster.members[node].port for node in range(NODES)] == NODES * [3000 + first])
        assert met >= {*BEFORE, *AFTER, "nonsense"}
        assert state(machine) == before
        assert _rss_bytes() - rss < GROWTH_BYTES
        await until(lambda: not server._listener.half_open)
        assert [each.lost for each in honest] == [[], []]
        for each in honest:
            each.finish()
        await asyncio.wait_for(serving, 60)
        for each in honest:
            await asyncio.wait_for(each.stopped.wait(), 60)
            each.link.close()

    asyncio.run(scenario())
    verdict = read_verdict(directory)
    assert verdict is not None
    assert verdict.exit_code == Exit.COMPLETED
    said = caplog.messages
    assert 0 < sum(line.startswith("refused a connection") for line in said) < AGAINST_COORDINATOR / 10


# --- attacks on an agent ----------------------------------------------------------------------------------------------


def _rogue(secret: bytes, seeds: Iterator[int]) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], Any]:
    """A hostile server at a coordinator's former address."""
    replayed = Lines(secret, b"a" * 16, b"b" * 16, 0).message("coordinator")

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seed = next(seeds)
        mine = random.Random(seed).randbytes(CHALLENGE_BYTES)
        try:
            theirs = bytes.fromhex((await reader.readline()).decode())
            lines = Lines(secret, theirs, mine, seed)
            which = lines.random.choice([BEFORE, AFTER, AFTER])
            name = lines.random.choice(list(which))
            hello = mine.hex().encode() + b"\n" if which is AFTER else b""
            writer.write(hello + which[name](lines, "coordinator", replayed))
            if seed % 500 == 0:
                writer.write(b"a" * (MAX_LINE_BYTES + 1))
            await writer.drain()
        except ConnectionError:
            pass
        finally:
            writer.close()

    return serve


@pytest.mark.slow
def test_hostile_messages_to_an_agent_are_ignored_and_do_not_stop_its_link(directory: RunDirectory) -> None:
    secret, heard, ended = directory.secret(), list[Message](), list[str]()

    async def attempt(port: int) -> None:
        """Connect and, if that works, join, as an agent does."""
        over = asyncio.Event()

        def lost(_: Link, why: str) -> None:
            ended.append(why)
            over.set()

        try:
            link = await connect(HOST, port, secret, RUN, 0, lambda _, message: heard.append(message), lost)
        except (ChannelError, OSError) as error:
            ended.append(str(error))
            return
        link.send("join", 0, 0, {})
        await asyncio.wait_for(over.wait(), 60)

    async def scenario() -> None:
        ours: list[Message] = []
        listener = await messages.listen(HOST, 0, secret, RUN, lambda _, message: ours.append(message), lambda _, __: None)
        honest = await connect(HOST, listener.port, secret, RUN, 0, lambda _, message: heard.append(message), lambda _, __: None)
        rogue = await asyncio.start_server(_rogue(secret, iter(range(AGAINST_AGENT))), HOST, 0)
        port, rss = rogue.sockets[0].getsockname()[1], _rss_bytes()
        async with rogue:
            for _ in range(0, AGAINST_AGENT, AT_ONCE):
                await asyncio.gather(*(attempt(port) for _ in range(AT_ONCE)))
                honest.send("beat", 0, 0, {})
        await until(lambda: len(ours) == AGAINST_AGENT / AT_ONCE)
        assert not honest.closed
        assert (len(ended), heard) == (AGAINST_AGENT, [])
        assert _rss_bytes() - rss < GROWTH_BYTES
        honest.close()
        listener.close()

    asyncio.run(scenario())


def test_a_listener_that_ran_out_of_file_descriptors_listens_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Using up descriptors blocks others only until one is free again."""
    monkeypatch.setattr(messages, "OUT_OF_FILES_S", 0.05)

    async def scenario() -> None:
        listener = await messages.listen(HOST, 0, b"k", RUN, lambda _, __: None, lambda _, __: None)
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        with socket.create_connection((HOST, listener.port)) as waiting:
            waiting.setblocking(False)
            try:
                resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))
                listener._accept()
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, limits)
            assert "Too many open files" in caplog.text
            challenge = await asyncio.wait_for(asyncio.get_running_loop().sock_recv(waiting, 100), 20)
            assert len(challenge) == 2 * CHALLENGE_BYTES + 1
        listener.close()

    asyncio.run(scenario())
