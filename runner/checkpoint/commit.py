"""Commits a checkpoint that all ranks have written: manifest, name, chain record; then removes what it supersedes."""

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import xxhash

from headway.runner.checkpoint.chain import Chain, ChainError, Commit, SupersededError, lineage
from headway.runner.checkpoint.format import MANIFEST, Manifest, data_name, record_bytes
from headway.runner.checkpoint.location import CheckpointLocation
from headway.runner.contract import CheckpointId, Mesh
from headway.runner.posix import fsync_directory, write_durable

TEMPORARY = ".tmp-"


@dataclass(frozen=True)
class Written:
    """One rank's part in storage, and the size of the data file that contains it, in bytes."""

    part_xxh3_128: str
    file_bytes: int


def no_retirement(_: str) -> tuple[CheckpointId, ...]:
    """Retire nothing."""
    return ()


@dataclass(frozen=True)
class Committer:
    """The first rank's side of a save; the others use it for `bytes_of` and `files_of` only.

    `retire` returns the checkpoints that it retired; `clean` runs it after each commit to a tier. `upload` writes a
    manifest next to the keepers' uploads in the remote tier.
    """

    place: CheckpointLocation
    chain: Chain
    retire: Callable[[str], tuple[CheckpointId, ...]] = no_retirement
    upload: Callable[[CheckpointId, bytes], None] | None = None
    versions: dict[str, str] = field(default_factory=lambda: {"python": sys.version.split()[0]})
    # Each tier commits in its own thread, on one chain.
    _one_tier: threading.Lock = field(default_factory=threading.Lock)

    def commit(self, step: int, tier: str, everyone: Sequence[Written]) -> None:
        """Commit `step` to `tier`. Raises OSError when the manifest cannot be written, SupersededError when a newer
        generation has claimed the run."""
        checkpoint = self.place.checkpoint(step)
        if self._stands(checkpoint, tier):
            return
        raw = record_bytes(self._manifest(checkpoint, everyone))
        match tier:
            case "shared":
                try:
                    self._rename(checkpoint, raw)
                except FileNotFoundError:
                    self.refuse_superseded()
                    raise
            case "remote":
                assert self.upload is not None  # noqa: S101  keepers upload only where there is a remote tier
                self.upload(checkpoint, raw)
            case _:
                raise ValueError(f"nothing is committed to tier `{tier}`")
        entry = Commit(step, xxhash.xxh3_128_hexdigest(raw), (tier,))
        with self._one_tier:
            self.chain.append(entry, self.place.generation, self.place.attempt, holder="rank 0")

    def clean(self, tier: str) -> tuple[CheckpointId, ...]:
        """Retire and delete what the commits to the tier have superseded; the next save retries what fails now.

        No rank waits for it: deleting a checkpoint takes as long as a part of writing one (524 MB on ext4: 0.08 s).
        """
        with self._one_tier, contextlib.suppress(OSError, ChainError, SupersededError, ValueError):
            return self.retire(tier)
        return ()

    def refuse_superseded(self) -> None:
        """Raise SupersededError if the chain has a newer generation.

        A newer generation deletes what older ones have not committed, which explains missing files. Raises OSError or
        ChainError when the chain cannot be read.
        """
        with self._one_tier:
            newest = max((record.generation for record in self.chain.read()), default=0)
        if newest > self.place.generation:
            raise SupersededError(f"generation {newest} has claimed the run")

    def _stands(self, checkpoint: CheckpointId, tier: str) -> bool:
        """Return whether an earlier try has committed without its result having been received: those files must stay."""
        with self._one_tier:
            return any(known.checkpoint == checkpoint and tier in known.tiers for known in lineage(self.chain.read()))

    def bytes_of(self, everyone: Sequence[Written]) -> int:
        """Return the data bytes of all ranks. Ranks of one node share a file."""
        return sum(self._files(everyone).values())

    def _manifest(self, checkpoint: CheckpointId, everyone: Sequence[Written]) -> Manifest:
        return Manifest(
            run=self.place.run,
            step=checkpoint.step,
            generation=checkpoint.generation,
            world_size=len(everyone),
            mesh=dict(zip(self.place.mesh.axes, self.place.mesh.shape, strict=True)),
            parts={str(rank): written.part_xxh3_128 for rank, written in enumerate(everyone)},
            files=self._files(everyone),
            trust="written",
            versions=self.versions,
        )

    def files_of(self, everyone: Sequence[Written]) -> int:
        """Return the checkpoint's number of files: a data file per node, a part per rank, the manifest."""
        return len(self._files(everyone)) + len(everyone) + 1

    def _files(self, everyone: Sequence[Written]) -> dict[str, int]:
        procs = self.place.procs_per_slot
        return {data_name(rank // procs, 0): written.file_bytes for rank, written in enumerate(everyone)}

    def _rename(self, checkpoint: CheckpointId, manifest: bytes) -> None:
        """Rename the directory, with the manifest in it, to its final name; a previous directory of that name is moved aside."""
        temporary = self.place.root / f"{TEMPORARY}{checkpoint.directory}"
        write_durable(temporary / MANIFEST, manifest)
        fsync_directory(temporary)
        final = self.place.root / checkpoint.directory
        # An earlier try of this generation renamed it and then failed to commit.
        if final.exists():
            final.rename(self.place.root / f"{TEMPORARY}stale-{checkpoint.directory}-{time.time_ns()}")
        temporary.rename(final)
        fsync_directory(self.place.root)


def memory_manifest(run: str, checkpoint: CheckpointId, mesh: Mesh, parts: Sequence[str]) -> bytes:
    """Return the manifest that follows from the hashes of all ranks' parts in memory, in rank order: knowing them is
    knowing its hash."""
    return record_bytes(
        Manifest(
            run=run,
            step=checkpoint.step,
            generation=checkpoint.generation,
            world_size=len(parts),
            mesh=dict(zip(mesh.axes, mesh.shape, strict=True)),
            parts={str(rank): part for rank, part in enumerate(parts)},
            files={},
            trust="written",
            versions={},
        )
    )
