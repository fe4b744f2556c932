"""Accepts captures from other nodes' keepers, and serves them back."""

import json
import logging
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import xxhash

from headway.runner.checkpoint.keeper.channel import Channel, KeeperChannelError
from headway.runner.checkpoint.keeper.copies import Copies, Copy
from headway.runner.checkpoint.keeper.memory import NoMemoryError, Region
from headway.runner.checkpoint.keeper.peer import PeerNetwork
from headway.runner.checkpoint.keeper.transfer import Name, TransferError, receive_data, receive_part, send_data
from headway.runner.contract import CheckpointId
from headway.runner.posix import write_atomic

_log = logging.getLogger(__name__)

Lookup = Callable[[int, CheckpointId], "HeldCapture | None"]

# Connections that have not authenticated; with one more, the oldest of them is closed.
STRANGERS = 64
LISTEN_RETRY_S = 1.0
# Of six bytes at most: they fit a record.
REASON_CHARACTERS = 500


@dataclass(frozen=True)
class HeldCapture:
    """A capture that is held here: `size` bytes in `region`, its part, and a function that releases both."""

    size: int
    part: bytes
    region: Region
    release: Callable[[], None]


class KeeperListener:
    """`serve` never returns. A client without the run's secret gets no further than its first frame."""

    def __init__(self, copies: Copies, lookup: Lookup, network: PeerNetwork) -> None:
        self._copies, self._lookup, self._network = copies, lookup, network
        self._strangers: deque[socket.socket] = deque()
        self._lock = threading.Lock()

    def serve(self, host: str, address_file: Path) -> None:
        """Listen on any free port of `host`, and write it to `address_file`."""
        listening = _listen(host)
        # Accepted connections inherit it (ip(7)).
        self._network.mark(listening)
        address_file.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(address_file, json.dumps({"host": host, "port": listening.getsockname()[1]}).encode() + b"\n")
        while True:
            connection, _ = listening.accept()
            self._admit(connection)
            threading.Thread(target=self._attend, args=(connection,), daemon=True).start()

    def _admit(self, connection: socket.socket) -> None:
        with self._lock:
            self._strangers.append(connection)
            oldest = self._strangers.popleft() if len(self._strangers) > STRANGERS else None
        if oldest is not None:
            _hang_up(oldest)

    def _attend(self, connection: socket.socket) -> None:
        """Serve one connection, of a keeper or a stranger, until it ends."""
        channel = Channel(connection, self._network.secret, "listener")
        try:
            channel.handshake()
            request: dict[str, Any] | None = channel.receive()
            self._is_no_stranger(connection)
            while request is not None:
                self._answer(channel, request)
                request = channel.receive_if_any()
        except (KeeperChannelError, TransferError) as error:
            _log.warning("refused a connection: %s", error)
        finally:
            self._is_no_stranger(connection)
            channel.close()

    def _is_no_stranger(self, connection: socket.socket) -> None:
        with self._lock:
            if connection in self._strangers:
                self._strangers.remove(connection)

    # --- requests -----------------------------------------------------------------------------------------------------

    def _answer(self, channel: Channel, request: dict[str, Any]) -> None:
        match request.get("what"):
            case "copy":
                self._take(channel, Name.of(request), int(request["bytes"]), int(request["part_bytes"]))
            case "fetch":
                self._give(channel, Name.of(request))
            case what:
                raise TransferError(f"a keeper never requests {what!r}")

    def _take(self, channel: Channel, name: Name, size: int, part_bytes: int) -> None:
        try:
            region = self._copies.region(name.rank, name.checkpoint.generation, size)
        except NoMemoryError as error:
            _refuse(channel, f"a copy of rank {name.rank}: {error}")
            return
        channel.send({"what": "go"})
        try:
            raw = receive_part(channel, part_bytes)
            receive_data(channel, name, name.part(raw), region.view[:size])
        except TransferError as error:
            self._copies.give_back(region)
            _refuse(channel, str(error))
            return
        except KeeperChannelError:
            self._copies.give_back(region)
            raise
        self._copies.keep(Copy(name.rank, name.checkpoint, size, raw, xxhash.xxh3_128_hexdigest(raw), region))
        channel.send({"what": "kept"})

    def _give(self, channel: Channel, name: Name) -> None:
        found = self._lookup(name.rank, name.checkpoint)
        if found is None:
            _refuse(channel, f"no capture of rank {name.rank} in {name.checkpoint.directory} is held there")
            return
        try:
            channel.send({"what": "found", "bytes": found.size, "part_bytes": len(found.part)})
            channel.send_bytes(found.part)
            send_data(channel, name.part(found.part), found.region.view[: found.size])
        finally:
            found.release()


def _refuse(channel: Channel, reason: str) -> None:
    channel.send({"what": "refused", "reason": reason[:REASON_CHARACTERS]})


def _hang_up(connection: socket.socket) -> None:
    # It has left already.
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


def _listen(host: str) -> socket.socket:
    """Return a listening socket, waiting for this machine's name: in a pod, DNS learns it after the start."""
    while True:
        try:
            return socket.create_server((host, 0), backlog=128)
        except OSError as error:
            _log.error("cannot listen on `%s`: %s", host, error)
        time.sleep(LISTEN_RETRY_S)
