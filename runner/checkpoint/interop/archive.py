"""Reads a checkpoint of any origin as named tensors and objects, one tensor at a time."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, Protocol

import torch

from headway.runner.checkpoint.format import MANIFEST
from headway.runner.checkpoint.read import Reader
from headway.runner.checkpoint.tensors import dtype_named
from headway.runner.checkpoint.tools.inspect import distinct


@dataclass(frozen=True)
class Described:
    """A tensor without its elements; `dtype` is torch's name for it."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def bytes(self) -> int:
        return prod(self.shape) * dtype_named(self.dtype).itemsize

    def __str__(self) -> str:
        return f"{self.dtype}{list(self.shape)}"


class Archive(Protocol):
    """The input of `diff`, `export` and `import`."""

    def tensors(self) -> Mapping[str, Described]:
        """Return every tensor, by name."""
        ...

    def tensor(self, name: str) -> torch.Tensor:
        """Return the tensor whole, in host memory."""
        ...

    def objects(self) -> Mapping[str, Any]:
        """Return the values that are not tensors, as `rank -> name -> value`, or by name if the format has no ranks."""
        ...


class Verified:
    """A checkpoint in headway's format. Everything raises RefusedError for data that differs from what was committed."""

    def __init__(self, reader: Reader) -> None:
        self.reader = reader
        self._tensors = reader.tensors()

    def tensors(self) -> dict[str, Described]:
        return {name: Described(tensor.dtype, tensor.shape) for name, tensor in self._tensors.items()}

    def tensor(self, name: str) -> torch.Tensor:
        stored = self._tensors[name]
        dtype, chunks = dtype_named(stored.dtype), distinct(stored.chunks)
        if (covered := sum(prod(chunk.box.shape) for chunk in chunks)) != prod(stored.shape):
            raise self.reader.refuse(MANIFEST, f"tensor `{name}`: {covered} of {prod(stored.shape)} elements are present")
        found = torch.empty(stored.shape, dtype=dtype)
        for chunk in chunks:
            raw = torch.frombuffer(self.reader.chunk(name, chunk), dtype=torch.uint8)
            found[tuple(slice(o, o + n) for o, n in zip(chunk.box.offset, chunk.box.shape, strict=True))] = raw.view(
                dtype
            ).reshape(chunk.box.shape)
        return found

    def objects(self) -> dict[str, Any]:
        return {str(rank): self.reader.objects(rank) for rank in range(self.reader.manifest.world_size)}
