"""Copies captures to the partner, another node's keeper, and fetches them back."""

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headway.runner.checkpoint.format import record_bytes
from headway.runner.checkpoint.keeper.capture import Capture, NodeCapture, Stored
from headway.runner.checkpoint.keeper.channel import HANDSHAKE_S, Channel, KeeperChannelError
from headway.runner.checkpoint.keeper.memory import KeeperMemory, Region
from headway.runner.checkpoint.keeper.parts import memory_part
from headway.runner.checkpoint.keeper.transfer import Name, TransferError, receive_data, receive_part, send_data
from headway.runner.contract import CheckpointId


@dataclass(frozen=True)
class PeerNetwork:
    """The connection parameters between keepers: the run's secret, and the DSCP (RFC 2474) of their packets; None: the
    system's."""

    secret: bytes
    dscp: int | None = None

    def mark(self, connection: socket.socket) -> None:
        """Set the DSCP: the upper six bits of what IP_TOS and IPV6_TCLASS set (ip(7), ipv6(7))."""
        if self.dscp is None:
            return
        if connection.family == socket.AF_INET6:
            connection.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_TCLASS, self.dscp << 2)
        else:
            connection.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, self.dscp << 2)


@dataclass(frozen=True)
class Partner:
    """The keeper whose address is in `address_file`, which it writes at each start."""

    address_file: Path
    network: PeerNetwork

    def store(self, node: NodeCapture) -> list[Stored]:
        """Copy the captures of all ranks; nothing is stored in files. Raises PeerError."""
        with self._channel() as channel:
            for capture in node.ranks:
                _copy(channel, Name(node.run, capture.rank, CheckpointId(node.step, node.generation)), capture)
        return []

    def fetch(self, name: Name, memory: KeeperMemory) -> tuple[Region, int, bytes]:
        """Return the partner's copy: a region that holds it, verified, its size in bytes and its part. Raises
        PeerError, NoMemoryError."""
        with self._channel() as channel:
            channel.send(name.record("fetch"))
            answer = _expect(channel, "found")
            size, raw = int(answer["bytes"]), receive_part(channel, int(answer["part_bytes"]))
            part = name.part(raw)
            region = memory.region(size)
            try:
                receive_data(channel, name, part, region.view[:size])
            except (KeeperChannelError, TransferError):
                memory.give_back(region)
                raise
            return region, size, raw

    @contextmanager
    def _channel(self) -> Iterator[Channel]:
        """Yield an authenticated connection. Every ChannelError is raised as a PeerError."""
        try:
            address = json.loads(self.address_file.read_text())
            connection = socket.create_connection((address["host"], address["port"]), HANDSHAKE_S)
        except (OSError, ValueError, KeyError) as error:
            raise TransferError(f"the partner of {self.address_file} cannot be reached: {error}") from None
        with connection:
            self.network.mark(connection)
            channel = Channel(connection, self.network.secret, "dialer")
            try:
                channel.handshake()
                yield channel
            except KeeperChannelError as error:
                raise TransferError(f"the partner at {address['host']}:{address['port']}: {error}") from None


def _copy(channel: Channel, name: Name, capture: Capture) -> None:
    """Send a capture, after the partner has proved by its answer to the request that it has the secret."""
    raw = record_bytes(memory_part(capture))
    channel.send({**name.record("copy"), "bytes": capture.layout.bytes, "part_bytes": len(raw)})
    _expect(channel, "go")
    channel.send_bytes(raw)
    # In the order in which the other side reads it.
    send_data(channel, name.part(raw), capture.view)
    _expect(channel, "kept")


def _expect(channel: Channel, what: str) -> dict[str, Any]:
    answer = channel.receive()
    if answer.get("what") != what:
        raise TransferError(f"the partner refused: {answer.get('reason')}")
    return answer
