"""Messages between agents and the coordinator: authenticated JSON lines over TCP (CONTRACTS, Messages).

    <hex mac> <json {run, generation, node, incarnation, seq, kind, body}>

The mac is HMAC-SHA256 with the run's secret over the direction, both sides' challenges and the JSON bytes, so a line can be neither
forged, nor sent back, nor replayed on another connection; `seq` counts from 0 on each connection, so none can be left out.
"""

import asyncio
import hashlib
import hmac
import json
import secrets
from dataclasses import dataclass, field
from typing import Any, Literal

KINDS = frozenset({"join", "assign", "start", "beat", "exited", "evidence", "save", "committed", "survey", "stop"})
Side = Literal["agent", "coordinator"]
MAX_LINE_BYTES = 4 << 20
CHALLENGE_BYTES = 16
HANDSHAKE_S = 10.0


class ChannelError(Exception):
    """The peer is not who it should be, or the connection is gone."""


@dataclass(frozen=True)
class Message:
    run: str
    generation: int
    node: int
    incarnation: int
    seq: int
    kind: str
    body: dict[str, Any] = field(default_factory=dict)


class Channel:
    """One authenticated connection. `side` is ours."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, secret: bytes, side: Side, run: str, incarnation: int
    ) -> None:
        self._reader, self._writer = reader, writer
        self._secret, self._side, self._run, self._incarnation = secret, side, run, incarnation
        self._challenges = b""
        self._sent = self._received = 0

    async def handshake(self) -> None:
        """Exchanges challenges. Raises ChannelError when the peer says nothing useful within HANDSHAKE_S."""
        mine = secrets.token_bytes(CHALLENGE_BYTES)
        try:
            async with asyncio.timeout(HANDSHAKE_S):
                self._writer.write(mine.hex().encode() + b"\n")
                await self._writer.drain()
                theirs = bytes.fromhex((await self._reader.readuntil(b"\n")).decode().strip())
        except (OSError, ValueError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
            raise ChannelError(f"no handshake: {error}") from None
        if len(theirs) != CHALLENGE_BYTES:  # else the border between the two challenges could be moved
            raise ChannelError(f"no handshake: a challenge of {len(theirs)} bytes, expected {CHALLENGE_BYTES}")
        self._challenges = mine + theirs if self._side == "agent" else theirs + mine

    async def send(self, kind: str, generation: int, node: int, body: dict[str, Any]) -> None:
        """Sends one message. Raises ChannelError when the connection is gone."""
        message = {"run": self._run, "generation": generation, "node": node, "incarnation": self._incarnation}
        raw = json.dumps({**message, "seq": self._sent, "kind": kind, "body": body}).encode()
        self._sent += 1
        try:
            self._writer.write(self._mac(self._side, raw).encode() + b" " + raw + b"\n")
            await self._writer.drain()
        except OSError as error:
            raise ChannelError(f"connection lost: {error}") from None

    async def receive(self) -> Message:
        """The next message. Raises ChannelError when the connection ends or a line is not authentic."""
        try:
            line = (await self._reader.readuntil(b"\n")).rstrip(b"\n")
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
            raise ChannelError(f"connection lost: {error}") from None
        mac, _, raw = line.partition(b" ")
        peer: Side = "coordinator" if self._side == "agent" else "agent"
        if not hmac.compare_digest(mac, self._mac(peer, raw).encode()):
            raise ChannelError("a line does not carry this run's mac")
        try:
            message = Message(**json.loads(raw))
            expected = (message.run, message.seq) == (self._run, self._received) and message.kind in KINDS
        except (ValueError, TypeError) as error:
            raise ChannelError(f"not a message: {error}") from None
        if not expected:
            raise ChannelError(f"unexpected message {message.kind!r} number {message.seq} of run {message.run!r}")
        self._received += 1
        return message

    def close(self) -> None:
        self._writer.close()

    def _mac(self, side: Side, raw: bytes) -> str:
        return hmac.new(self._secret, side.encode() + b"\0" + self._challenges + raw, hashlib.sha256).hexdigest()
