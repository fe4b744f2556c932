"""Writes one part of a checkpoint: tensors cut into chunks in one data file, then the part that names and hashes them."""

import os
from collections.abc import Iterator
from math import prod
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
import xxhash

from headway.runner.checkpoint.format import Box, Chunk, Part, TensorEntry, chunk_hash, chunk_seed, record_bytes
from headway.runner.checkpoint.keeper.capture import Stored
from headway.runner.checkpoint.objects import ObjectError, encode
from headway.runner.checkpoint.tensors import dtype_name, to_bytes
from headway.runner.contract import CheckpointId
from headway.runner.posix import write_durable

CHUNK_BYTES = 64 << 20
"""The bytes that one hash covers, so that a reader of a few rows verifies little more than these."""


class PartWriter:
    """Writes tensors and objects of one rank of a checkpoint, without any other process: for imports and other
    libraries' savers.

    Nothing is durable, and no part exists, before `finish`. Everything raises OSError.
    """

    def __init__(self, data: Path, rank: int, run: str, checkpoint: CheckpointId) -> None:
        self.data, self._rank, self._run, self._checkpoint = data, rank, run, checkpoint
        self._file = data.open("wb")
        self._tensors: dict[str, TensorEntry] = {}
        self._objects: dict[str, Any] = {}

    def __enter__(self) -> "PartWriter":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._file.close()

    def add(
        self, name: str, tensor: torch.Tensor, shape: tuple[int, ...] | None = None, offset: tuple[int, ...] | None = None
    ) -> None:
        """Write a tensor whole, or as the box at `offset` of one of `shape`; the boxes of a name may not overlap.

        Raises ObjectError for a tensor that is not its elements in a row (sparse, quantized).
        """
        if tensor.layout is not torch.strided or tensor.is_quantized:
            raise ObjectError(
                f"tensor `{name}` is {tensor.layout}, quantized: {tensor.is_quantized}; only plain elements can be stored"
            )
        place = Box(offset or (0,) * tensor.dim(), tuple(tensor.shape))
        entry = self._tensors.get(name, TensorEntry(dtype_name(tensor.dtype), shape or place.shape, place, ()))
        chunks = tuple(self._chunk(name, box, tensor[box.within(place)]) for box in cut(place, tensor.element_size()))
        self._tensors[name] = TensorEntry(entry.dtype, entry.shape, around(entry.held, place), entry.chunks + chunks)

    def hold(self, name: str, value: Any) -> None:
        """Keep an object. Raises ObjectError, by name, for types that objects.py does not support."""
        self._objects[name] = encode(value, name)

    def finish(self, part: Path) -> Stored:
        """Make the data durable, then write the part at `part`."""
        self._file.flush()
        os.fsync(self._file.fileno())
        raw = record_bytes(Part(self._rank, self._tensors, self._objects))
        write_durable(part, raw)
        return Stored(self._rank, xxhash.xxh3_128_hexdigest(raw), self.data.name, self._file.tell())

    def _chunk(self, name: str, box: Box, data: torch.Tensor) -> Chunk:
        raw, offset = to_bytes(data), self._file.tell()
        self._file.write(raw)
        hashed = chunk_hash(raw, chunk_seed(self._run, self._checkpoint, name, box))
        return Chunk(self.data.name, offset, raw.nbytes, box, hashed)


def cut(box: Box, element_bytes: int) -> Iterator[Box]:
    """Yield the box as boxes of whole rows, at most CHUNK_BYTES each unless a single row is longer; none for an empty box."""
    if 0 in box.shape:
        return
    if not box.shape:
        yield box
        return
    rows = max(1, CHUNK_BYTES // (prod(box.shape[1:]) * element_bytes))
    for begin in range(0, box.shape[0], rows):
        yield Box((box.offset[0] + begin, *box.offset[1:]), (min(rows, box.shape[0] - begin), *box.shape[1:]))


def around(one: Box, other: Box) -> Box:
    """Return the smallest box that holds both."""
    begin = tuple(map(min, one.offset, other.offset))
    ends = (max(a + n, b + m) for a, n, b, m in zip(one.offset, one.shape, other.offset, other.shape, strict=True))
    return Box(begin, tuple(end - start for start, end in zip(begin, ends, strict=True)))
