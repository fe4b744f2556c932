"""Tests links over real loopback sockets: messages arrive, and an unauthenticated line never becomes a Message."""

import asyncio
import contextlib
import json
import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from headway.runner import messages
from headway.runner.messages import (
    CHALLENGE_BYTES,
    FIRST_LINE_BYTES,
    MAX_LINE_BYTES,
    ChannelError,
    Link,
    Listener,
    Message,
    Refusals,
    Side,
    broadcast,
    connect,
    flush,
    listen,
)

SECRET, RUN, HOST = b"k" * 32, "run-1", "127.0.0.1"
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@dataclass
class End:
    """One end of links: the messages that it receives, and how its links end."""

    heard: list[Message] = field(default_factory=list)
    links: list[Link] = field(default_factory=list)
    said: asyncio.Queue[Message] = field(default_factory=asyncio.Queue)
    lost: asyncio.Queue[str] = field(default_factory=asyncio.Queue)

    def hear(self, link: Link, message: Message) -> None:
        if link not in self.links:
            self.links.append(link)
        self.heard.append(message)
        self.said.put_nowait(message)

    def lose(self, link: Link, why: str) -> None:
        assert link.closed
        self.lost.put_nowait(why)

    async def next(self) -> Message:
        return await asyncio.wait_for(self.said.get(), 20)

    async def end(self) -> str:
        return await asyncio.wait_for(self.lost.get(), 20)


@dataclass
class Coordinator(End):
    """A listening coordinator."""

    port: int = 0
    refusals: asyncio.Queue[str] = field(default_factory=asyncio.Queue)

    async def refusal(self) -> str:
        return await asyncio.wait_for(self.refusals.get(), 20)


class Recorded(Refusals):
    def __init__(self, into: asyncio.Queue[str]) -> None:
        self._into = into

    def say(self, peer: Any, why: str) -> None:
        self._into.put_nowait(why)


@asynccontextmanager
async def listening() -> AsyncIterator[Coordinator]:
    coordinator = Coordinator()
    listener = await listen(HOST, 0, SECRET, RUN, coordinator.hear, coordinator.lose)
    listener.refusals = Recorded(coordinator.refusals)
    coordinator.port = listener.port
    try:
        yield coordinator
    finally:
        listener.close()
        for link in coordinator.links:
            link.close()


@asynccontextmanager
async def answering(first: bytes) -> AsyncIterator[int]:
    """The port of a server that sends fixed bytes to one peer, and reads until it closes."""
    closed = asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            writer.write(first)
            await reader.read()
            writer.close()
            await writer.wait_closed()
        closed.set()

    server = await asyncio.start_server(answer, HOST, 0)
    async with server:
        yield server.sockets[0].getsockname()[1]
        await asyncio.wait_for(closed.wait(), 20)


@asynccontextmanager
async def streams(port: int) -> AsyncIterator[Streams]:
    reader, writer = await asyncio.open_connection(HOST, port)
    try:
        yield reader, writer
    finally:
        writer.close()
        await asyncio.gather(writer.wait_closed(), return_exceptions=True)


@asynccontextmanager
async def agent(port: int, end: End | None = None, secret: bytes = SECRET, run: str = RUN) -> AsyncIterator[Link]:
    end = end or End()
    link = await connect(HOST, port, secret, run, 3, end.hear, end.lose)
    try:
        yield link
    finally:
        link.close()


@dataclass
class Stranger:
    """Implements the protocol byte by byte."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    covered: dict[Side, bytes]

    def line(self, raw: bytes, side: Side = "agent", secret: bytes = SECRET) -> bytes:
        return messages._mac(secret, self.covered[side] + raw) + b" " + raw + b"\n"

    def message(self, side: Side = "agent", secret: bytes = SECRET, **changes: Any) -> bytes:
        """An authentic line, with some fields changed before it was signed."""
        fields = {"run": RUN, "generation": 1, "node": 0, "incarnation": 0, "seq": 0, "kind": "beat", "body": {}}
        return self.line(json.dumps({**fields, **changes}).encode(), side, secret)


@asynccontextmanager
async def stranger(port: int) -> AsyncIterator[Stranger]:
    async with streams(port) as (reader, writer):
        mine = b"\x07" * CHALLENGE_BYTES
        writer.write(mine.hex().encode() + b"\n")
        theirs = bytes.fromhex((await reader.readline()).decode())
        covered: dict[Side, bytes] = {
            "agent": b"agent\0" + mine + theirs,
            "coordinator": b"coordinator\0" + mine + theirs,
        }
        assert json.loads((await reader.readline()).partition(b" ")[2])["kind"] == "welcome"
        yield Stranger(reader, writer, covered)


def refused(attack: Callable[[Stranger], bytes], heard: int = 0) -> str:
    """Send the bytes of `attack` on a connection; return why the coordinator ended it. An honest agent continues in parallel."""

    async def scenario() -> str:
        async with listening() as coordinator, agent(coordinator.port) as honest, stranger(coordinator.port) as other:
            honest.send("join", 1, 9, {})
            await coordinator.next()
            other.writer.write(attack(other))
            reason = await coordinator.refusal()
            assert await asyncio.wait_for(other.reader.read(), 20) == b""
            honest.send("beat", 1, 9, {})
            while (await coordinator.next()).node != 9:
                pass
            assert [message.kind for message in coordinator.heard if message.node == 9] == ["join", "beat"]
            assert len(coordinator.heard) == 2 + heard
            return reason

    return asyncio.run(scenario())


# --- normal operation -------------------------------------------------------------------------------------------------


def test_messages_arrive_in_order_in_both_directions() -> None:
    async def scenario() -> tuple[list[Message], Message]:
        ours = End()
        async with listening() as coordinator, agent(coordinator.port, ours) as link:
            for number in range(5):
                link.send("beat", 2, 7, {"number": number, "text": "é\n"})
            for _ in range(5):
                await coordinator.next()
            coordinator.links[0].send("start", 3, 7, {"base": None})
            answer = await ours.next()
            link.close()
            assert await coordinator.end() == "the peer has ended the connection"
            assert await ours.end() == "closed here"
            return coordinator.heard, answer

    received, answer = asyncio.run(scenario())
    assert received == [Message(RUN, 2, 7, 3, n, "beat", {"number": n, "text": "é\n"}) for n in range(5)]
    assert answer == Message(RUN, 3, 7, 0, 1, "start", {"base": None})


@pytest.mark.parametrize("said", [{"text": "no file \udc80\udcff.bin"}, {"loss": float("inf")}, {"seed": (1 << 80) + 1}])
def test_values_that_json_does_not_support_arrive_unchanged(said: dict[str, Any]) -> None:
    async def scenario() -> list[dict[str, Any]]:
        async with listening() as coordinator, agent(coordinator.port) as link:
            link.send("evidence", 2, 7, said)
            link.send("beat", 2, 7, {})
            return [(await coordinator.next()).body for _ in range(2)]

    assert asyncio.run(scenario()) == [said, {}]


def test_a_long_message_arrives_complete_and_so_does_the_next() -> None:
    text = "a" * (MAX_LINE_BYTES - 200)

    async def scenario() -> None:
        async with listening() as coordinator, agent(coordinator.port) as link:
            link.send("join", 0, 0, {})
            link.send("evidence", 0, 0, {"text": text})
            link.send("beat", 0, 0, {})
            await flush([link])
            assert link.unsent_bytes == 0
            assert [(await coordinator.next()).body for _ in range(3)] == [{}, {"text": text}, {}]

    asyncio.run(scenario())


def test_a_message_too_long_for_the_peer_is_dropped_and_the_next_arrives(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        async with listening() as coordinator, agent(coordinator.port) as link:
            link.send("join", 0, 0, {})
            link.send("evidence", 0, 0, {"text": "a" * MAX_LINE_BYTES})
            link.send("beat", 0, 0, {})
            assert [(await coordinator.next()).kind for _ in range(2)] == ["join", "beat"]

    asyncio.run(scenario())
    assert caplog.messages[0].startswith("a message 'evidence' of 4194")


def test_a_broadcast_reaches_every_link_with_its_node_and_number() -> None:
    async def scenario() -> None:
        ends = [End() for _ in range(3)]
        async with listening() as coordinator:
            agents = [await connect(HOST, coordinator.port, SECRET, RUN, 0, end.hear, end.lose) for end in ends]
            for node, link in enumerate(agents):
                link.send("join", 0, node, {})
                assert (await coordinator.next()).node == node
            coordinator.links[1].send("assign", 0, 1, {})
            broadcast(zip(coordinator.links, range(3), strict=True), "start", 4, {"slots": 3})
            await ends[1].next()
            heard = [await end.next() for end in ends]
            assert heard == [Message(RUN, 4, node, 0, 1 + (node == 1), "start", {"slots": 3}) for node in range(3)]
            for link in agents:
                link.close()

    asyncio.run(scenario())


def test_an_ended_link_is_reported_lost_once_and_accepts_no_more() -> None:
    async def scenario() -> None:
        ours = End()
        async with listening() as coordinator, agent(coordinator.port, ours) as link:
            link.send("join", 0, 0, {})
            await coordinator.next()
            coordinator.links[0].close()
            assert ours.lost.empty()
            assert await ours.end() == "the peer has ended the connection"
            assert await coordinator.end() == "closed here"
            link.send("beat", 0, 0, {})
            link.close()
            coordinator.links[0].close()
            await asyncio.sleep(0)
            assert (link.closed, ours.lost.empty(), coordinator.lost.empty()) == (True, True, True)

    asyncio.run(scenario())


def test_messages_sent_before_a_close_still_arrive() -> None:
    async def scenario() -> None:
        async with listening() as coordinator, agent(coordinator.port) as link:
            link.send("join", 0, 0, {})
            sent = 0
            while not link.unsent_bytes:
                link.send("evidence", 0, 0, {"text": "a" * (MAX_LINE_BYTES - 200)})
                sent += 1
            link.close()
            assert [(await coordinator.next()).kind for _ in range(1 + sent)] == ["join", *sent * ["evidence"]]

    asyncio.run(scenario())


def test_a_refused_message_ends_only_its_connection() -> None:
    async def scenario() -> None:
        ends = End()

        def hear(link: Link, message: Message) -> None:
            if message.node == 1:
                raise ChannelError("node 1 does not belong here")
            ends.hear(link, message)

        listener = await listen(HOST, 0, SECRET, RUN, hear, ends.lose)
        async with agent(listener.port) as honest, agent(listener.port) as other:
            honest.send("join", 0, 0, {})
            await ends.next()
            other.send("join", 0, 1, {})
            other.send("beat", 0, 0, {})
            assert await ends.end() == "node 1 does not belong here"
            honest.send("beat", 0, 0, {})
            assert (await ends.next()).kind == "beat"
            assert len(ends.heard) == 2
        listener.close()

    asyncio.run(scenario())


def test_a_host_may_be_a_name() -> None:
    async def scenario() -> None:
        end = End()
        listener = await listen("localhost", 0, SECRET, RUN, end.hear, end.lose)
        link = await connect("localhost", listener.port, SECRET, RUN, 0, end.hear, end.lose)
        link.send("join", 0, 0, {})
        assert (await end.next()).kind == "join"
        link.close()
        listener.close()
        await end.end()
        await end.end()

    asyncio.run(scenario())


def test_a_port_without_a_listener_is_reported() -> None:
    with socket.create_server((HOST, 0)) as sock:
        port = sock.getsockname()[1]
    with pytest.raises(ConnectionRefusedError):
        asyncio.run(connect(HOST, port, SECRET, RUN, 0, End().hear, End().lose))


# --- peers that do not read -------------------------------------------------------------------------------------------


async def _deaf(listener: Listener, end: End) -> tuple[Link, socket.socket]:
    """A link of the coordinator's whose peer never reads again."""
    link = await connect(HOST, listener.port, SECRET, RUN, 0, End().hear, End().lose)
    link.send("join", 0, 0, {})
    await end.next()
    sock: socket.socket = link._socket
    asyncio.get_running_loop().remove_reader(sock.fileno())
    return end.links[-1], sock


def test_a_peer_that_does_not_read_is_given_up_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> str:
        end = End()
        listener = await listen(HOST, 0, SECRET, RUN, end.hear, end.lose)
        link, sock = await _deaf(listener, end)
        # Not before it is connected: on a busy machine the kernel would end the connection.
        monkeypatch.setattr(messages, "SEND_S", 0.05)
        while not link.unsent_bytes:
            assert not link.closed
            link.send("start", 1, 0, {"text": "a" * (1 << 20)})
        why = await end.end()
        assert link.closed
        listener.close()
        sock.close()
        return why

    assert asyncio.run(scenario()) == "the peer has not drained its connection for 0.05 s"


def test_the_queue_for_a_peer_that_does_not_read_is_bounded() -> None:
    async def scenario() -> None:
        end = End()
        listener = await listen(HOST, 0, SECRET, RUN, end.hear, end.lose)
        link, sock = await _deaf(listener, end)
        most = 0
        for _ in range(100):
            link.send("start", 1, 0, {"text": "a" * (1 << 20)})
            most = max(most, link.unsent_bytes)
        assert link.closed
        assert most <= messages.MAX_UNSENT_BYTES + (1 << 20) + 4096
        assert (await end.end()).endswith("bytes unread")
        listener.close()
        sock.close()

    asyncio.run(scenario())


# --- unauthenticated peers --------------------------------------------------------------------------------------------


def test_another_secret_is_refused() -> None:
    assert "mac" in refused(lambda other: other.message(secret=b"x" * 32))


def test_another_run_with_the_same_secret_is_refused() -> None:
    assert "'run-2'" in refused(lambda other: other.message(run="run-2"))


def test_a_peer_that_claims_the_same_role_is_refused() -> None:
    assert "mac" in refused(lambda other: other.message("coordinator", kind="start"))


def test_a_kind_of_the_other_direction_is_refused() -> None:
    assert refused(lambda other: other.message(kind="start")) == "unexpected message 'start' number 0 of run 'run-1'"


@pytest.mark.parametrize(
    "first",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\n",
        b"zz\n",
        b"ab" * (CHALLENGE_BYTES - 1) + b"\n",
        b"ab" * (CHALLENGE_BYTES + 1) + b"\n",
        b"ab " * 10 + b"ab\n",
        "é".encode() + b"\n",
        b"\x80\n",
        b"a" * 33,
        b"a" * (1 << 20),
    ],
    ids=["http", "empty", "not hex", "short", "long", "spaced", "not ascii", "not utf-8", "no end", "no end for long"],
)
def test_a_peer_that_sends_no_challenge_is_refused(first: bytes) -> None:
    async def scenario() -> str:
        async with listening() as coordinator, streams(coordinator.port) as (_, writer):
            writer.write(first)
            return await coordinator.refusal()

    reason = asyncio.run(scenario())
    assert "no handshake" in reason or reason == "a line of more than 32 bytes"


def test_an_unauthenticated_peer_cannot_send_a_long_line() -> None:
    assert refused(lambda other: b"a" * (FIRST_LINE_BYTES + 1)) == "a line of more than 4096 bytes"
    assert refused(lambda other: other.message(body={"text": "a" * FIRST_LINE_BYTES})) == "a line of more than 4096 bytes"


def test_an_agent_cannot_send_a_line_beyond_the_limit() -> None:
    long = {"text": "a" * MAX_LINE_BYTES}
    reason = refused(lambda other: other.message() + other.message(seq=1, body=long), heard=1)
    assert reason == f"a line of more than {MAX_LINE_BYTES} bytes"


def test_a_silent_peer_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "HANDSHAKE_S", 0.05)

    async def scenario() -> str:
        async with listening() as coordinator, streams(coordinator.port):
            return await coordinator.refusal()

    assert asyncio.run(scenario()) == "no authenticated message within 0.05 s"


def test_a_peer_that_sends_no_proof_after_its_challenge_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "HANDSHAKE_S", 0.05)

    async def scenario() -> str:
        async with listening() as coordinator, stranger(coordinator.port):
            return await coordinator.refusal()

    assert asyncio.run(scenario()) == "no authenticated message within 0.05 s"


def test_an_agent_gives_up_a_peer_that_does_not_respond(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another program may listen where a coordinator did before."""
    monkeypatch.setattr(messages, "HANDSHAKE_S", 0.05)

    async def scenario() -> None:
        with socket.create_server((HOST, 0)) as silent, pytest.raises(ChannelError, match="no handshake with 127"):
            await connect(HOST, silent.getsockname()[1], SECRET, RUN, 0, End().hear, End().lose)

        async with answering(b"ab" * CHALLENGE_BYTES + b"\n") as port:
            with pytest.raises(ChannelError, match=r"within 0[.]05 s"):
                await connect(HOST, port, SECRET, RUN, 0, End().hear, End().lose)

    asyncio.run(scenario())


def test_an_agent_refuses_a_peer_that_sends_no_challenge() -> None:
    async def scenario() -> None:
        async with answering(b"HTTP/1.1 400 Bad Request\r\n\r\n") as port:
            with pytest.raises(ChannelError, match="not a challenge of 16 bytes"):
                await connect(HOST, port, SECRET, RUN, 0, End().hear, End().lose)

    asyncio.run(scenario())


def test_the_oldest_of_too_many_unauthenticated_connections_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "HALF_OPEN", 3)

    async def scenario() -> None:
        async with listening() as coordinator:
            writers = []
            for _ in range(5):
                reader, writer = await asyncio.open_connection(HOST, coordinator.port)
                await reader.readline()
                writers.append((reader, writer))
            for reader, _ in writers[:2]:
                assert await coordinator.refusal() == "3 newer connections have not authenticated either"
                assert await asyncio.wait_for(reader.read(), 20) == b""
            async with agent(coordinator.port) as honest:
                honest.send("join", 0, 0, {})
                assert (await coordinator.next()).kind == "join"
            for _, writer in writers:
                writer.close()

    asyncio.run(scenario())


def test_a_flood_of_refusals_is_one_log_line_per_second(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clock = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    refusals = Refusals()
    for _ in range(1000):
        refusals.say("1.2.3.4:5", "no")
    clock[0] += messages.SAY_S
    refusals.say("1.2.3.4:6", "no")
    assert caplog.messages == [
        "refused a connection with 1.2.3.4:5: no",
        "refused a connection with 1.2.3.4:6: no (and 999 others since the last such line)",
    ]


# --- lines that were authentic somewhere else -------------------------------------------------------------------------


def test_a_line_replayed_on_another_connection_is_refused() -> None:
    async def scenario() -> None:
        async with listening() as coordinator:
            async with stranger(coordinator.port) as other:
                line = other.message()
                other.writer.write(line)
                await coordinator.next()
            async with stranger(coordinator.port) as another:
                another.writer.write(line)
                assert "mac" in await coordinator.refusal()
            assert len(coordinator.heard) == 1

    asyncio.run(scenario())


def test_a_line_replayed_on_the_same_connection_is_refused() -> None:
    reason = refused(lambda other: 2 * other.message(), heard=1)
    assert reason == "unexpected message 'beat' number 0 of run 'run-1'"


def test_a_line_reflected_to_its_sender_is_refused() -> None:
    """An echo returns the coordinator's challenge, then its `welcome` and everything else that it sends."""

    async def scenario() -> str:
        async with listening() as coordinator, streams(coordinator.port) as (reader, writer):
            writer.write(await reader.readline())
            writer.write(await reader.readline())
            reason = await coordinator.refusal()
            assert coordinator.heard == []
            return reason

    assert "mac" in asyncio.run(scenario())


def test_a_coordinator_with_another_secret_is_refused() -> None:
    async def scenario() -> None:
        end = End()
        async with listening() as coordinator:
            with pytest.raises(ChannelError, match="mac"):
                await connect(HOST, coordinator.port, b"x" * 32, RUN, 0, end.hear, end.lose)
            assert (end.heard, end.lost.empty()) == ([], True)

    asyncio.run(scenario())


def test_every_changed_byte_of_a_line_is_refused() -> None:
    async def scenario() -> None:
        async with listening() as coordinator:
            async with stranger(coordinator.port) as other:
                length = len(other.message())
            for at in range(length - 1):  # the last byte ends the line
                async with stranger(coordinator.port) as other:
                    line = bytearray(other.message())
                    line[at] ^= 1
                    other.writer.write(bytes(line))
                    assert "mac" in await coordinator.refusal()
            assert coordinator.heard == []

    asyncio.run(scenario())


def test_a_missing_message_is_detected() -> None:
    assert "number 1" in refused(lambda other: other.message(seq=1))


@pytest.mark.parametrize(
    "changes",
    [
        {"kind": "shell"},
        {"kind": []},
        {"extra": 1},
        {"run": None},
        {"body": []},
        {"generation": "1"},
        {"generation": True},
        {"node": 1.0},
        {"incarnation": None},
    ],
    ids=str,
)
def test_an_authentic_line_that_is_not_a_message_is_refused(changes: dict[str, Any]) -> None:
    assert "message" in refused(lambda other: other.message(**changes))


@pytest.mark.parametrize("raw", [b"", b"[]", b"1", b"{", b'{"run": "run-1"}', b"\xff", b"[" * 4000])
def test_an_authentic_line_that_is_not_a_record_is_refused(raw: bytes) -> None:
    assert "not a message" in refused(lambda other: other.line(raw))
