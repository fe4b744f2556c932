"""Exchanges messages between agents and the coordinator: authenticated JSON lines over TCP (docs/records.md).

    <hex mac> <json {run, generation, node, incarnation, seq, kind, body}>

The mac is HMAC-SHA256 with the run's secret over the direction, both sides' challenges and the JSON bytes, so a line can be neither
forged, nor sent back, nor replayed on another connection; `seq` counts from 0 on each connection, so none can be left out.

The coordinator proves that it knows the secret with a `welcome`, the agent with its first message; both have HANDSHAKE_S for it, and the
agent one line of FIRST_LINE_BYTES. A message without proof ends its connection, with a line on stderr, and does nothing else.
"""

import asyncio
import errno
import functools
import hashlib
import hmac
import json
import logging
import resource
import secrets
import socket
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

import msgspec

from headway.runner.within import within

_log = logging.getLogger(__name__)

Side = Literal["agent", "coordinator"]
KINDS: Mapping[Side, frozenset[str]] = {
    "agent": frozenset({"join", "beat", "exited", "evidence", "committed", "enter"}),
    "coordinator": frozenset(
        {"assign", "start", "take", "save", "survey", "stop", "probe", "members", "end", "restart", "entered", "welcome"}
    ),
}
CHALLENGE_BYTES = 16
HANDSHAKE_S = 10.0
FIRST_LINE_BYTES = 4096
MAX_LINE_BYTES = 4 << 20
# For a peer that does not read: it counts as gone.
SEND_S = 5.0
MAX_UNSENT_BYTES = MAX_LINE_BYTES
# Connections that have proven nothing yet; the oldest goes first.
HALF_OPEN = 4096
# The default of Linux (net.core.somaxconn).
BACKLOG = 4096
# The others are served in between, so that a peer that answers at once is never the oldest.
ACCEPT_AT_ONCE = 64
OUT_OF_FILES_S = 1.0  # before the next try to accept
READ_BYTES = 1 << 16
# Between two lines about refused connections.
SAY_S = 1.0
_MAC_CHARACTERS = 2 * hashlib.sha256().digest_size
_encode = json.JSONEncoder(separators=(",", ":")).encode


class ChannelError(Exception):
    """The peer cannot prove its identity, has sent an invalid message, or the connection is gone."""


class Message(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    run: str
    generation: int
    node: int
    incarnation: int
    seq: int
    kind: str
    body: dict[str, Any]


_message_of = msgspec.json.Decoder(Message).decode


class Refusals:
    """Logs refused connections: one line in SAY_S at most, however many there are."""

    def __init__(self) -> None:
        self._said = float("-inf")
        self._unsaid = 0

    def say(self, peer: Any, why: str) -> None:
        self._unsaid += 1
        if (now := time.monotonic()) - self._said < SAY_S:
            return
        more = f" (and {self._unsaid - 1} others since the last such line)" if self._unsaid > 1 else ""
        _log.warning("refused a connection with %s: %s%s", peer, why, more)
        self._said, self._unsaid = now, 0


Heard = Callable[["Link", Message], None]
Ended = Callable[["Link", str], None]


class Link:
    """One connection, made by `connect` or `listen`.

    `heard` is called in the event loop with every authentic message, in order, and may raise ChannelError about an invalid one. `lost` is
    called in the event loop, never from within another call, once and for whatever reason the link ended (`close` too), with that reason;
    of links that `listen` accepts only for those that sent a message. `data` is free for the owner.
    """

    def __init__(
        self,
        sock: socket.socket,
        secret: bytes,
        side: Side,
        run: str | None,
        incarnation: int,
        heard: Heard,
        lost: Ended,
        refusals: Refusals,
    ) -> None:
        self.data: Any = None
        self.closed = False
        # Ended because the peer has taken nothing for SEND_S: it may be away for a moment only.
        self.unanswered = False
        self.proven = False  # the peer has sent an authentic line
        self._socket, self._secret, self._side, self._incarnation = sock, secret, side, incarnation
        self._fd = sock.fileno()
        self._run, self._run_json = run, json.dumps(run)
        self._heard, self._lost, self._refusals = heard, lost, refusals
        self._peer: Side = "coordinator" if side == "agent" else "agent"
        self._mine = secrets.token_bytes(CHALLENGE_BYTES)
        # The bytes that a mac covers in addition to the JSON.
        self._outward = self._inward = b""
        self._sent = self._received = 0
        self._partial, self._unsent = bytearray(), bytearray()
        self._limit = 2 * CHALLENGE_BYTES
        self._take: Callable[[bytes], None] = self._take_challenge
        self._why = ""
        self._over = False
        self._loop = asyncio.get_running_loop()
        self._deadline = self._loop.call_later(HANDSHAKE_S, self.refuse, f"no authenticated message within {HANDSHAKE_S:g} s")
        self._unread: asyncio.TimerHandle | None = None
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # A host that is gone acknowledges nothing, and what is sent to it would be tried again for 15 minutes (tcp(7)).
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(SEND_S * 1000))
        self._loop.add_reader(self._fd, self._readable)
        self._write(self._mine.hex().encode() + b"\n")

    # --- for the owner ------------------------------------------------------------------------------------------------

    def send(self, kind: str, generation: int, node: int, body: Mapping[str, Any]) -> None:
        """Sends one message, without waiting; on a closed link nothing happens. A peer that has not read all of what it was sent for
        SEND_S, or leaves more than MAX_UNSENT_BYTES unread, is given up."""
        self._send(kind, generation, node, _encode(body))

    def close(self) -> None:
        """Ends the link once what was sent has left."""
        if not self.closed:
            self.closed, self._why = True, "closed here"
            self._loop.remove_reader(self._fd)
            if not self._unsent:
                self._end()

    def refuse(self, why: str) -> None:
        """Ends the link at once, with a line on stderr."""
        if not self.closed:
            self._refusals.say(_name(self._socket), why)
            self._abort(why)

    @property
    def unsent_bytes(self) -> int:
        """Bytes that were sent and have not left this process."""
        return len(self._unsent)

    # --- what leaves --------------------------------------------------------------------------------------------------

    def _send(self, kind: str, generation: int, node: int, body: str) -> None:
        if self.closed:
            return
        if len(self._unsent) > MAX_UNSENT_BYTES:
            self.unanswered = True
            self._abort(f"the peer leaves {len(self._unsent)} bytes unread")
            return
        raw = (
            f'{{"run":{self._run_json},"generation":{generation},"node":{node},"incarnation":{self._incarnation},'
            f'"seq":{self._sent},"kind":"{kind}","body":{body}}}'
        ).encode()
        if len(raw) > MAX_LINE_BYTES - _MAC_CHARACTERS - 1:
            # The peer would end the link at each repetition.
            _log.error("a message %r of %s bytes is not sent: the limit is %s", kind, len(raw), MAX_LINE_BYTES)
            return
        self._sent += 1
        self._write(b"%s %s\n" % (_mac(self._secret, self._outward + raw), raw))

    def _write(self, data: bytes) -> None:
        if not self._unsent and (written := self._written(data)) < len(data) and not self.closed:
            self._unsent += data[written:]
            self._loop.add_writer(self._fd, self._writable)
            self._unread = self._loop.call_later(SEND_S, self._give_up)
        elif self._unsent:
            self._unsent += data

    def _written(self, data: bytes | bytearray) -> int:
        """How much of `data` the kernel takes."""
        try:
            return self._socket.send(data)
        except (BlockingIOError, InterruptedError):
            return 0
        except OSError as error:
            self.unanswered = error.errno == errno.ETIMEDOUT
            self._abort(str(error))
            return 0

    def _writable(self) -> None:
        del self._unsent[: self._written(self._unsent)]
        if not self._unsent and not self._over:
            self._loop.remove_writer(self._fd)
            if self._unread is not None:
                self._unread.cancel()
            if self.closed:
                self._end()

    # --- what arrives -------------------------------------------------------------------------------------------------

    def _readable(self) -> None:
        try:
            data = self._socket.recv(READ_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self.unanswered = error.errno == errno.ETIMEDOUT
            self._abort(str(error))
            return
        if not data:
            self._abort("the peer has ended the connection")
            return
        try:
            self._take_bytes(data)
        except ChannelError as error:
            self.refuse(str(error))
        except BaseException:
            # The owner's mistake: the event loop shows it, and the peer repeats its message.
            self._abort("the message could not be handled")
            raise

    def _take_bytes(self, data: bytes) -> None:
        *whole, rest = data.split(b"\n")
        if whole and self._partial:
            whole[0] = bytes(self._partial) + whole[0]
            self._partial.clear()
        for line in whole:
            if self.closed:
                return
            if len(line) > self._limit:
                raise ChannelError(f"a line of more than {self._limit} bytes")
            self._take(line)
        self._partial += rest
        if len(self._partial) > self._limit:
            raise ChannelError(f"a line of more than {self._limit} bytes")

    def _take_challenge(self, line: bytes) -> None:
        try:
            theirs = bytes.fromhex(line.decode())
        except ValueError:
            theirs = b""
        if len(theirs) != CHALLENGE_BYTES:
            # Else the border between the two challenges could be moved.
            raise ChannelError(f"no handshake: {line!r} is not a challenge of {CHALLENGE_BYTES} bytes")
        challenges = self._mine + theirs if self._side == "agent" else theirs + self._mine
        self._outward, self._inward = (side.encode() + b"\0" + challenges for side in (self._side, self._peer))
        # An agent has asked for this one connection, so what it may be sent at first is not scarce.
        self._limit = MAX_LINE_BYTES if self._side == "agent" else FIRST_LINE_BYTES
        self._take = self._take_message
        self._shaken()

    def _take_message(self, line: bytes) -> None:
        raw = line[_MAC_CHARACTERS + 1 :]
        if not hmac.compare_digest(line[: _MAC_CHARACTERS + 1], _mac(self._secret, self._inward + raw) + b" "):
            raise ChannelError("a line does not carry this run's mac")
        message = self._message(raw)
        self._received += 1
        if not self.proven:
            self.proven, self._limit = True, MAX_LINE_BYTES
            self._deadline.cancel()
            self._proved()
        if message.kind != "welcome":
            self._heard(self, message)

    def _message(self, raw: bytes) -> Message:
        try:
            message = _read(raw)
        except (ValueError, RecursionError) as error:
            raise ChannelError(f"not a message: {error}") from None
        if self._run is None:
            # As the peer calls it, which has the secret.
            self._run, self._run_json = message.run, json.dumps(message.run)
        if message.kind not in KINDS[self._peer] or (message.run, message.seq) != (self._run, self._received):
            raise ChannelError(f"unexpected message {message.kind!r} number {message.seq} of run {message.run!r}")
        return message

    # --- the end ------------------------------------------------------------------------------------------------------

    def _give_up(self) -> None:
        self.unanswered = True
        self._abort(f"the peer has not drained its connection for {SEND_S:g} s")

    def _abort(self, why: str) -> None:
        self._why = self._why or why
        self.closed = True
        self._end()

    def _end(self) -> None:
        if self._over:
            return
        self._over = True
        self._deadline.cancel()
        if self._unread is not None:
            self._unread.cancel()
        self._loop.remove_reader(self._fd)
        self._loop.remove_writer(self._fd)
        self._socket.close()
        self._partial.clear()
        self._unsent.clear()
        self._loop.call_soon(self._ended, self._why)

    # --- for the two ends ---------------------------------------------------------------------------------------------

    def _shaken(self) -> None:
        """Both challenges are known."""

    def _proved(self) -> None:
        """The first authentic line has come."""

    def _ended(self, why: str) -> None:
        """The link is over."""
        self._lost(self, why)


def broadcast(links: Iterable[tuple[Link, int]], kind: str, generation: int, body: Mapping[str, Any]) -> None:
    """Sends one message to many (link, node); the body is encoded once."""
    encoded = _encode(body)
    for link, node in links:
        link._send(kind, generation, node, encoded)


async def flush(links: Iterable[Link]) -> None:
    """Waits until what was sent has left this process, or its link has ended, which takes SEND_S at most."""
    waiting = list(links)
    while waiting := [link for link in waiting if link.unsent_bytes]:
        await asyncio.sleep(0.01)


def _read(raw: bytes) -> Message:
    """Raises ValueError or RecursionError. Python's own `json` writes what is no JSON (numbers that are not finite, text of a file's name
    that is no Unicode), and reads it again."""
    try:
        return _message_of(raw)
    except ValueError:
        return msgspec.convert(json.loads(raw.decode()), Message)


def _mac(secret: bytes, covered: bytes) -> bytes:
    return hmac.digest(secret, covered, "sha256").hex().encode()


def _name(sock: socket.socket) -> str:
    try:
        return ":".join(str(part) for part in sock.getpeername()[:2])
    except OSError:
        return "a peer that has left"


# --- the agent's end ----------------------------------------------------------------------------------------------------


_REFUSALS = Refusals()


class _Outgoing(Link):
    def __init__(self, sock: socket.socket, secret: bytes, run: str | None, incarnation: int, heard: Heard, lost: Ended) -> None:
        self.welcome: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.handed_over = False
        super().__init__(sock, secret, "agent", run, incarnation, heard, lost, _REFUSALS)

    def _proved(self) -> None:
        if not self.welcome.done():
            self.welcome.set_result(None)

    def _ended(self, why: str) -> None:
        if self.handed_over:
            super()._ended(why)
        elif not self.welcome.done():
            self.welcome.set_exception(ChannelError(why))


async def connect(host: str, port: int, secret: bytes, run: str | None, incarnation: int, heard: Heard, lost: Ended) -> Link:
    """Return a link with the coordinator at host and port, which has proven that it knows the secret; `run` None: of any run.

    Raises ChannelError if it has not within HANDSHAKE_S, OSError if no process listens. `lost` is not called for an error that was raised;
    a caller that awaits this through a task must check `closed`.
    """
    try:
        link = await within(HANDSHAKE_S, _welcomed(host, port, secret, run, incarnation, heard, lost))
    except TimeoutError:
        raise ChannelError(f"no handshake with {host}:{port} within {HANDSHAKE_S:g} s") from None
    if link.closed:
        raise ChannelError("the connection has ended")
    link.handed_over = True
    return link


async def _welcomed(
    host: str, port: int, secret: bytes, run: str | None, incarnation: int, heard: Heard, lost: Ended
) -> "_Outgoing":
    link = _Outgoing(await _connected(host, port), secret, run, incarnation, heard, lost)
    try:
        await link.welcome
    except BaseException:
        link.close()
        raise
    return link


async def _connected(host: str, port: int) -> socket.socket:
    """A connection to the first of the host's addresses that answers."""
    refused: OSError = OSError(f"{host} has no address")
    for family, kind, protocol, _, address in await _addresses(host, port):
        sock = socket.socket(family, kind, protocol)
        sock.setblocking(False)
        try:
            await asyncio.get_running_loop().sock_connect(sock, address)
        except OSError as error:
            sock.close()
            refused = error
        except BaseException:
            sock.close()
            raise
        else:
            return sock
    raise refused


async def _addresses(host: str, port: int) -> list[Any]:
    try:
        return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    except socket.gaierror:  # a name: that may take a while
        return await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)


# --- the coordinator's end ----------------------------------------------------------------------------------------------


class _Incoming(Link):
    def __init__(self, sock: socket.socket, secret: bytes, run: str, heard: Heard, lost: Ended, listener: "Listener") -> None:
        self._listener = listener
        listener.half_open[self] = None
        super().__init__(sock, secret, "coordinator", run, 0, heard, lost, listener.refusals)

    def _shaken(self) -> None:
        self.send("welcome", 0, -1, {})

    def _proved(self) -> None:
        self._listener.half_open.pop(self, None)

    def _ended(self, why: str) -> None:
        self._listener.half_open.pop(self, None)
        if self.proven:
            super()._ended(why)


class Listener:
    """Where agents connect: `port`."""

    def __init__(self, sock: socket.socket, secret: bytes, run: str, heard: Heard, lost: Ended, most_half_open: int) -> None:
        self.port: int = sock.getsockname()[1]
        self.refusals = Refusals()
        self.half_open: dict[Link, None] = {}
        self._socket, self._most_half_open = sock, most_half_open
        self._link = functools.partial(_Incoming, secret=secret, run=run, heard=heard, lost=lost, listener=self)
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(sock, self._accept)

    def close(self) -> None:
        """Accept no more connections; links that sent a message stay."""
        self._loop.remove_reader(self._socket)
        self._socket.close()
        for link in list(self.half_open):
            link.close()

    def _accept(self) -> None:
        for _ in range(ACCEPT_AT_ONCE):
            try:
                sock, _ = self._socket.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                # No file descriptor is left, and the socket stays readable.
                self.refusals.say("somebody", str(error))
                self._loop.remove_reader(self._socket)
                self._loop.call_later(OUT_OF_FILES_S, self._again)
                return
            sock.setblocking(False)
            self._link(sock)
            if len(self.half_open) > self._most_half_open:
                next(iter(self.half_open)).refuse(f"{self._most_half_open} newer connections have not authenticated either")

    def _again(self) -> None:
        if self._socket.fileno() >= 0:
            self._loop.add_reader(self._socket, self._accept)


async def listen(host: str, port: int, secret: bytes, run: str, heard: Heard, lost: Ended) -> Listener:
    """Accepts agents at host and port (0: any free one). Raises OSError when that cannot be had.

    Each agent takes a file descriptor: the process's soft limit is raised to its hard limit.
    """
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    return Listener(await _listening(host, port), secret, run, heard, lost, min(HALF_OPEN, most // 4))


async def _listening(host: str, port: int) -> socket.socket:
    """Listens at the first of the host's addresses that is this machine's."""
    refused: OSError = OSError(f"{host} has no address")
    for family, _, _, _, address in await _addresses(host, port):
        try:
            sock = socket.create_server(address, family=family, backlog=BACKLOG)
        except OSError as error:
            refused = error
        else:
            sock.setblocking(False)
            return sock
    raise refused
