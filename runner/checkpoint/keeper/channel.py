"""Implements an authenticated connection between two keepers, over TCP.

<mac, 32 bytes> <a record as JSON, padded to RECORD_BYTES> or <mac, 32 bytes> <as many bytes as both sides know to
follow>

The mac is HMAC-SHA256 with the run's secret over the direction, both sides' challenges, the frame's number and the
frame, as between agents and coordinator (runner/messages.py): a frame can be neither forged, nor sent back, nor
replayed, nor omitted. No frame contains its length, so a changed byte cannot make a side wait for bytes that never
come, nor a stranger for memory to be taken.
"""

import hashlib
import hmac
import json
import secrets
import socket
from collections.abc import Mapping
from typing import Any, Literal

Side = Literal["dialer", "listener"]
CHALLENGE_BYTES = 16
HANDSHAKE_S = 10.0
# For a partner that neither reads nor writes; it may first have to allocate memory for a copy.
STALL_S = 120.0
RECORD_BYTES = 4096
MAC_BYTES = 32


class KeeperChannelError(Exception):
    """The other side is not a keeper of this run, or the connection is gone."""


class Channel:
    """`side` is this end's: the dialing side sends first."""

    def __init__(self, connection: socket.socket, secret: bytes, side: Side) -> None:
        self._socket, self._secret, self._side = connection, secret, side
        self._sent = self._received = 0
        self._challenges = b""

    def handshake(self) -> None:
        """Exchange challenges. Raises ChannelError when none arrives within HANDSHAKE_S."""
        mine = secrets.token_bytes(CHALLENGE_BYTES)
        self._socket.settimeout(HANDSHAKE_S)
        self._send_all(mine)
        theirs = bytearray(CHALLENGE_BYTES)
        self._fill(memoryview(theirs))
        self._challenges = bytes(mine + theirs) if self._side == "dialer" else bytes(theirs + mine)

    def send(self, record: Mapping[str, Any]) -> None:
        """Send a record of at most RECORD_BYTES. Raises ChannelError."""
        self.send_bytes(json.dumps(record).encode().ljust(RECORD_BYTES))

    def send_bytes(self, data: memoryview | bytes) -> None:
        """Send the bytes that the other side expects with `receive_into`. Raises ChannelError."""
        mac = self._mac(self._side, self._sent, data)
        self._sent += 1
        self._send_all(mac)
        self._send_all(data)

    def receive(self) -> dict[str, Any]:
        """Return the next record. Raises ChannelError when it is not authentic, or the connection ends."""
        raw = bytearray(RECORD_BYTES)
        self.receive_into(memoryview(raw))
        record = json.loads(raw)
        if not isinstance(record, dict):
            raise KeeperChannelError(f"{type(record).__name__} is not a record")
        return record

    def receive_if_any(self) -> dict[str, Any] | None:
        """Return the next record; None when the other side has hung up instead. Raises ChannelError."""
        try:
            if not self._socket.recv(1, socket.MSG_PEEK):
                return None
        except OSError as error:
            raise KeeperChannelError(f"connection lost: {error}") from None
        return self.receive()

    def receive_into(self, out: memoryview) -> None:
        """Fill `out` with the next frame. Raises ChannelError; the content of `out` is undefined then."""
        mac = bytearray(MAC_BYTES)
        self._fill(memoryview(mac))
        self._fill(out)
        peer: Side = "listener" if self._side == "dialer" else "dialer"
        if not hmac.compare_digest(mac, self._mac(peer, self._received, out)):
            raise KeeperChannelError("a frame does not carry this run's mac")
        if self._received == 0:
            self._socket.settimeout(STALL_S)
        self._received += 1

    def close(self) -> None:
        self._socket.close()

    def _mac(self, side: Side, number: int, data: memoryview | bytes) -> bytes:
        mac = hmac.new(self._secret, side.encode() + b"\0" + self._challenges + number.to_bytes(8, "big"), hashlib.sha256)
        mac.update(data)
        return mac.digest()

    def _send_all(self, data: memoryview | bytes) -> None:
        try:
            self._socket.sendall(data)
        except OSError as error:
            raise KeeperChannelError(f"connection lost: {error}") from None

    def _fill(self, out: memoryview) -> None:
        done = 0
        while done < len(out):
            try:
                count = self._socket.recv_into(out[done:])
            except OSError as error:
                raise KeeperChannelError(f"connection lost: {error}") from None
            if count == 0:
                raise KeeperChannelError("connection lost: the other side has closed it")
            done += count
