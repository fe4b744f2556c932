"""Which elements of a global tensor this rank holds, and their bytes."""

from dataclasses import dataclass

import torch
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from headway.runner.checkpoint.format import Box


@dataclass(frozen=True)
class LocalTensor:
    """This rank's elements of a tensor of global `shape`: `data` holds `box`. `owned` is False where another rank writes the same."""

    shape: tuple[int, ...]
    box: Box
    data: torch.Tensor
    owned: bool


def local_tensor(tensor: torch.Tensor, rank: int) -> LocalTensor:
    """A DTensor's shard, or a plain tensor whole. What several ranks hold is written by the first of them (as DCP does)."""
    if isinstance(tensor, DTensor):
        return _local_shard(tensor)
    shape = tuple(tensor.shape)
    return LocalTensor(shape, Box((0,) * len(shape), shape), tensor.detach(), owned=rank == 0)


def _local_shard(tensor: DTensor) -> LocalTensor:
    shape, offset = compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, tensor.placements)
    place = tensor.device_mesh.get_coordinate()
    first = place is not None and all(
        at == 0 for at, placement in zip(place, tensor.placements, strict=True) if isinstance(placement, Replicate)
    )
    data = tensor.to_local().detach()
    return LocalTensor(tuple(tensor.shape), Box(tuple(offset), tuple(shape)), data, owned=first and data.numel() > 0)


def to_bytes(tensor: torch.Tensor) -> memoryview:
    """The elements, row-major, as bytes. Copies only what is not already contiguous in host memory."""
    host = tensor.detach().contiguous().cpu()
    return memoryview(host.reshape(-1).view(torch.uint8).numpy().data)


def from_bytes(raw: memoryview, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    """A new tensor of `shape` with the elements in `raw`."""
    return torch.frombuffer(bytearray(raw), dtype=torch.uint8).view(dtype).reshape(shape)


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def dtype_named(name: str) -> torch.dtype:
    """Raises ValueError for what is not a torch dtype."""
    found = getattr(torch, name, None)
    if not isinstance(found, torch.dtype):
        raise ValueError(f"{name!r} is not a torch dtype")
    return found
