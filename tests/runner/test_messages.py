"""Channels over real loopback sockets: what one side sends the other receives, and a stranger's line never becomes a Message."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from headway.runner import messages
from headway.runner.messages import CHALLENGE_BYTES, Channel, ChannelError, Message, Side

SECRET, RUN, LIMIT = b"k" * 32, "run-1", 1 << 16
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@dataclass
class Coordinator:
    """A listening coordinator that receives until its peer is refused."""

    port: int
    received: list[Message] = field(default_factory=list)
    refusals: asyncio.Queue[str] = field(default_factory=asyncio.Queue)
    channels: asyncio.Queue[Channel] = field(default_factory=asyncio.Queue)

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        channel = Channel(reader, writer, SECRET, "coordinator", RUN, 0)
        try:
            await channel.handshake()
            self.channels.put_nowait(channel)
            while True:
                self.received.append(await channel.receive())
        except ChannelError as error:
            self.refusals.put_nowait(str(error))
        finally:
            channel.close()

    async def refusal(self) -> str:
        return await asyncio.wait_for(self.refusals.get(), 20)


@asynccontextmanager
async def listening() -> AsyncIterator[Coordinator]:
    coordinator = Coordinator(0)
    server = await asyncio.start_server(coordinator.accept, "127.0.0.1", 0, limit=LIMIT)
    coordinator.port = server.sockets[0].getsockname()[1]
    async with server:
        yield coordinator


@asynccontextmanager
async def connected(port: int) -> AsyncIterator[Streams]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=LIMIT)
    try:
        yield reader, writer
    finally:
        writer.close()
        await asyncio.gather(writer.wait_closed(), return_exceptions=True)


@asynccontextmanager
async def agent(port: int, secret: bytes = SECRET, run: str = RUN, side: Side = "agent") -> AsyncIterator[Channel]:
    async with connected(port) as (reader, writer):
        channel = Channel(reader, writer, secret, side, run, 3)
        await channel.handshake()
        yield channel


def line_of(channel: Channel, side: Side, **changes: Any) -> bytes:
    """An authentic line of this channel, with some fields changed before it was signed."""
    fields = {"run": RUN, "generation": 1, "node": 0, "incarnation": 0, "seq": 0, "kind": "beat", "body": {}}
    raw = json.dumps({**fields, **changes}).encode()
    return channel._mac(side, raw).encode() + b" " + raw + b"\n"


def refused(attack: Callable[[Coordinator, Channel], Awaitable[None]]) -> str:
    """Runs `attack` on an authentic agent's channel; returns why the coordinator closed it. Nothing may have been received."""

    async def scenario() -> str:
        async with listening() as coordinator, agent(coordinator.port) as channel:
            await attack(coordinator, channel)
            reason = await coordinator.refusal()
            assert coordinator.received == []
            return reason

    return asyncio.run(scenario())


async def write(channel: Channel, line: bytes) -> None:
    channel._writer.write(line)
    await channel._writer.drain()


# --- what works -------------------------------------------------------------------------------------------------------


def test_messages_arrive_in_order_in_both_directions() -> None:
    async def scenario() -> tuple[list[Message], Message]:
        async with listening() as coordinator, agent(coordinator.port) as channel:
            for number in range(5):
                await channel.send("beat", 2, 7, {"number": number, "text": "é\n"})
            theirs = await asyncio.wait_for(coordinator.channels.get(), 20)
            await theirs.send("start", 3, 7, {"base": None})
            answer = await channel.receive()
            channel.close()
            assert "connection lost" in await coordinator.refusal()
            return coordinator.received, answer

    received, answer = asyncio.run(scenario())
    assert received == [Message(RUN, 2, 7, 3, n, "beat", {"number": n, "text": "é\n"}) for n in range(5)]
    assert answer == Message(RUN, 3, 7, 0, 0, "start", {"base": None})


def test_a_closed_connection_ends_the_peers_wait() -> None:
    async def scenario() -> None:
        async with listening() as coordinator, agent(coordinator.port) as channel:
            theirs = await asyncio.wait_for(coordinator.channels.get(), 20)
            theirs.close()
            with pytest.raises(ChannelError, match="connection lost"):
                await channel.receive()

    asyncio.run(scenario())


# --- strangers --------------------------------------------------------------------------------------------------------


def stranger(secret: bytes = SECRET, run: str = RUN, side: Side = "agent") -> str:
    """What the coordinator says of a peer that speaks the protocol with this secret, run and direction."""

    async def scenario() -> str:
        async with listening() as coordinator, agent(coordinator.port, secret, run, side) as channel:
            await channel.send("join", 0, 0, {"host": "here", "running": []})
            reason = await coordinator.refusal()
            assert coordinator.received == []
            return reason

    return asyncio.run(scenario())


def test_another_secret_is_refused() -> None:
    assert "mac" in stranger(secret=b"x" * 32)


def test_another_run_with_the_same_secret_is_refused() -> None:
    assert "'run-2'" in stranger(run="run-2")


def test_a_peer_that_plays_our_own_part_is_refused() -> None:
    assert "mac" in stranger(side="coordinator")


@pytest.mark.parametrize(
    "first",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\n",
        b"zz\n",
        b"ab" * (CHALLENGE_BYTES - 1) + b"\n",
        b"ab" * (CHALLENGE_BYTES + 1) + b"\n",
        "é".encode() + b"\n",
        b"\x80\n",
        b"a" * (2 * LIMIT),
        b"",
    ],
    ids=["http", "empty", "not hex", "short", "long", "not ascii", "not utf-8", "no end", "closed at once"],
)
def test_whoever_sends_no_challenge_is_refused(first: bytes) -> None:
    async def scenario() -> str:
        async with listening() as coordinator, connected(coordinator.port) as (_, writer):
            writer.write(first)
            writer.write_eof()
            reason = await coordinator.refusal()
            assert coordinator.received == []
            return reason

    assert "no handshake" in asyncio.run(scenario())


def test_a_peer_that_says_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "HANDSHAKE_S", 0.05)

    async def scenario() -> str:
        async with listening() as coordinator, connected(coordinator.port):
            return await coordinator.refusal()

    assert "no handshake" in asyncio.run(scenario())


# --- lines that were authentic somewhere else -------------------------------------------------------------------------


def test_a_line_replayed_on_another_connection_is_refused() -> None:
    async def attack(coordinator: Coordinator, channel: Channel) -> None:
        async with agent(coordinator.port) as other:
            line = line_of(other, "agent")
        assert "connection lost" in await coordinator.refusal()  # the other one has left
        await write(channel, line)

    assert "mac" in refused(attack)


def test_a_line_replayed_on_the_same_connection_is_refused() -> None:
    async def scenario() -> tuple[int, str]:
        async with listening() as coordinator, agent(coordinator.port) as channel:
            line = line_of(channel, "agent")
            await write(channel, line + line)
            return len(coordinator.received), await coordinator.refusal()

    _, reason = asyncio.run(scenario())
    assert reason == "unexpected message 'beat' number 0 of run 'run-1'"


def test_a_line_sent_back_to_its_sender_is_refused() -> None:
    """A man in the middle echoes everything, the challenge too."""

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            writer.write(line)
        writer.close()

    async def scenario() -> None:
        server = await asyncio.start_server(echo, "127.0.0.1", 0)
        async with server, agent(server.sockets[0].getsockname()[1]) as channel:
            await channel.send("beat", 1, 0, {})
            with pytest.raises(ChannelError, match="mac"):
                await channel.receive()

    asyncio.run(scenario())


def test_every_changed_byte_of_a_line_is_refused() -> None:
    async def scenario() -> None:
        async with listening() as coordinator:
            async with agent(coordinator.port) as channel:
                length = len(line_of(channel, "agent"))
            await coordinator.refusal()
            for at in range(length - 1):  # the last byte is the line's end
                async with agent(coordinator.port) as channel:
                    line = bytearray(line_of(channel, "agent"))
                    line[at] ^= 1
                    await write(channel, bytes(line))
                    channel._writer.write_eof()
                    assert "mac" in await coordinator.refusal()
            assert coordinator.received == []

    asyncio.run(scenario())


def test_a_left_out_message_is_noticed() -> None:
    async def attack(_: Coordinator, channel: Channel) -> None:
        await write(channel, line_of(channel, "agent", seq=1))

    assert "number 1" in refused(attack)


def test_a_line_beyond_the_limit_is_refused() -> None:
    async def attack(_: Coordinator, channel: Channel) -> None:
        channel._writer.write(line_of(channel, "agent", body={"text": "a" * 2 * LIMIT}))

    assert "connection lost" in refused(attack)


@pytest.mark.parametrize(
    "changes",
    [{"kind": "shell"}, {"kind": []}, {"extra": 1}, {"run": None}],
    ids=["unknown kind", "kind of another type", "unknown field", "no run"],
)
def test_an_authentic_line_that_is_no_message_is_refused(changes: dict[str, Any]) -> None:
    async def attack(_: Coordinator, channel: Channel) -> None:
        await write(channel, line_of(channel, "agent", **changes))

    assert "message" in refused(attack)


@pytest.mark.parametrize("raw", [b"", b"[]", b"1", b"{", b'{"run": "run-1"}', b"\xff"])
def test_an_authentic_line_that_is_no_record_is_refused(raw: bytes) -> None:
    async def attack(_: Coordinator, channel: Channel) -> None:
        await write(channel, channel._mac("agent", raw).encode() + b" " + raw + b"\n")

    assert "not a message" in refused(attack)
