"""Lays out a rank's state in its buffer, and decides which of it the rank writes.

The rule is local, except for plain tensors: the ranks exchange which of them are equal everywhere.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import torch
import xxhash
from torch.distributed.tensor import DTensor

from headway.runner.checkpoint.alike import fingerprints
from headway.runner.checkpoint.format import Box
from headway.runner.checkpoint.keeper.capture import ALIGN, BufferLayout, BufferPiece, Held
from headway.runner.checkpoint.ranks import PeerError, Ranks
from headway.runner.checkpoint.tensors import LocalTensor, dtype_name, local_tensor, refuse_partial

# A piece is hashed, written and read in one operation, and another layout reads it whole: small enough for that, large
# enough for a disk.
PIECE_BYTES = 64 << 20
# Smaller tensors are not split among their holders: one of them writes each. Below TINY_BYTES every holder does, so
# that a rank with a counter or a scale needs no other rank's part to read it.
SHARED_BYTES = 1 << 20
TINY_BYTES = 4 << 10
# Alignment of pieces: any dtype may be viewed there, and no two ranks' pieces share a cache line.
_PLACE = 64


@dataclass(frozen=True)
class RankState:
    """The state that one rank saves: tensors by global name, and its objects.

    A plain tensor that is equal on all ranks that have one of its name is saved once; otherwise each of them saves its
    own. `stepped` names the tensors that are known to change only in steps of torch's optimizers.
    """

    tensors: Mapping[str, torch.Tensor]
    objects: Mapping[str, Any]
    stepped: AbstractSet[str] = frozenset()


@dataclass(frozen=True)
class Planned:
    """A rank's layout with what a save and a load also need: the ranks that hold each tensor's box identically."""

    layout: BufferLayout
    sharers: dict[str, tuple[int, ...]]


class Planner:
    """Plans layouts. A plan is kept while names, shapes and placements stay the same on every rank, and shared tensors
    stay equal."""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        self._key: tuple[object, ...] | None = None
        self._planned: Planned | None = None
        # Plain tensors that must stay equal.
        self._shared: list[str] = []
        # Plain tensors that were found to differ: each rank saves its own from then on.
        self._own: set[str] = set()

    def plan(self, tensors: Mapping[str, torch.Tensor], whole: bool) -> Planned:
        """Return the layout. `whole`: the buffer holds all of the rank's state, for a restore from memory; otherwise
        only what it writes.

        Always collective: all ranks plan again when the state of one changed, or when plain tensors came to differ.
        Costs a gather of 17 bytes, and a fingerprint of each shared plain tensor above TINY_BYTES. Raises AbsentError
        where ranks do not come, PeerError where one could not describe its state.
        """
        word, problem = self._word(tensors, whole)
        words = self._ranks.meet(word)
        if problem is not None:
            raise problem
        if (failed := next((rank for rank, each in enumerate(words) if each[:1] == _BROKEN), None)) is not None:
            raise PeerError(f"rank {failed} could not save it")
        disagreement = sum(int.from_bytes(each[1:], "big") for each in words) % _MODULUS
        if self._planned is None or disagreement or any(each[:1] == _NEW for each in words):
            found, self._key = self._anew(tensors, whole), _key(tensors, whole)
            # Otherwise only other ranks' state has changed, and the buffers here stay.
            if found != self._planned:
                self._planned = found
        return self._planned

    def absent(self) -> None:
        """Replace `plan` on a rank that has nothing to save, so that the others do not wait for it. Collective."""
        self._ranks.meet(_BROKEN + bytes(_SUM_BYTES))

    def _word(self, tensors: Mapping[str, torch.Tensor], whole: bool) -> tuple[bytes, Exception | None]:
        """Return this rank's report: whether its state is new, or the sum over its shared tensors. All other ranks get
        a failure."""
        try:
            if self._planned is None or _key(tensors, whole) != self._key:
                for tensor in tensors.values():
                    refuse_partial(tensor)
                return _NEW + bytes(_SUM_BYTES), None
            return _KNOWN + self._sum(tensors, self._planned).to_bytes(_SUM_BYTES, "big"), None
        except Exception as error:
            return _BROKEN + bytes(_SUM_BYTES), error

    def _sum(self, tensors: Mapping[str, torch.Tensor], planned: Planned) -> int:
        """Return a sum over the rank's shared tensors that is 0 over all ranks if they are equal: the first sharer
        offsets all others."""
        total = 0
        for name, printed in fingerprints({name: tensors[name] for name in self._shared}).items():
            sharers, number = planned.sharers[name], xxhash.xxh3_128_intdigest(_id(name, tensors[name]) + printed)
            total += number * (len(sharers) - 1) if sharers[0] == self._ranks.rank else -number
        return total % _MODULUS

    def _anew(self, tensors: Mapping[str, torch.Tensor], whole: bool) -> Planned:
        locals_ = {name: local_tensor(tensor) for name, tensor in tensors.items()}
        sharers = {name: self._ranks.holders(local.sharers) for name, local in locals_.items()} | self._plain_sharers(tensors)
        compared = [name for name, tensor in tensors.items() if _is_compared(tensor)]
        self._shared = [name for name in compared if len(sharers[name]) > 1]
        self._own = {name for name in compared if len(sharers[name]) == 1}
        kinds = {name: dtype_name(tensor.dtype) for name, tensor in tensors.items()}
        return Planned(plan_layout(locals_, kinds, sharers, self._ranks.rank, whole), sharers)

    def _plain_sharers(self, tensors: Mapping[str, torch.Tensor]) -> dict[str, tuple[int, ...]]:
        """Return the ranks that hold each plain tensor identically; collective. If any of them differs, each has its own."""
        everyone = tuple(range(self._ranks.world_size))
        plain = {name: tensor for name, tensor in tensors.items() if not isinstance(tensor, DTensor)}
        if len(everyone) == 1:
            return dict.fromkeys(plain, everyone)
        printed = self._printed(plain)
        table = b"".join(sorted(_id(name, plain[name]) + each for name, each in printed.items()))
        if len(set(self._ranks.gather(xxhash.xxh3_128_digest(table)))) == 1:
            return dict.fromkeys(plain, everyone)
        tables = [_entries(raw) for raw in self._ranks.gather_any(table)]
        found = dict[str, tuple[int, ...]]()
        for name, tensor in plain.items():
            of = _id(name, tensor)
            having = tuple(rank for rank in everyone if of in tables[rank])
            alike = len({tables[rank][of] for rank in having}) == 1
            found[name] = having if alike else (self._ranks.rank,)
        return found

    def _printed(self, plain: Mapping[str, torch.Tensor]) -> dict[str, bytes]:
        """Return fingerprints. Tensors that every rank writes anyway need none, and those found to differ get one that
        no other rank has."""
        mine = xxhash.xxh3_128_digest(f"of rank {self._ranks.rank}".encode())
        compared = fingerprints(
            {name: tensor for name, tensor in plain.items() if _is_compared(tensor) and name not in self._own}
        )
        return {name: mine if name in self._own else compared.get(name, bytes(16)) for name in plain}


_NEW, _KNOWN, _BROKEN = b"\1", b"\0", b"\2"
_SUM_BYTES = 16
_MODULUS = 1 << 8 * _SUM_BYTES
_ID_BYTES = 8


def _key(tensors: Mapping[str, torch.Tensor], whole: bool) -> tuple[object, ...]:
    return (whole, *(_signature(name, tensor) for name, tensor in tensors.items()))


def _is_compared(tensor: torch.Tensor) -> bool:
    """Return whether the tensor must be equal to be shared: a plain tensor that not every rank writes anyway."""
    return not isinstance(tensor, DTensor) and tensor.numel() * tensor.element_size() > TINY_BYTES


def _id(name: str, tensor: torch.Tensor) -> bytes:
    return xxhash.xxh3_64_digest(f"{name} {list(tensor.shape)} {tensor.dtype}".encode())


def _entries(table: bytes) -> dict[bytes, bytes]:
    each = _ID_BYTES + 16
    return {table[at : at + _ID_BYTES]: table[at + _ID_BYTES : at + each] for at in range(0, len(table), each)}


def _signature(name: str, tensor: torch.Tensor) -> tuple[object, ...]:
    if isinstance(tensor, DTensor):
        return name, tensor.shape, tensor.dtype, tensor.placements, id(tensor.device_mesh)
    return name, tensor.shape, tensor.dtype


def who_wants(tensors: Mapping[str, LocalTensor], ranks: Ranks) -> dict[str, tuple[int, ...]]:
    """Return the ranks that need each tensor's box; collective. All ranks that have a plain tensor of its name and
    shape need it."""
    plain = sorted(_named(name, local) for name, local in tensors.items() if not local.sharers)
    names = json.dumps(plain).encode()
    digests = ranks.gather(xxhash.xxh3_128_digest(names))
    everyone = tuple(range(ranks.world_size))
    if len(set(digests)) == 1:
        return {name: ranks.holders(local.sharers) or everyone for name, local in tensors.items()}
    known = [set(json.loads(raw)) for raw in ranks.gather_any(names)]
    return {
        name: ranks.holders(local.sharers) or tuple(rank for rank in everyone if _named(name, local) in known[rank])
        for name, local in tensors.items()
    }


def _named(name: str, local: LocalTensor) -> str:
    return f"{name} {list(local.shape)} {dtype_name(local.data.dtype)}"


def plan_layout(
    tensors: Mapping[str, LocalTensor],
    dtypes: Mapping[str, str],
    sharers: Mapping[str, Sequence[int]],
    rank: int,
    whole: bool,
) -> BufferLayout:
    """Return the buffer of `rank`: owned pieces first, then, if it is to be `whole`, those that others write."""
    owned, others = list[BufferPiece](), list[BufferPiece]()
    for name, local in tensors.items():
        item = local.data.element_size()
        for box, mine in _shares(name, local.box, item, sharers[name], rank):
            (owned if mine else others).extend(_pieces(name, box, item, mine))
    placed, end = _place(owned, 0)
    owned_bytes = _up(end, ALIGN)
    rest, end = _place(others if whole else [], owned_bytes)
    held = {name: Held(dtypes[name], local.shape, local.box) for name, local in tensors.items()}
    return BufferLayout(held, (*placed, *rest), owned_bytes, max(ALIGN, _up(end, ALIGN)))


def _shares(name: str, box: Box, item: int, sharers: Sequence[int], rank: int) -> Iterator[tuple[Box, bool]]:
    """Yield the box in up to three parts, row by row, and whether this rank writes each."""
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
    """Return rows `begin` to `end` of the box."""
    return Box((box.offset[0] + begin, *box.offset[1:]), (end - begin, *box.shape[1:]))


def _pieces(name: str, box: Box, item: int, owned: bool) -> Iterator[BufferPiece]:
    """Yield the box in pieces of at most PIECE_BYTES, a row at least; without offsets yet."""
    if not box.shape:
        yield BufferPiece(name, box, 0, item, owned)
        return
    row = prod(box.shape[1:]) * item
    step = max(1, PIECE_BYTES // row)
    for begin in range(0, box.shape[0], step):
        part = _rows(box, begin, min(begin + step, box.shape[0]))
        yield BufferPiece(name, part, 0, prod(part.shape) * item, owned)


def _place(pieces: Sequence[BufferPiece], begin: int) -> tuple[list[BufferPiece], int]:
    """Return the pieces one after the other from `begin` on, and their end."""
    placed, offset = list[BufferPiece](), begin
    for piece in pieces:
        placed.append(replace(piece, offset=offset))
        offset = _up(offset + piece.length, _PLACE)
    return placed, offset


def _up(value: int, unit: int) -> int:
    return -(-value // unit) * unit
