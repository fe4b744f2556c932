"""What a rank holds -> what lies where in its buffer, and which of it the rank writes. A local rule: ranks need no plan of all."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import torch
import xxhash
from torch.distributed.tensor import DTensor

from headway.runner.checkpoint.format import Box
from headway.runner.checkpoint.keeper.capture import ALIGN, Held, Layout, Piece
from headway.runner.checkpoint.ranks import Ranks
from headway.runner.checkpoint.tensors import LocalTensor, dtype_name, local_tensor

# A piece is hashed, written and read at once, and read again by another layout whole: small enough for that, large enough for a disk.
PIECE_BYTES = 64 << 20
# What is smaller is not cut among those who hold it: one of them writes it, and below TINY_BYTES each does, so that a rank which holds
# a counter or a scale needs no other rank's part to read it.
SHARED_BYTES = 1 << 20
TINY_BYTES = 4 << 10
_PLACE = 64  # where a piece may begin: any dtype may be viewed there, and no two ranks' pieces share a cache line


@dataclass(frozen=True)
class State:
    """What one rank saves: tensors by global name (plain ones are the same on every rank that has them), and objects of its own."""

    tensors: Mapping[str, torch.Tensor]
    objects: Mapping[str, Any]


@dataclass(frozen=True)
class Planned:
    """A rank's layout with what a save and a load need beside it: the ranks that hold each tensor's box alike."""

    layout: Layout
    sharers: dict[str, tuple[int, ...]]


class Planner:
    """Plans are kept for as long as names, shapes and placements stay the same."""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        self._known: dict[tuple[object, ...], Planned] = {}

    def plan(self, tensors: Mapping[str, torch.Tensor], whole: bool) -> Planned:
        """`whole`: the buffer holds all that the rank has, for a restore from memory; otherwise only what it writes.

        Collective when it is not known yet, so all ranks must meet a change of their state at the same call.
        """
        key = (whole, *(_signature(name, tensor) for name, tensor in tensors.items()))
        if key not in self._known:
            locals_ = {name: local_tensor(tensor) for name, tensor in tensors.items()}
            sharers = who_shares(locals_, self._ranks)
            kinds = {name: dtype_name(tensor.dtype) for name, tensor in tensors.items()}
            self._known = {key: Planned(plan_layout(locals_, kinds, sharers, self._ranks.rank, whole), sharers)}
        return self._known[key]


def _signature(name: str, tensor: torch.Tensor) -> tuple[object, ...]:
    if isinstance(tensor, DTensor):
        return name, tensor.shape, tensor.dtype, tensor.placements, id(tensor.device_mesh)
    return name, tensor.shape, tensor.dtype


def who_shares(tensors: Mapping[str, LocalTensor], ranks: Ranks) -> dict[str, tuple[int, ...]]:
    """The ranks that hold each tensor's box alike; collective. A plain tensor is shared by all that have one of its name and shape."""
    plain = sorted(_named(name, local) for name, local in tensors.items() if not local.sharers)
    names = json.dumps(plain).encode()
    digests = ranks.gather(xxhash.xxh3_128_digest(names))
    everyone = tuple(range(ranks.world_size))
    if len(set(digests)) == 1:
        return {name: local.sharers or everyone for name, local in tensors.items()}
    known = [set(json.loads(raw)) for raw in ranks.gather_any(names)]
    return {
        name: local.sharers or tuple(rank for rank in everyone if _named(name, local) in known[rank])
        for name, local in tensors.items()
    }


def _named(name: str, local: LocalTensor) -> str:
    return f"{name} {list(local.shape)}"


def plan_layout(
    tensors: Mapping[str, LocalTensor],
    dtypes: Mapping[str, str],
    sharers: Mapping[str, Sequence[int]],
    rank: int,
    whole: bool,
) -> Layout:
    """The buffer of `rank`: owned pieces first, then, if it is to be `whole`, those that others write."""
    owned, others = list[Piece](), list[Piece]()
    for name, local in tensors.items():
        item = local.data.element_size()
        for box, mine in _shares(name, local.box, item, sharers[name], rank):
            (owned if mine else others).extend(_pieces(name, box, item, mine))
    placed, end = _place(owned, 0)
    owned_bytes = _up(end, ALIGN)
    rest, end = _place(others if whole else [], owned_bytes)
    held = {name: Held(dtypes[name], local.shape, local.box) for name, local in tensors.items()}
    return Layout(held, (*placed, *rest), owned_bytes, max(ALIGN, _up(end, ALIGN)))


def _shares(name: str, box: Box, item: int, sharers: Sequence[int], rank: int) -> Iterator[tuple[Box, bool]]:
    """The box in up to three parts, row by row, and whether this rank writes each."""
    size = prod(box.shape) * item
    if size == 0:
        return
    count, at = len(sharers), sharers.index(rank)
    if count == 1 or size <= TINY_BYTES:
        yield box, True
    elif size <= SHARED_BYTES or box.shape[0] < count:
        yield box, xxhash.xxh3_64_intdigest(name.encode()) % count == at
    else:
        rows = box.shape[0]
        first, last = rows * at // count, rows * (at + 1) // count
        for begin, end, mine in ((0, first, False), (first, last, True), (last, rows, False)):
            if begin < end:
                yield _rows(box, begin, end), mine


def _rows(box: Box, begin: int, end: int) -> Box:
    """Rows `begin` to `end` of the box."""
    return Box((box.offset[0] + begin, *box.offset[1:]), (end - begin, *box.shape[1:]))


def _pieces(name: str, box: Box, item: int, owned: bool) -> Iterator[Piece]:
    """The box in pieces of at most PIECE_BYTES, a row at least; not placed yet."""
    if not box.shape:
        yield Piece(name, box, 0, item, owned)
        return
    row = prod(box.shape[1:]) * item
    step = max(1, PIECE_BYTES // row)
    for begin in range(0, box.shape[0], step):
        part = _rows(box, begin, min(begin + step, box.shape[0]))
        yield Piece(name, part, 0, prod(part.shape) * item, owned)


def _place(pieces: Sequence[Piece], begin: int) -> tuple[list[Piece], int]:
    """The pieces one after the other from `begin` on, and where they end."""
    placed, offset = list[Piece](), begin
    for piece in pieces:
        placed.append(replace(piece, offset=offset))
        offset = _up(offset + piece.length, _PLACE)
    return placed, offset


def _up(value: int, unit: int) -> int:
    return -(-value // unit) * unit
