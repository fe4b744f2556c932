"""Transfers a capture between keepers: its name, its part, then its data in frames that follow from the part."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from headway.runner.checkpoint.format import Part, RefusedError, chunk_hash, chunk_seed, parse_part
from headway.runner.checkpoint.keeper.channel import Channel
from headway.runner.contract import CheckpointId

FRAME_BYTES = 4 << 20
# 100,000 pieces are 30 MB.
MAX_PART_BYTES = 64 << 20


class TransferError(Exception):
    """The other keeper is unreachable, or refuses or fails a request; the message has the reason."""


@dataclass(frozen=True)
class Name:
    """Identifies a capture."""

    run: str
    rank: int
    checkpoint: CheckpointId

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> "Name":
        """Parse a record. Raises PeerError if it names no capture."""
        try:
            checkpoint = CheckpointId(int(record["step"]), int(record["generation"]))
            return cls(str(record["run"]), int(record["rank"]), checkpoint)
        except (KeyError, TypeError, ValueError) as error:
            raise TransferError(f"a request without {error}") from None

    def record(self, what: str) -> dict[str, Any]:
        """Return a request for the capture."""
        place = self.checkpoint
        return {"what": what, "run": self.run, "rank": self.rank, "step": place.step, "generation": place.generation}

    def part(self, raw: bytes) -> Part:
        """Return the capture's part. Raises PeerError when `raw` is invalid."""
        try:
            return parse_part(raw, self.checkpoint, self.rank)
        except RefusedError as error:
            raise TransferError(str(error)) from None


def receive_part(channel: Channel, size: int) -> bytes:
    """Return a part of `size` bytes, which the other side has announced. Raises ChannelError, PeerError."""
    if not 0 <= size <= MAX_PART_BYTES:
        raise TransferError(f"a part of {size} bytes")
    raw = bytearray(size)
    channel.receive_into(memoryview(raw))
    return bytes(raw)


def send_data(channel: Channel, part: Part, view: memoryview) -> None:
    """Send the chunks of a part in memory out of `view`. Raises ChannelError."""
    for entry in part.tensors.values():
        for chunk in entry.chunks:
            piece = view[chunk.offset : chunk.offset + chunk.length]
            for begin in range(0, chunk.length, FRAME_BYTES):
                channel.send_bytes(piece[begin : begin + FRAME_BYTES])


def receive_data(channel: Channel, name: Name, part: Part, view: memoryview) -> None:
    """Fill `view` with the chunks from `send_data`, and verify each. Raises ChannelError, PeerError."""
    wrong = ""
    for tensor, entry in part.tensors.items():
        for chunk in entry.chunks:
            if chunk.offset < 0 or chunk.length < 0 or chunk.offset + chunk.length > len(view):
                raise TransferError(f"tensor `{tensor}` at {chunk.box} is outside the capture's {len(view)} bytes")
            piece = view[chunk.offset : chunk.offset + chunk.length]
            for begin in range(0, chunk.length, FRAME_BYTES):
                channel.receive_into(piece[begin : begin + FRAME_BYTES])
            if chunk_hash(piece, chunk_seed(name.run, name.checkpoint, tensor, chunk.box)) != chunk.xxh3_128:
                wrong = wrong or f"tensor `{tensor}` at {chunk.box}: the bytes differ from those that were sealed"
    # Raised after everything has been read, so that the sender gets the error.
    if wrong:
        raise TransferError(wrong)
