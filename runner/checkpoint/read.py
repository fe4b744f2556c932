"""Reads a committed checkpoint as verified bytes: manifest, parts and chunks. Nothing else leaves this module."""

import errno
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import xxhash

from headway.runner.checkpoint.format import (
    MANIFEST,
    Box,
    Chunk,
    Manifest,
    Part,
    RefusedError,
    TensorEntry,
    chunk_seed,
    parse_manifest,
    parse_part,
    part_name,
)
from headway.runner.checkpoint.objects import decode
from headway.runner.checkpoint.sources import Source
from headway.runner.contract import Base, CheckpointId


@dataclass(frozen=True)
class Tensor:
    """A global tensor of the whole checkpoint: the chunks of all ranks; of duplicates, the first."""

    dtype: str
    shape: tuple[int, ...]
    chunks: tuple[Chunk, ...]


class Reader:
    """Reads one checkpoint of a run. Opening it verifies the manifest against the hash that the chain holds.

    Everything raises RefusedError, by file and tensor, for data that is missing or differs from what was committed.
    """

    def __init__(self, source: Source, run: str, base: Base) -> None:
        self.checkpoint: CheckpointId = base.checkpoint
        self.run, self._source = run, source
        raw = self._verified(MANIFEST, base.manifest_xxh3_128)
        self.manifest: Manifest = parse_manifest(raw, self.checkpoint)
        self._parts: dict[int, Part] = {}

    def part(self, rank: int) -> Part:
        """Return the part of `rank`; read once."""
        if rank not in self._parts:
            self._parts[rank] = parse_part(self.part_bytes(rank), self.checkpoint, rank)
        return self._parts[rank]

    def part_bytes(self, rank: int) -> bytes:
        """Return the part's file."""
        name, expected = part_name(rank), self.manifest.parts.get(str(rank))
        if expected is None:
            raise self.refuse(name, f"the manifest has no part of rank {rank}")
        return self._verified(name, expected)

    def parts(self) -> Iterator[Part]:
        """Yield every rank's part, in rank order."""
        return (self.part(rank) for rank in range(self.manifest.world_size))

    def objects(self, rank: int) -> dict[str, Any]:
        """Return the objects that `rank` saved."""
        return {name: decode(value) for name, value in self.part(rank).objects.items()}

    def tensors(self) -> dict[str, Tensor]:
        """Return every tensor of the checkpoint; reads all parts."""
        found: dict[str, TensorEntry] = {}
        chunks: dict[str, dict[Box, Chunk]] = {}
        for part in self.parts():
            for name, entry in part.tensors.items():
                known = found.setdefault(name, entry)
                if (known.dtype, known.shape) != (entry.dtype, entry.shape):
                    raise self.refuse(
                        part_name(part.rank), f"tensor `{name}` is {entry.dtype}{list(entry.shape)} in this part only"
                    )
                for chunk in entry.chunks:
                    chunks.setdefault(name, {}).setdefault(chunk.box, chunk)
        return {name: Tensor(entry.dtype, entry.shape, tuple(chunks.get(name, {}).values())) for name, entry in found.items()}

    def chunk_into(self, name: str, chunk: Chunk, out: memoryview) -> None:
        """Fill `out`, `chunk.length` bytes, with the chunk of tensor `name`, and verify it there."""
        try:
            seed = chunk_seed(self.run, self.checkpoint, name, chunk.box)
            found = self._source.read_into(chunk.file, chunk.offset, out, seed)
        except OSError as error:
            raise self._unread(chunk.file, error) from None
        except EOFError as error:
            raise self.refuse(chunk.file, f"tensor `{name}` {error}") from None
        if found != chunk.xxh3_128:
            raise self.refuse(chunk.file, f"tensor `{name}` at {chunk.box}: the bytes differ from those that were committed")

    def chunk(self, name: str, chunk: Chunk) -> bytearray:
        """Return the verified bytes of a chunk."""
        out = bytearray(chunk.length)
        self.chunk_into(name, chunk, memoryview(out))
        return out

    def refuse(self, name: str, reason: str, unread: int | None = None) -> RefusedError:
        return RefusedError(self.checkpoint, name, reason, unread)

    def _unread(self, name: str, error: OSError) -> RefusedError:
        gone = self._source.is_gone(name, error)
        return self.refuse(name, error.strerror or str(error), None if gone else error.errno or errno.EIO)

    def _verified(self, name: str, expected: str) -> bytes:
        try:
            raw = self._source.read(name)
        except OSError as error:
            raise self._unread(name, error) from None
        if (found := xxhash.xxh3_128_hexdigest(raw)) != expected:
            raise self.refuse(name, f"xxh3_128 is {found}, but {expected} was committed")
        return raw
