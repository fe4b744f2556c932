"""Connects a worker to its node's keeper: buffers to copy the state into, and reports of their fate."""

import asyncio
import mmap
import os
import secrets
import socket
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import Any

from headway.runner.checkpoint.format import Part, RefusedError, parse_part
from headway.runner.checkpoint.keeper.capture import BufferLayout
from headway.runner.checkpoint.keeper.protocol import (
    Confirm,
    Describe,
    Done,
    Drop,
    Event,
    Failed,
    Fetch,
    Fetched,
    Freed,
    Hello,
    Holding,
    List,
    Listed,
    Request,
    Reserve,
    Reserved,
    Seal,
    Sealed,
)
from headway.runner.checkpoint.keeper.wire import Received, Wire, WireError, connect
from headway.runner.contract import CheckpointId
from headway.runner.start import START

# A keeper that was restarted listens in 0.2 s; on a busy node, later.
CONNECT_S = 10.0
READY_S = 60.0
# Short, because all nodes wait for it.
SURVEY_S = 2.0
_RETRY_S = 0.02


class KeeperError(Exception):
    """The keeper is gone or has refused; the message has the reason."""


@dataclass(frozen=True)
class SharedBuffer:
    """Shared memory of the requested size, to be written through `view` while `free`."""

    index: int
    view: memoryview
    _free: list[bool] = field(repr=False)

    @property
    def free(self) -> bool:
        """Whether nothing that is still needed is in it. False from `seal` on, until the keeper has freed it."""
        return self._free[self.index]


class KeeperLink:
    """One worker's connection. Every method raises KeeperError once the keeper is gone; its captures are lost then.

    Ask for buffers after the state has been loaded: on a node full of captures, only the fetched one is sure to stay.
    """

    def __init__(self, socket_name: str, hello: Hello, patience_s: float = CONNECT_S) -> None:
        """Connect, waiting `patience_s` for a keeper that is still starting. Raises KeeperError."""
        self._wire = Wire(_patiently(socket_name, patience_s))
        # None ends the queue, as `_lost` has the reason.
        self._answers: SimpleQueue[Received | None] = SimpleQueue()
        self._events: SimpleQueue[Event | None] = SimpleQueue()
        self._lost = ""
        self._free: list[bool] = []
        self._asking, self._sending = threading.Lock(), threading.Lock()
        self._reader = threading.Thread(target=self._read, name="keeper-link", daemon=True)
        self._reader.start()
        try:
            self._send(hello)
        except KeeperError:
            self.close()
            raise

    def __enter__(self) -> "KeeperLink":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def reserve(self, size: int, count: int) -> list[SharedBuffer]:
        """Return `count` buffers of `size` bytes, fully populated; those of this rank's earlier generation, if they
        fit.

        Raises KeeperError with numbers when the node does not have enough memory.
        """
        received = self._ask(Reserve(size, count))
        assert isinstance(received.message, Reserved)  # noqa: S101  guaranteed by `_ask`
        mapped = received.message.bytes
        views = [_mapped(descriptor, mapped, mmap.PROT_READ | mmap.PROT_WRITE) for descriptor in received.descriptors]
        return [SharedBuffer(index, view[:size], self._free) for index, view in enumerate(views)]

    def describe(self, layout: BufferLayout) -> None:
        """Send the layout of the following captures."""
        self._send(Describe(layout))

    def seal(self, buffer: int, step: int, tiers: tuple[str, ...], objects: dict[str, Any]) -> None:
        """Report that the buffer holds the state at `step`. The keeper answers with Sealed, and Done or Failed for each
        tier but `memory`."""
        self._free[buffer] = False
        self._send(Seal(buffer, step, tiers, objects))

    def confirm(self, step: int) -> None:
        """Report that all ranks have sealed `step`: earlier captures are freed."""
        self._send(Confirm(step))

    def drop(self, step: int) -> None:
        """Report that another rank could not seal `step`: no restart will use its capture."""
        self._send(Drop(step))

    def held(self) -> tuple[Holding, ...]:
        """Return what the keeper holds: captures of its own node, and copies of its partner's."""
        message = self._ask(List()).message
        assert isinstance(message, Listed)  # noqa: S101
        return message.holdings

    def fetch(self, rank: int, step: int, generation: int) -> tuple[Part, memoryview]:
        """Return a capture of this keeper or its partner, read-only: this process has not verified it."""
        part, descriptor, size = self.take(rank, step, generation)
        return part, _mapped(descriptor, max(size, 1), mmap.PROT_READ)[:size]

    def take(self, rank: int, step: int, generation: int) -> tuple[Part, int, int]:
        """Return the same as a descriptor, which the caller must close, and its size in bytes: reading costs no page
        faults, unlike mapping."""
        received = self._ask(Fetch(rank, step, generation))
        message = received.message
        assert isinstance(message, Fetched)  # noqa: S101
        try:
            return parse_part(message.part.encode(), CheckpointId(step, generation), rank), received.descriptors[0], message.bytes
        except RefusedError as error:
            os.close(received.descriptors[0])
            raise KeeperError(str(error)) from None

    def event(self, timeout_s: float | None) -> Event | None:
        """Return the next event; None when there is none within `timeout_s` (None: no limit)."""
        try:
            event = self._events.get(timeout=timeout_s)
        except Empty:
            return None
        if event is None:
            self._events.put(None)
            raise KeeperError(self._lost)
        return event

    def close(self) -> None:
        """Close the connection. Sealed captures and buffers stay with the keeper for this rank's next generation."""
        self._wire.hang_up()
        self._reader.join()
        self._wire.close()

    def _ask(self, request: Request) -> Received:
        """Return the answer to `request`, of the type that belongs to it. Raises KeeperError for a Failed."""
        with self._asking:
            self._send(request)
            received = self._answers.get()
        if received is None:
            self._answers.put(None)
            raise KeeperError(self._lost)
        expected = {Reserve: Reserved, List: Listed, Fetch: Fetched}[type(request)]
        if isinstance(received.message, Failed):
            raise KeeperError(received.message.reason)
        if not isinstance(received.message, expected):
            raise KeeperError(f"{type(received.message).__name__} came as the answer to {type(request).__name__}")
        return received

    def _send(self, request: Request) -> None:
        try:
            with self._sending:
                self._wire.send(request)
        except WireError as error:
            raise KeeperError(f"the keeper is gone: {error}") from None

    def _read(self) -> None:
        try:
            while True:
                self._sort(self._wire.receive())
        except WireError as error:
            self._lost = f"the keeper is gone: {error}"
        self._answers.put(None)
        self._events.put(None)

    def _sort(self, received: Received) -> None:
        match received.message:
            case Reserved(free=free):
                self._free = list(free)
            case Freed(buffer) if buffer < len(self._free):
                self._free[buffer] = True
        if received.is_answer:
            self._answers.put(received)
        elif isinstance(received.message, (Sealed, Done, Failed, Freed)):
            self._events.put(received.message)


def _patiently(name: str, patience_s: float) -> socket.socket:
    until = time.monotonic() + patience_s
    while True:
        try:
            return connect(name)
        except PermissionError as error:
            raise KeeperError(str(error)) from None
        except OSError as error:
            if time.monotonic() > until:
                raise KeeperError(f"no keeper listens on {name}: {error}") from None
        time.sleep(_RETRY_S)


def _mapped(descriptor: int, size: int, protection: int) -> memoryview:
    """Return the memory behind `descriptor`, which is closed. Pages are mapped now and not one by one during a copy."""
    try:
        return memoryview(mmap.mmap(descriptor, size, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE, prot=protection))
    except OSError as error:
        raise KeeperError(f"{size} bytes of the keeper's memory cannot be mapped: {error}") from None
    finally:
        os.close(descriptor)


# --- for processes without a supervisor ---------------------------------------------------------------------------------


def start_keeper(name: str | None = None) -> str:
    """Start a keeper for workers without a supervisor, and return the name that it listens on once it does.

    It belongs to no process: it ends with the last worker that has connected to it, after having stored what was
    sealed; or with this process, if no worker has connected by then. Raises KeeperError.
    """
    name = name or f"headway-keeper-{secrets.token_hex(16)}"
    ours, theirs = socket.socketpair()
    argv = [sys.executable, START, "headway.runner.checkpoint.keeper", "--socket", name, "--parent-fd", "0", "--standalone"]
    actions = [(os.POSIX_SPAWN_DUP2, theirs.fileno(), 0), (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)]
    pid = os.posix_spawn(sys.executable, argv, os.environ, file_actions=actions, setsid=True)
    theirs.close()
    # It has left a child behind, so that this process never has to wait for the keeper's end.
    os.waitpid(pid, 0)
    ours.settimeout(READY_S)
    with suppress(OSError):
        if ours.recv(16):
            # Stays open as long as this process lives.
            ours.detach()
            return name
    ours.close()
    raise KeeperError("the keeper did not start; see its output")


async def held_by(socket_name: str) -> list[Holding]:
    """Return the captures that the keeper of this node holds. Raises KeeperError when there is none."""
    return await asyncio.to_thread(_held_by, socket_name)


def _held_by(socket_name: str) -> list[Holding]:
    connection = _patiently(socket_name, SURVEY_S)
    connection.settimeout(SURVEY_S)
    wire = Wire(connection)
    try:
        wire.send(List())
        message = wire.receive().message
    except WireError as error:
        raise KeeperError(f"the keeper is gone: {error}") from None
    finally:
        wire.close()
    return list(message.holdings) if isinstance(message, Listed) else []
