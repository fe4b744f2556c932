"""Loads a committed checkpoint into this rank's tensors, in place, from whatever layout it was saved under.

Each chunk is read from storage by one rank, verified, and passed on to the others that need it, who verify it too.
"""

import json
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import torch
import xxhash
from torch.distributed.tensor import DTensor

from headway.runner.checkpoint.format import (
    Box,
    Chunk,
    Part,
    RefusedError,
    TensorEntry,
    UnfitError,
    chunk_hash,
    chunk_seed,
    parse_part,
    part_name,
)
from headway.runner.checkpoint.layout import who_wants
from headway.runner.checkpoint.ranks import Ranks
from headway.runner.checkpoint.read import Reader
from headway.runner.checkpoint.tensors import LocalTensor, dtype_name, dtype_named, from_bytes, local_tensor, to_bytes

# With more ranks than this, each part is read once and passed around, instead of by each rank that needs it.
FEW_PARTS = 8
# Threads of a rank that read at once.
READERS = 4


@dataclass(frozen=True)
class ChunkDelivery:
    """A chunk of tensor `name` and the ranks that need some of it: the first reads it and passes it along the line."""

    name: str
    chunk: Chunk
    along: tuple[int, ...]

    @property
    def place(self) -> tuple[str, tuple[int, ...]]:
        """The sort key by which all ranks deliver in the same order."""
        return self.name, self.chunk.box.offset


class Loader:
    """Fills one rank's `tensors` from one checkpoint; `load` is collective. `optional` tensors may be missing there."""

    def __init__(self, reader: Reader, tensors: Mapping[str, torch.Tensor], ranks: Ranks, optional: Collection[str] = ()) -> None:
        self._reader, self._tensors, self._ranks = reader, tensors, ranks
        self._wanted = {name: local_tensor(tensor) for name, tensor in tensors.items()}
        self._dtypes = {name: dtype_name(tensor.dtype) for name, tensor in tensors.items()}
        # Tensors of the parts that were read.
        self._there: set[str] = set()
        self._wanted_anywhere = set(tensors)
        self._optional = optional
        # Optional tensors that no part has; after `load`.
        self.missing: set[str] = set()

    def load(self) -> None:
        """Load. Raises RefusedError naming file and tensor on the rank that found it, PeerError on the others,
        UnfitError on all. After an error some tensors may be filled and others not."""
        deliveries = list[ChunkDelivery]()
        self._ranks.together(lambda: deliveries.extend(self._plan()))
        errors = list[RefusedError]()
        own = [delivery for delivery in deliveries if len(delivery.along) == 1]
        shared = sorted((d for d in deliveries if len(d.along) > 1), key=lambda d: d.place)
        with ThreadPoolExecutor(READERS) as pool:
            errors += [error for error in pool.map(self._read, own) if error is not None]
        errors += [error for error in map(self._pass_on, shared) if error is not None]

        def verdict() -> None:
            if errors:
                raise errors[0]

        self._ranks.together(verdict)

    def unused(self) -> list[str]:
        """Return tensors of the parts read that no rank needed; after `load`."""
        return sorted(self._there - self._wanted_anywhere)

    # --- which rank reads what ----------------------------------------------------------------------------------------

    def _plan(self) -> list[ChunkDelivery]:
        """Return what this rank reads, receives and passes on. Raises UnfitError for a tensor that is missing, of
        another shape or dtype, or incomplete."""
        answers = self._ranks.gather(bytes((self._as_saved(), self._is_whole())))
        if not all(as_saved for as_saved, _ in answers):
            return self._plan_resharded()
        return self._plan_as_saved(alone=all(whole for _, whole in answers))

    def _as_saved(self) -> bool:
        """Return whether this rank needs exactly what the rank of its number held."""
        entries = self._own_entries()
        return all(
            name in entries and (entries[name].held, entries[name].shape) == (local.box, local.shape)
            for name, local in self._wanted.items()
        )

    def _is_whole(self) -> bool:
        """Return whether the part of this rank's number has all that it needs: under that layout no rank needs another's then."""
        entries = self._own_entries()
        return all(
            name in entries and sum(chunk.box.elements for chunk in entries[name].chunks) == local.data.numel()
            for name, local in self._wanted.items()
        )

    def _own_entries(self) -> Mapping[str, TensorEntry]:
        if self._ranks.world_size != self._reader.manifest.world_size:
            return {}
        try:
            return self._reader.part(self._ranks.rank).tensors
        except RefusedError:
            # The plan raises it again, where all ranks get it.
            return {}

    def _plan_as_saved(self, alone: bool) -> list[ChunkDelivery]:
        """Plan for the layout of the save: a rank needs its own part, and, if it is not `alone`, those of the ranks
        that held the same."""
        me = self._ranks.rank
        sharers = dict.fromkeys(self._wanted, (me,)) if alone else who_wants(self._wanted, self._ranks)
        around = {me, *(rank for ranks in sharers.values() for rank in ranks)}
        many = any(answer == b"\1" for answer in self._ranks.gather(b"\1" if len(around) > FEW_PARTS else b"\0"))
        parts = self._all_parts() if many else {rank: self._reader.part(rank) for rank in sorted(around)}
        self._there |= parts[me].tensors.keys()
        found = list[ChunkDelivery]()
        for name, local in self._wanted.items():
            line = sharers[name]
            # Each rank wrote it, perhaps with different values, and reads its own.
            if all(_is_all_in(parts[rank], name) for rank in line):
                found += [ChunkDelivery(name, chunk, (me,)) for _, chunk in self._chunks(name, local, {me: parts[me]})]
                continue
            for writer, chunk in self._chunks(name, local, {rank: parts[rank] for rank in self._own_first(line)}):
                found.append(ChunkDelivery(name, chunk, _from(line, writer)))
        return found

    def _own_first(self, ranks: Sequence[int]) -> list[int]:
        return sorted(ranks, key=lambda rank: (rank != self._ranks.rank, rank))

    def _plan_resharded(self) -> list[ChunkDelivery]:
        """Plan for another layout: every rank learns what exists and what the others need."""
        boxes = [_unpack(raw) for raw in self._ranks.gather_any(_pack(self._wanted))]
        parts = self._all_parts()
        self._there |= {name for part in parts.values() for name in part.tensors}
        self._wanted_anywhere |= {name for held in boxes for name in held}
        self.missing = {name for name in self._optional if name not in self._there}
        self._wanted = {name: local for name, local in self._wanted.items() if name not in self.missing}
        wanted = {name for held in boxes for name in held}
        own = _of_each_rank(parts, wanted)
        self._say_own(own)
        for name, local in self._wanted.items():
            writer = _writer(name, self._ranks.rank, parts) if name in own else None
            # Raises for shapes that differ and incomplete tensors.
            self._chunks(name, local, parts if writer is None else {writer: parts[writer]})
        load = [0] * self._ranks.world_size
        found = list[ChunkDelivery]()
        for name, chunk, writer in sorted(_distinct(parts, wanted, own), key=lambda item: (item[0], item[1].box.offset, item[2])):
            holders = [r for r, held in enumerate(boxes) if name in held and _meet(chunk.box, held[name])]
            needing = [r for r in holders if name not in own or _writer(name, r, parts) == writer]
            if not needing:
                continue
            reader = min(needing, key=lambda rank: load[rank])
            load[reader] += chunk.length
            if self._ranks.rank in needing:
                found.append(ChunkDelivery(name, chunk, _from(needing, reader)))
        return found

    def _say_own(self, own: Collection[str]) -> None:
        """Report what another number of ranks loads of tensors that each rank had for itself: there is no right answer."""
        saved_by = self._reader.manifest.world_size
        if own and saved_by != self._ranks.world_size and self._ranks.rank == 0:
            more = f" and {len(own) - 1} more" if len(own) > 1 else ""
            print(
                f"{self._reader.checkpoint.directory}: `{min(own)}`{more} differed between the {saved_by} ranks that saved it: "
                f"each of the {self._ranks.world_size} ranks loads the value of its own number, and ranks beyond those the first's",
                file=sys.stderr,
                flush=True,
            )

    def _all_parts(self) -> dict[int, Part]:
        """Return every rank's part, each read from storage by one rank; collective."""
        count = self._reader.manifest.world_size
        mine = range(self._ranks.rank, count, self._ranks.world_size)
        raw = list[bytes]()
        self._ranks.together(lambda: raw.extend(self._reader.part_bytes(rank) for rank in mine))
        packed = b"".join(len(data).to_bytes(8, "big") + data for data in raw)
        found = dict[int, Part]()
        for first, blob in enumerate(self._ranks.gather_any(packed)):
            for rank, data in zip(range(first, count, self._ranks.world_size), _split(blob), strict=True):
                if xxhash.xxh3_128_hexdigest(data) != self._reader.manifest.parts[str(rank)]:
                    raise self._reader.refuse(part_name(rank), "another rank read bytes that differ from what was committed")
                found[rank] = parse_part(data, self._reader.checkpoint, rank)
        return found

    def _chunks(self, name: str, local: LocalTensor, parts: Mapping[int, Part]) -> list[tuple[int, Chunk]]:
        """Return the chunks of a tensor that this rank needs, with the rank that wrote each. Raises UnfitError if any
        is missing."""
        found = dict[Box, tuple[int, Chunk]]()
        covered = 0
        for rank, part in parts.items():
            entry = part.tensors.get(name)
            if entry is None:
                continue
            self._check_alike(name, local, entry)
            for chunk in entry.chunks:
                common = chunk.box.intersect(local.box)
                if common is not None and chunk.box not in found:
                    found[chunk.box] = rank, chunk
                    covered += common.elements
        if covered != local.data.numel():
            there = f"{covered} of {local.data.numel()} elements of {local.box} are there"
            raise UnfitError(f"{self._reader.checkpoint.directory}: tensor `{name}`: {there}")
        return list(found.values())

    def _check_alike(self, name: str, local: LocalTensor, entry: TensorEntry) -> None:
        if entry.shape != local.shape or entry.dtype != self._dtypes[name]:
            found, wanted = f"{entry.dtype}{list(entry.shape)}", f"{self._dtypes[name]}{list(local.shape)}"
            raise UnfitError(
                f"{self._reader.checkpoint.directory}: tensor `{name}` is {found} in the checkpoint but {wanted} here"
            )

    # --- reading and passing on ---------------------------------------------------------------------------------------

    def _read(self, delivery: ChunkDelivery) -> RefusedError | None:
        """Read a chunk that no other rank needs, straight into its place if that is contiguous."""
        target, whole = self._target(delivery)
        try:
            if whole and _is_plain(target):
                self._reader.chunk_into(delivery.name, delivery.chunk, to_bytes(target))
            else:
                self._put(delivery, self._reader.chunk(delivery.name, delivery.chunk))
        except RefusedError as error:
            return error
        return None

    def _pass_on(self, delivery: ChunkDelivery) -> RefusedError | None:
        """Read or receive a chunk, pass it on, and keep the part needed here. A refusal is passed on as well: all ranks
        stay in step."""
        raw = bytearray(delivery.chunk.length)
        refused: RefusedError | None = None
        if delivery.along[0] == self._ranks.rank:
            try:
                self._reader.chunk_into(delivery.name, delivery.chunk, memoryview(raw))
            except RefusedError as error:
                refused = error
        self._ranks.relay(delivery.along, torch.frombuffer(raw, dtype=torch.uint8))
        if refused is not None:
            return refused
        chunk = delivery.chunk
        seed = chunk_seed(self._reader.run, self._reader.checkpoint, delivery.name, chunk.box)
        if chunk_hash(memoryview(raw), seed) != chunk.xxh3_128:
            reason = f"tensor `{delivery.name}` at {chunk.box}: differs from what rank {delivery.along[0]} verified"
            return self._reader.refuse(chunk.file, reason)
        self._put(delivery, raw)
        return None

    def _target(self, delivery: ChunkDelivery) -> tuple[torch.Tensor, bool]:
        """Return the destination of the chunk's elements here, and whether all of them go there."""
        tensor, local = self._tensors[delivery.name], self._wanted[delivery.name]
        common = delivery.chunk.box.intersect(local.box)
        assert common is not None  # noqa: S101  only needed chunks are delivered
        data = (tensor.to_local() if isinstance(tensor, DTensor) else tensor).detach()
        return data[common.within(local.box)], common == delivery.chunk.box

    def _put(self, delivery: ChunkDelivery, raw: bytearray) -> None:
        chunk, local = delivery.chunk, self._wanted[delivery.name]
        source = from_bytes(memoryview(raw), dtype_named(self._dtypes[delivery.name]), chunk.box.shape)
        common = chunk.box.intersect(local.box)
        assert common is not None  # noqa: S101
        self._target(delivery)[0].copy_(source[common.within(chunk.box)])


def _is_plain(tensor: torch.Tensor) -> bool:
    """Return whether the elements are in host memory as they are stored: in order, and not to be conjugated or negated
    on reading."""
    return tensor.device.type == "cpu" and tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg()


def _from(line: Sequence[int], first: int) -> tuple[int, ...]:
    """Return the ranks of `line` from `first` on, wrapping around."""
    at = list(line).index(first)
    return (*line[at:], *line[:at])


def _distinct(parts: Mapping[int, Part], names: set[str], own: Collection[str]) -> Iterator[tuple[str, Chunk, int]]:
    """Yield every chunk of these tensors once, with the rank that wrote it, though several may have; of each rank's
    `own`, all."""
    seen = set[tuple[str, Box]]()
    for rank, part in parts.items():
        for name in names & part.tensors.keys():
            for chunk in part.tensors[name].chunks:
                if name in own or (name, chunk.box) not in seen:
                    seen.add((name, chunk.box))
                    yield name, chunk, rank


def _of_each_rank(parts: Mapping[int, Part], names: set[str]) -> set[str]:
    """Return the tensors of which ranks wrote the same elements with different values."""
    known = dict[tuple[str, Box], str]()
    found = set[str]()
    for part in parts.values():
        for name in names & part.tensors.keys():
            for chunk in part.tensors[name].chunks:
                if known.setdefault((name, chunk.box), chunk.xxh3_128) != chunk.xxh3_128:
                    found.add(name)
    return found


def _writer(name: str, rank: int, parts: Mapping[int, Part]) -> int:
    """Return the rank whose copy `rank` loads of a tensor that each rank had for itself: that of its number, or the first."""
    if rank in parts and name in parts[rank].tensors:
        return rank
    return min((writer for writer, part in parts.items() if name in part.tensors), default=rank)


def _is_all_in(part: Part, name: str) -> bool:
    """Return whether the rank has written all that it held of the tensor."""
    entry = part.tensors.get(name)
    return entry is not None and sum(chunk.box.elements for chunk in entry.chunks) == entry.held.elements


def _meet(one: Box, other: Box) -> bool:
    return len(one.shape) == len(other.shape) and one.intersect(other) is not None


def _pack(wanted: Mapping[str, LocalTensor]) -> bytes:
    held = {name: (local.box.offset, local.box.shape) for name, local in wanted.items() if local.data.numel()}
    return json.dumps(held).encode()


def _unpack(raw: bytes) -> dict[str, Box]:
    return {name: Box(tuple(offset), tuple(shape)) for name, (offset, shape) in json.loads(raw).items()}


def _split(blob: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(blob):
        length = int.from_bytes(blob[at : at + 8], "big")
        yield blob[at + 8 : at + 8 + length]
        at += 8 + length
