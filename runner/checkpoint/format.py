"""Defines a checkpoint's records on disk: manifest, parts and chunks, and the hashes that bind bytes to their place (docs/records.md)."""

import json
from dataclasses import dataclass
from math import prod
from typing import Any, TypeVar

import xxhash

from headway.runner.contract import CheckpointId, RecordError, from_json, to_json

FORMAT = "headway.checkpoint/2"
MANIFEST = "manifest.json"

T = TypeVar("T")


class RefusedError(Exception):
    """A checkpoint failed verification. `name` is the file (and tensor) that did, `reason` the cause. `unread`: the
    errno of a read error, which is no damage."""

    def __init__(self, checkpoint: CheckpointId, name: str, reason: str, unread: int | None = None) -> None:
        super().__init__(f"{checkpoint.directory}/{name}: {reason}")
        self.checkpoint, self.name, self.reason, self.unread = checkpoint, name, reason, unread

    def __reduce__(self) -> tuple[type["RefusedError"], tuple[CheckpointId, str, str, int | None]]:
        """torch.distributed.checkpoint pickles a rank's error to send it to the others; by default only the message
        would be included."""
        return type(self), (self.checkpoint, self.name, self.reason, self.unread)


class UnfitError(Exception):
    """A checkpoint is intact, but of another model or another optimizer. No other checkpoint is tried."""


@dataclass(frozen=True)
class Box:
    """A hyper-rectangle of a global tensor: its offset and its size along each dimension."""

    offset: tuple[int, ...]
    shape: tuple[int, ...]

    def __str__(self) -> str:
        return f"{list(self.offset)}+{list(self.shape)}"

    @property
    def elements(self) -> int:
        return prod(self.shape)

    def intersect(self, other: "Box") -> "Box | None":
        """Return the common part, in global coordinates; None if there is none."""
        begin = tuple(max(a, b) for a, b in zip(self.offset, other.offset, strict=True))
        ends = (min(a + n, b + m) for a, n, b, m in zip(self.offset, self.shape, other.offset, other.shape, strict=True))
        shape = tuple(end - start for start, end in zip(begin, ends, strict=True))
        return None if any(n <= 0 for n in shape) else Box(begin, shape)

    def within(self, outer: "Box") -> tuple[slice, ...]:
        """Return the slices that select this box from an array that holds `outer`."""
        return tuple(slice(a - o, a - o + n) for a, o, n in zip(self.offset, outer.offset, self.shape, strict=True))


@dataclass(frozen=True)
class Chunk:
    """`length` bytes at `offset` of `file`: the elements of `box`, row-major, hashed with a seed that names their place."""

    file: str
    offset: int
    length: int
    box: Box
    xxh3_128: str


@dataclass(frozen=True)
class TensorEntry:
    """One rank's chunks of a global tensor of `shape`; `dtype` is torch's name for it.

    `held` is all that the rank had of the tensor. Its chunks may be less: ranks that held the same wrote the rest.
    """

    dtype: str
    shape: tuple[int, ...]
    held: Box
    chunks: tuple[Chunk, ...]


@dataclass(frozen=True)
class Part:
    """part-<rank>.json: the record of one rank's data."""

    rank: int
    tensors: dict[str, TensorEntry]
    objects: dict[str, Any]
    schema: str = "headway.checkpoint.part/2"


@dataclass(frozen=True)
class Manifest:
    """manifest.json, written last: the hash of every part, by rank, and the bytes of every data file. Its own hash is
    on the chain.

    The parts verify the data files: they hold the hash of each chunk. A copy in memory has no files.
    """

    run: str
    step: int
    generation: int
    world_size: int
    mesh: dict[str, int]
    parts: dict[str, str]
    files: dict[str, int]
    trust: str
    versions: dict[str, str]
    schema: str = FORMAT


def part_name(rank: int) -> str:
    return f"part-{rank}.json"


def data_name(slot: int, index: int) -> str:
    return f"data-{slot}-{index}.bin"


def chunk_seed(run: str, checkpoint: CheckpointId, name: str, box: Box) -> int:
    """Return the seed that binds a chunk's hash to run, step, generation, tensor and place: the right bytes in the
    wrong place are wrong."""
    place = f"{run}/{checkpoint.step}/{checkpoint.generation}/{name}/{box}"
    return xxhash.xxh3_64_intdigest(place.encode())


def chunk_hash(data: memoryview | bytes, seed: int) -> str:
    return xxhash.xxh3_128_hexdigest(data, seed=seed)


def record_bytes(record: Part | Manifest) -> bytes:
    return to_json(record).encode()


def parse_manifest(raw: bytes, checkpoint: CheckpointId) -> Manifest:
    return _parse(Manifest, raw, checkpoint, MANIFEST)


def parse_part(raw: bytes, checkpoint: CheckpointId, rank: int) -> Part:
    return _parse(Part, raw, checkpoint, part_name(rank))


def _parse(kind: type[T], raw: bytes, checkpoint: CheckpointId, name: str) -> T:
    try:
        return from_json(kind, raw.decode())
    except (RecordError, json.JSONDecodeError, UnicodeDecodeError) as error:
        raise RefusedError(checkpoint, name, str(error)) from None
