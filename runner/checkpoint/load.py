"""A committed checkpoint -> this rank's tensors, filled in place, and its objects; every byte verified on the way."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from headway.runner.checkpoint.chain import Base, CheckpointId
from headway.runner.checkpoint.format import (
    MANIFEST,
    Box,
    Chunk,
    Manifest,
    Part,
    RefusedError,
    TensorEntry,
    chunk_hash,
    chunk_seed,
    parse_manifest,
    parse_part,
    part_name,
    read_verified,
)
from headway.runner.checkpoint.objects import decode
from headway.runner.checkpoint.tensors import LocalTensor, dtype_name, dtype_named, from_bytes, local_tensor


class Reader:
    """Reads one checkpoint of a run. Opening it verifies the manifest against the hash that the chain holds."""

    def __init__(self, root: Path, run: str, base: Base) -> None:
        self.checkpoint: CheckpointId = base.checkpoint
        self._directory = root / self.checkpoint.directory
        self._run = run
        raw = read_verified(self._directory, self.checkpoint, MANIFEST, base.manifest_xxh3_128)
        self.manifest: Manifest = parse_manifest(raw, self.checkpoint)
        self._parts: dict[int, Part] = {}

    def objects(self, rank: int) -> dict[str, Any]:
        """The objects that `rank` saved. Raises RefusedError."""
        return {name: decode(value) for name, value in self._part(rank).objects.items()}

    def load(self, tensors: Mapping[str, torch.Tensor], rank: int) -> None:
        """Fills `tensors` in place, whatever layout they were saved under. Raises RefusedError naming file and tensor.

        Parts are read own rank first and only until every element is covered: under the same layout that is one or two files.
        """
        missing = {name: local_tensor(tensor, rank) for name, tensor in tensors.items()}
        covered = dict.fromkeys(missing, 0)
        for part_rank in self._order(rank):
            for name, local in list(missing.items()):
                entry = self._part(part_rank).tensors.get(name)
                if entry is not None:
                    covered[name] += self._fill(name, tensors[name], local, entry)
                if covered[name] == local.data.numel():
                    del missing[name]
            if not missing:
                return
        name, local = next(iter(missing.items()))
        raise self._refuse(
            part_name(rank), f"tensor `{name}`: {covered[name]} of {local.data.numel()} elements of {local.box} are there"
        )

    def _order(self, rank: int) -> list[int]:
        ranks = range(self.manifest.world_size)
        return sorted(ranks, key=lambda r: (r != rank, r))

    def _part(self, rank: int) -> Part:
        if rank not in self._parts:
            name, expected = part_name(rank), self.manifest.parts.get(str(rank))
            if expected is None:
                raise self._refuse(name, f"the manifest has no part of rank {rank}")
            self._parts[rank] = parse_part(read_verified(self._directory, self.checkpoint, name, expected), self.checkpoint, rank)
        return self._parts[rank]

    def _fill(self, name: str, tensor: torch.Tensor, local: LocalTensor, entry: TensorEntry) -> int:
        """Copies what `entry` holds of `local`; returns the number of elements copied."""
        if entry.shape != local.shape or entry.dtype != dtype_name(tensor.dtype):
            found, wanted = f"{entry.dtype}{list(entry.shape)}", f"{dtype_name(tensor.dtype)}{list(local.shape)}"
            raise self._refuse(MANIFEST, f"tensor `{name}` is {found} there and {wanted} here")
        target = tensor.to_local() if isinstance(tensor, DTensor) else tensor
        return sum(self._copy(name, target.detach(), local.box, entry.dtype, c, part) for c, part in _overlaps(entry, local.box))

    def _copy(self, name: str, target: torch.Tensor, box: Box, dtype: str, chunk: Chunk, part: Box) -> int:
        source = from_bytes(self._bytes(name, chunk), dtype_named(dtype), chunk.box.shape)
        piece = source[part.within(chunk.box)]
        target[part.within(box)].copy_(piece)
        return piece.numel()

    def _bytes(self, name: str, chunk: Chunk) -> memoryview:
        try:
            with (self._directory / chunk.file).open("rb") as file:
                file.seek(chunk.offset)
                raw = file.read(chunk.length)
        except OSError as error:
            raise self._refuse(chunk.file, error.strerror or str(error)) from None
        if len(raw) != chunk.length:
            raise self._refuse(chunk.file, f"tensor `{name}` ends after {len(raw)} of {chunk.length} bytes")
        if chunk_hash(raw, chunk_seed(self._run, self.checkpoint, name, chunk.box)) != chunk.xxh3_128:
            raise self._refuse(chunk.file, f"tensor `{name}` at {chunk.box}: the bytes are not those that were committed")
        return memoryview(raw)

    def _refuse(self, name: str, reason: str) -> RefusedError:
        return RefusedError(self.checkpoint, name, reason)


def _overlaps(entry: TensorEntry, box: Box) -> Iterator[tuple[Chunk, Box]]:
    for chunk in entry.chunks:
        if (part := chunk.box.intersect(box)) is not None:
            yield chunk, part
