"""Describes a rank's state as bytes in one buffer: the layout, and what a keeper knows about it."""

from dataclasses import dataclass
from typing import Any, Protocol

from headway.runner.checkpoint.format import Box

# The alignment of buffers and files: O_DIRECT requires it of addresses, offsets and lengths on every file system in use
# (open(2), NOTES).
ALIGN = 4096


@dataclass(frozen=True)
class Held:
    """A tensor of a rank: torch's name of its dtype, its global shape, and the box of it that the rank has."""

    dtype: str
    shape: tuple[int, ...]
    box: Box


@dataclass(frozen=True)
class BufferPiece:
    """`length` bytes at `offset` of the buffer: the elements of `box` of tensor `name`, row-major.

    `owned`: this rank writes it to storage. The other pieces are copies of another rank's.
    """

    name: str
    box: Box
    offset: int
    length: int
    owned: bool


@dataclass(frozen=True)
class BufferLayout:
    """The layout of a rank's buffer of `bytes`. The owned pieces come first and end at `owned_bytes`, a multiple of ALIGN."""

    tensors: dict[str, Held]
    pieces: tuple[BufferPiece, ...]
    owned_bytes: int
    bytes: int


@dataclass(frozen=True)
class Capture:
    """A rank's state at one step, sealed: `hashes` are those of the layout's pieces, in order. `view` is the buffer,
    not to be written."""

    rank: int
    layout: BufferLayout
    view: memoryview
    hashes: tuple[str, ...]
    # Encoded (objects.py).
    objects: dict[str, Any]


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
    """One rank's state in storage: the hash of its part there, the data file with its tensors, and that file's size in bytes."""

    rank: int
    part_xxh3_128: str
    file: str
    file_bytes: int


class CaptureStorage(Protocol):
    """The destination of a node's captures: a directory, an object store."""

    def store(self, node: NodeCapture) -> list[Stored]:
        """Write data and parts, durably; they count once a manifest names them. Raises OSError."""
        ...
