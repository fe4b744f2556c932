"""Computes which elements of a global tensor this rank holds, which ranks hold the same, and their bytes."""

from dataclasses import dataclass

import torch
from torch.distributed.tensor import DTensor, Partial, Replicate
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from headway.runner.checkpoint.format import Box


@dataclass(frozen=True)
class LocalTensor:
    """This rank's elements of a tensor of global `shape`: `data` holds `box`.

    `sharers` are the ranks that hold the same box, in ascending order. It is empty for a plain tensor: a rank cannot
    know by itself which others hold it.
    """

    shape: tuple[int, ...]
    box: Box
    data: torch.Tensor
    sharers: tuple[int, ...]


def local_tensor(tensor: torch.Tensor) -> LocalTensor:
    """Return a DTensor's local shard, or a plain tensor whole. Raises ValueError for partial sums, of which no rank
    holds the value."""
    if isinstance(tensor, DTensor):
        return _local_shard(tensor)
    shape = tuple(tensor.shape)
    return LocalTensor(shape, Box((0,) * len(shape), shape), tensor.detach(), ())


def refuse_partial(tensor: torch.Tensor) -> None:
    """Raise ValueError for partial sums, of which no rank holds the value."""
    if isinstance(tensor, DTensor) and any(isinstance(placement, Partial) for placement in tensor.placements):
        raise ValueError(f"a tensor with placements {tensor.placements} is an unreduced partial sum, so no rank holds its value")


def _local_shard(tensor: DTensor) -> LocalTensor:
    refuse_partial(tensor)
    shape, offset = compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, tensor.placements)
    return LocalTensor(tuple(tensor.shape), Box(tuple(offset), tuple(shape)), tensor.to_local().detach(), _sharers(tensor))


def _sharers(tensor: DTensor) -> tuple[int, ...]:
    """Return the ranks that differ from this one only along replicated mesh axes."""
    place = tensor.device_mesh.get_coordinate()
    # This rank is not in the mesh.
    if place is None:
        return ()
    free = tuple(
        slice(None) if isinstance(placement, Replicate) else at for at, placement in zip(place, tensor.placements, strict=True)
    )
    ranks: list[int] = tensor.device_mesh.mesh[free].flatten().tolist()
    return tuple(sorted(ranks))


def to_bytes(tensor: torch.Tensor) -> memoryview:
    """Return the elements, row-major, as bytes. Copies only what is not already contiguous in host memory."""
    host = tensor.detach().contiguous().cpu()
    return memoryview(host.reshape(-1).view(torch.uint8).numpy().data)


def from_bytes(raw: memoryview, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    """Return a tensor over `raw` without a copy. Writing through the tensor requires a writable `raw`."""
    return torch.frombuffer(raw, dtype=torch.uint8).view(dtype).reshape(shape) if len(raw) else torch.empty(shape, dtype=dtype)


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def dtype_named(name: str) -> torch.dtype:
    """Return the torch dtype called `name`. Raises ValueError if there is none."""
    found = getattr(torch, name, None)
    if not isinstance(found, torch.dtype):
        raise ValueError(f"{name!r} is not a torch dtype")
    return found
