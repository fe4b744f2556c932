"""State of all ranks -> one committed checkpoint: parts and data, then the manifest, then the commit on the chain."""

import contextlib
import os
import shutil
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import torch
import xxhash

from headway.runner.checkpoint.chain import Chain, CheckpointId, Commit, Retire, lineage, newest_claim, retired
from headway.runner.checkpoint.format import (
    MANIFEST,
    Chunk,
    FileEntry,
    Manifest,
    Part,
    TensorEntry,
    chunk_hash,
    chunk_seed,
    data_name,
    part_name,
    record_bytes,
)
from headway.runner.checkpoint.objects import encode
from headway.runner.checkpoint.posix import fsync_directory, write_durable
from headway.runner.checkpoint.ranks import Ranks
from headway.runner.checkpoint.tensors import dtype_name, local_tensor, to_bytes
from headway.runner.contract import Mesh

_TEMPORARY = ".tmp-"


@dataclass(frozen=True)
class Place:
    """Where checkpoints go and under whose authority: one run's folder, one generation of one attempt."""

    root: Path
    run: str
    generation: int
    attempt: int
    procs_per_slot: int
    mesh: Mesh

    def checkpoint(self, step: int) -> CheckpointId:
        return CheckpointId(step, self.generation)

    def data_name(self, rank: int) -> str:
        return data_name(*divmod(rank, self.procs_per_slot))


@dataclass(frozen=True)
class State:
    """What one rank saves: tensors by global name (plain ones are the same on every rank), and objects of its own."""

    tensors: Mapping[str, torch.Tensor]
    objects: Mapping[str, Any]


@dataclass(frozen=True)
class Saved:
    """A committed checkpoint: the bytes of tensor data of all ranks, and, on rank 0, what was retired for it."""

    bytes: int
    retired: tuple[CheckpointId, ...]


def save(place: Place, chain: Chain, ranks: Ranks, step: int, state: State, keep: int) -> Saved:
    """Writes and commits the state of all ranks; collective.

    When any rank fails, all raise and nothing is committed: OSError or ObjectError where it happened, PeerError elsewhere,
    SupersededError everywhere. Checkpoints committed before are untouched.
    """
    checkpoint = place.checkpoint(step)
    temporary = place.root / f"{_TEMPORARY}{checkpoint.directory}"
    written: list[FileEntry] = []
    retired_now: list[CheckpointId] = []

    def write() -> None:
        temporary.mkdir(parents=True, exist_ok=True)
        written.extend(_write(temporary, place, ranks.rank, checkpoint, state))

    def commit() -> None:
        _commit(place, chain, checkpoint, temporary, _manifest(place, checkpoint, everyone))
        with contextlib.suppress(OSError):  # the commit stands; the next save tries again
            retired_now.extend(_retire(place, chain, keep))

    ranks.together(write)
    everyone = [_unpack(packed) for packed in ranks.gather(b"".join(_pack(entry) for entry in written))]
    ranks.together(commit, only=0)
    return Saved(sum(data.bytes for _, data in everyone), tuple(retired_now))


# --- one rank's files -------------------------------------------------------------------------------------------------


def _write(directory: Path, place: Place, rank: int, checkpoint: CheckpointId, state: State) -> tuple[FileEntry, FileEntry]:
    """Writes the rank's data file and part, durably; returns the entries of the part and of the data file."""
    path, digest = directory / place.data_name(rank), xxhash.xxh3_128()
    with path.open("wb") as file:
        tensors = dict(_write_tensors(file, digest, place, rank, checkpoint, state.tensors))
        data = FileEntry(file.tell(), digest.hexdigest())
        file.flush()
        os.fsync(file.fileno())
    part = record_bytes(Part(rank, tensors, {name: encode(value, name) for name, value in state.objects.items()}))
    write_durable(directory / part_name(rank), part)
    return FileEntry(len(part), xxhash.xxh3_128_hexdigest(part)), data


def _write_tensors(
    file: IO[bytes],
    digest: "xxhash.xxh3_128",
    place: Place,
    rank: int,
    checkpoint: CheckpointId,
    tensors: Mapping[str, torch.Tensor],
) -> Iterator[tuple[str, TensorEntry]]:
    for name, tensor in tensors.items():
        local = local_tensor(tensor, rank)
        if not local.owned:
            continue
        raw, offset = to_bytes(local.data), file.tell()
        file.write(raw)
        digest.update(raw)
        hashed = chunk_hash(raw, chunk_seed(place.run, checkpoint, name, local.box))
        chunk = Chunk(Path(file.name).name, offset, raw.nbytes, local.box, hashed)
        yield name, TensorEntry(dtype_name(tensor.dtype), local.shape, (chunk,))


def _pack(entry: FileEntry) -> bytes:
    return entry.bytes.to_bytes(8, "big") + bytes.fromhex(entry.xxh3_128)


def _unpack(packed: bytes) -> tuple[FileEntry, FileEntry]:
    part, data = (FileEntry(int.from_bytes(p[:8], "big"), p[8:].hex()) for p in (packed[:24], packed[24:]))
    return part, data


# --- the first rank commits -------------------------------------------------------------------------------------------


def _manifest(place: Place, checkpoint: CheckpointId, everyone: list[tuple[FileEntry, FileEntry]]) -> Manifest:
    return Manifest(
        run=place.run,
        step=checkpoint.step,
        generation=checkpoint.generation,
        world_size=len(everyone),
        mesh=dict(zip(place.mesh.axes, place.mesh.shape, strict=True)),
        parts={str(rank): part.xxh3_128 for rank, (part, _) in enumerate(everyone)},
        files={place.data_name(rank): data for rank, (_, data) in enumerate(everyone)},
        trust="written",
        versions={"torch": torch.__version__, "python": sys.version.split()[0]},
    )


def _commit(place: Place, chain: Chain, checkpoint: CheckpointId, temporary: Path, manifest: Manifest) -> None:
    raw = record_bytes(manifest)
    write_durable(temporary / MANIFEST, raw)
    fsync_directory(temporary)
    final = place.root / checkpoint.directory
    if final.exists():  # renamed by an earlier try of this generation, which then failed to commit
        final.rename(place.root / f"{_TEMPORARY}stale-{checkpoint.directory}-{time.time_ns()}")
    temporary.rename(final)
    fsync_directory(place.root)
    entry = Commit(checkpoint.step, xxhash.xxh3_128_hexdigest(raw))
    chain.append(entry, place.generation, place.attempt, holder="rank 0")


def _retire(place: Place, chain: Chain, keep: int) -> list[CheckpointId]:
    """Names what is older than the newest `keep` along the lineage, and only then deletes it; never the newest claim's base.

    Also deletes what an earlier writer named and did not get to. Returns what was named now.
    """
    records = chain.read()
    claim = newest_claim(records)
    base = claim.entry.base.checkpoint if claim and claim.entry.base else None  # type: ignore[union-attr]
    gone = retired(records)
    old = [b.checkpoint for b in lineage(records)[keep:] if b.checkpoint not in gone and b.checkpoint != base]
    if old:
        chain.append(Retire(tuple(old)), place.generation, place.attempt, holder="rank 0")
    named = {checkpoint.directory for checkpoint in gone.union(old)}
    committed = {CheckpointId(r.entry.step, r.generation).directory for r in records if isinstance(r.entry, Commit)}
    for path in [path for path in place.root.glob("step-*") if path.name in named] + _abandoned(place, committed):
        shutil.rmtree(path, ignore_errors=True)
    return old


def _abandoned(place: Place, committed: set[str]) -> list[Path]:
    """What generations before this one did not finish, or renamed and did not commit: their writers are fenced, so nobody will."""
    found = [*place.root.glob(f"{_TEMPORARY}*step-*.g*"), *(p for p in place.root.glob("step-*.g*") if p.name not in committed)]
    return [path for path in found if int(path.name.split(".g")[1][:6]) < place.generation]
