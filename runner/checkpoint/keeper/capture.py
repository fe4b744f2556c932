"""Describes a rank's state as bytes in one buffer: the layout, and what a keeper knows about it."""

from dataclasses import dataclass
from typing import Any, Protocol

from headway.runner.checkpoint.format import Box

# Buffers and files are cut to this: what O_DIRECT asks of addresses, offsets and lengths on every file system in use (open(2), NOTES).
ALIGN = 4096


@dataclass(frozen=True)
class Held:
    """A tensor of a rank: torch's name of its dtype, its global shape, and the box of it that the rank has."""

    dtype: str
    shape: tuple[int, ...]
    box: Box


@dataclass(frozen=True)
class Piece:
    """`length` bytes at `offset` of the buffer: the elements of `box` of tensor `name`, row-major.

    `owned`: this rank writes it to storage. The other pieces are copies of what another rank writes.
    """

    name: str
    box: Box
    offset: int
    length: int
    owned: bool


@dataclass(frozen=True)
class Layout:
    """What lies where in a rank's buffer of `bytes`. The owned pieces come first and end at `owned_bytes`, a multiple of ALIGN."""

    tensors: dict[str, Held]
    pieces: tuple[Piece, ...]
    owned_bytes: int
    bytes: int


@dataclass(frozen=True)
class Capture:
    """A rank's state at one step, sealed: `hashes` are those of the layout's pieces, in order. `view` is the buffer, not to be written."""

    rank: int
    layout: Layout
    view: memoryview
    hashes: tuple[str, ...]
    objects: dict[str, Any]  # encoded (objects.py)


@dataclass(frozen=True)
class NodeCapture:
    """The captures of all ranks of a slot at one step, in order of ranks."""

    run: str
    slot: int
    step: int
    generation: int
    ranks: tuple[Capture, ...]


@dataclass(frozen=True)
class Stored:
    """What one rank's state has become in storage: the hash of its part there, and the data file that it lies in, with the file's bytes."""

    rank: int
    part_xxh3_128: str
    file: str
    file_bytes: int


class Storage(Protocol):
    """Where a keeper brings the captures of its node: a directory, an object store."""

    def store(self, node: NodeCapture) -> list[Stored]:
        """Writes data and parts, durably; what it wrote counts once a manifest names it. Raises OSError."""
        ...
