"""Sends the keeper's messages as lines on a Unix socket, with the descriptors that belong to them.

<kind> <1 if it answers a request, 0 if not> <the record as JSON>
"""

import os
import socket
import struct
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from headway.runner.checkpoint.keeper import protocol
from headway.runner.checkpoint.keeper.protocol import Answer, Event, Request
from headway.runner.contract import from_json, to_json

Message = Request | Answer | Event

# A layout or part of 100,000 pieces is 30 MB.
MAX_LINE_BYTES = 64 << 20
_READ_BYTES = 1 << 16
# Of one message (SCM_MAX_FD, unix(7)).
_MAX_DESCRIPTORS = 253
_DESCRIPTOR = struct.Struct("i")
_KINDS: dict[str, type[Any]] = {kind.__name__: kind for kind in Request.__args__ + Answer.__args__ + Event.__args__}


class WireError(Exception):
    """The other side has sent an invalid or forbidden message; or it is gone (LostError)."""


class LostError(WireError):
    """The other side is gone."""


@dataclass(frozen=True)
class Received:
    """A message, whether it answers a request (and is no event), and its descriptors, which the receiver must close."""

    message: Message
    is_answer: bool
    descriptors: tuple[int, ...]


def connect(name: str) -> socket.socket:
    """Return a connection to the keeper that listens on the abstract name. Raises OSError; PermissionError for another
    user's process."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        connection.connect(address(name))
        if peer_uid(connection) != os.getuid():
            raise PermissionError(
                f"the keeper's name {name} belongs to user {peer_uid(connection)}, but this process to {os.getuid()}"
            )
    except OSError:
        connection.close()
        raise
    return connection


def address(name: str) -> bytes:
    """Return `name` in the abstract namespace, which leaves no file behind (unix(7))."""
    return b"\0" + name.encode()


def peer_uid(connection: socket.socket) -> int:
    """Return the user ID of the process at the other end."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    uid: int = struct.unpack("3i", credentials)[1]
    return uid


class Wire:
    """One end of a connection. One thread may send while another receives."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._bytes = bytearray()
        self._searched = 0
        self._descriptors: deque[int] = deque()

    def send(self, message: Message, descriptors: Iterable[int] = (), *, answers: bool = False) -> None:
        """Send one message whole. Raises WireError when the connection is gone."""
        data = f"{type(message).__name__} {answers:d} {to_json(message)}\n".encode()
        try:
            sent = socket.send_fds(self._socket, [data], list(descriptors))
            # Sending nothing to a peer that has read all and gone would be an error.
            if sent < len(data):
                self._socket.sendall(memoryview(data)[sent:])
        except OSError as error:
            raise LostError(f"connection lost: {error}") from None

    def receive(self) -> Received:
        """Return the next message. Raises WireError when the connection ends, or a line is too long or invalid."""
        kind, answers, body = self._line()
        if kind not in _KINDS or answers not in ("0", "1"):
            raise WireError(f"not a message: it begins with {kind[:40]!r}")
        try:
            message = from_json(_KINDS[kind], body)
        except (ValueError, RecursionError) as error:
            raise WireError(f"not a {kind}: {error}") from None
        return Received(message, answers == "1", self._taken(message))

    def hang_up(self) -> None:
        """End both directions: threads that wait in `receive` or `send` get a WireError."""
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            # The other side was faster.
            return

    def close(self) -> None:
        while self._descriptors:
            os.close(self._descriptors.popleft())
        self._socket.close()

    def _line(self) -> tuple[str, str, str]:
        while (end := self._bytes.find(b"\n", self._searched)) < 0:
            self._searched = len(self._bytes)
            if self._searched > MAX_LINE_BYTES:
                raise WireError(f"a line of more than {MAX_LINE_BYTES} bytes")
            self._read()
        line = bytes(self._bytes[:end])
        del self._bytes[: end + 1]
        self._searched = 0
        try:
            kind, answers, body = line.decode().split(" ", 2)
        except ValueError:
            raise WireError(f"not a message: it begins with {line[:40]!r}") from None
        return kind, answers, body

    def _read(self) -> None:
        room = socket.CMSG_SPACE(_MAX_DESCRIPTORS * _DESCRIPTOR.size)
        try:
            # Not recv_fds, which drops its flags (CPython 3.11, Lib/socket.py): children would inherit the descriptors.
            data, ancillary, _, _ = self._socket.recvmsg(_READ_BYTES, room, socket.MSG_CMSG_CLOEXEC)
        except OSError as error:
            raise LostError(f"connection lost: {error}") from None
        for level, kind, raw in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                self._descriptors.extend(number for (number,) in _DESCRIPTOR.iter_unpack(raw))
        if len(self._descriptors) > _MAX_DESCRIPTORS:
            raise WireError(f"more than {_MAX_DESCRIPTORS} descriptors that no message announced")
        if not data:
            raise LostError("connection lost: the other side has closed it")
        self._bytes += data

    def _taken(self, message: Message) -> tuple[int, ...]:
        """Return the descriptors of this message: they arrive no later than its first byte, and in order."""
        match message:
            case protocol.Reserved(free=free):
                count = len(free)
            case protocol.Fetched():
                count = 1
            case _:
                count = 0
        if count > len(self._descriptors):
            raise WireError(f"{type(message).__name__} came with {len(self._descriptors)} descriptors, expected {count}")
        return tuple(self._descriptors.popleft() for _ in range(count))
