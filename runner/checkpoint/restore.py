"""Opens the base of a claim: from its directory, the object store, or the memory of all nodes' keepers."""

import contextlib
import os
import weakref
from collections.abc import Callable

import xxhash

from headway.runner.checkpoint.commit import memory_manifest
from headway.runner.checkpoint.format import MANIFEST, RefusedError, part_name, record_bytes
from headway.runner.checkpoint.keeper.link import KeeperError, KeeperLink
from headway.runner.checkpoint.location import CheckpointLocation
from headway.runner.checkpoint.ranks import Ranks
from headway.runner.checkpoint.read import Reader
from headway.runner.checkpoint.sources import (
    MEMORY_PIECE_BYTES,
    DirectorySource,
    ObjectSource,
    PatientSource,
    Source,
    patience_s,
    read_fully,
)
from headway.runner.contract import Base


class MemorySource:
    """One rank's capture: its manifest and part, and the memory with the part's chunks, by its descriptor."""

    def __init__(self, manifest: bytes, rank: int, part: bytes, memory: int) -> None:
        self._records = {MANIFEST: manifest, part_name(rank): part}
        self._memory = memory
        weakref.finalize(self, os.close, memory)

    def read(self, name: str) -> bytes:
        if name not in self._records:
            raise FileNotFoundError(2, "another rank holds it", name)
        return self._records[name]

    def read_into(self, _: str, offset: int, out: memoryview, seed: int = 0) -> str:
        return read_fully(self._memory, offset, out, seed, MEMORY_PIECE_BYTES)

    def is_gone(self, _: str, _error: OSError) -> bool:
        """Return True: a capture that a keeper does not return is lost."""
        return True


def open_base(place: CheckpointLocation, base: Base, ranks: Ranks, connect: Callable[[], KeeperLink]) -> Reader:
    """Return the reader of a base in the tier that it names; collective.

    Raises RefusedError where it is not what was claimed or cannot be read (`unread`), PeerError on the other ranks.
    """
    found: list[Reader] = []
    if base.tier == "memory":
        source = _from_memory(place, base, ranks, connect)
    else:
        source = _stored(place, base)
    ranks.together(lambda: found.append(Reader(source, place.run, base)))
    return found[0]


def _stored(place: CheckpointLocation, base: Base) -> Source:
    match base.tier:
        case "remote":
            assert place.remote is not None  # noqa: S101  nothing is committed to a missing tier
            # It needs no PatientSource: obstore retries each request itself.
            return ObjectSource(place.remote, place.run, base.checkpoint)
        case "shared":
            return PatientSource(DirectorySource(place.root / base.checkpoint.directory), patience_s())
    raise ValueError(f"nothing is restored from tier `{base.tier}`")


def _from_memory(place: CheckpointLocation, base: Base, ranks: Ranks, connect: Callable[[], KeeperLink]) -> Source:
    """Return this rank's capture, from its node's keeper or the partner's; the manifest follows from the parts of all ranks."""
    fetched: list[tuple[bytes, int]] = []

    def fetch() -> None:
        try:
            with contextlib.closing(connect()) as link:
                part, memory, _ = link.take(ranks.rank, base.step, base.generation)
        except (KeeperError, OSError) as error:
            raise RefusedError(base.checkpoint, part_name(ranks.rank), f"not in memory: {error}") from None
        fetched.append((record_bytes(part), memory))

    ranks.together(fetch)
    raw, memory = fetched[0]
    parts = [digest.hex() for digest in ranks.gather(xxhash.xxh3_128_digest(raw))]
    return MemorySource(memory_manifest(place.run, base.checkpoint, place.mesh, parts), ranks.rank, raw, memory)
