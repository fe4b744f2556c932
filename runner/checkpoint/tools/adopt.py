"""Rebuilds a lost chain from the checkpoints that survived it. Needs no torch."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import xxhash

from headway.runner.checkpoint.chain import (
    Chain,
    ChainError,
    Commit,
    Committed,
    Record,
    adoption,
)
from headway.runner.checkpoint.format import MANIFEST, RefusedError, parse_manifest
from headway.runner.checkpoint.stores import Store, open_store
from headway.runner.checkpoint.tools.inspect import DIRECTORY, FileRefusal, InspectedRun, Progress, verify
from headway.runner.contract import Base, CheckpointId, RunDirectory
from headway.runner.posix import fsync_directory


@dataclass(frozen=True)
class VerifiedDirectory:
    """A checkpoint's directory after verification: `refused` names the first error; None if there is none."""

    directory: str
    committed: Committed | None
    refused: FileRefusal | None


class _Beginning:
    """A store that ends before the record `end`, and hides later ones."""

    def __init__(self, store: Store, end: str | None = None) -> None:
        self._store, self._end, self.asked = store, end, ""

    def create(self, name: str, data: bytes) -> bool:
        raise NotImplementedError("the chain is open read-only")

    def read(self, name: str) -> bytes | None:
        self.asked = name
        return None if name == self._end else self._store.read(name)

    def names(self) -> list[str]:
        return []


def readable(run: InspectedRun) -> tuple[list[Record], str | None]:
    """Return the readable records from the beginning of the chain, and why the next one cannot be read; None if all can."""
    try:
        return run.chain().read(), None
    except ChainError as error:
        reason = str(error)
    store = _Beginning(open_store(str(run.chain_directory)))
    try:
        return Chain(store, run.name).read(), reason
    except ChainError:
        return Chain(_Beginning(store, end=store.asked), run.name).read(), reason


def survey(run: InspectedRun) -> Iterator[VerifiedDirectory | Progress]:
    """Yield every existing checkpoint, verified from its manifest down: not against the chain, which would have the
    manifest's hash."""
    for path in sorted(run.checkpoints.glob("step-*")):
        if (match := DIRECTORY.fullmatch(path.name)) is not None:
            yield from _found(run, path, CheckpointId(int(match[1]), int(match[2])))


def _found(run: InspectedRun, path: Path, at: CheckpointId) -> Iterator[VerifiedDirectory | Progress]:
    try:
        raw = (path / MANIFEST).read_bytes()
        manifest = parse_manifest(raw, at)
        if (manifest.run, manifest.step, manifest.generation) != (run.name, at.step, at.generation):
            raise RefusedError(
                at, MANIFEST, f"is of step {manifest.step}, generation {manifest.generation} of run `{manifest.run}`"
            )
        base = Base(at.step, at.generation, xxhash.xxh3_128_hexdigest(raw))
        refused: list[FileRefusal] = []
        for seen in verify(run.reader(base)):
            if isinstance(seen, FileRefusal):
                refused.append(seen)
            else:
                yield seen
        committed = Committed(at.step, at.generation, base.manifest_xxh3_128, ("shared",))
        yield VerifiedDirectory(path.name, None, refused[0]) if refused else VerifiedDirectory(path.name, committed, None)
    except OSError as error:
        yield VerifiedDirectory(path.name, None, FileRefusal(MANIFEST, error.strerror or str(error)))
    except RefusedError as error:
        yield VerifiedDirectory(path.name, None, FileRefusal(error.name, error.reason))


def contradicted(records: Sequence[Record], found: Committed) -> FileRefusal | None:
    """Return an error where the readable records commit another checkpoint under this name."""
    for record in records:
        commit = record.entry
        if not isinstance(commit, Commit) or CheckpointId(commit.step, record.generation) != found.checkpoint:
            continue
        if commit.manifest_xxh3_128 != found.manifest_xxh3_128:
            return FileRefusal(MANIFEST, f"xxh3_128 is {found.manifest_xxh3_128}, and {commit.manifest_xxh3_128} was committed")
    return None


def found_again(run: InspectedRun, records: Sequence[Record], found: Sequence[Committed], generation: int) -> Path:
    """Move the chain aside and rebuild it with the checkpoints `found`; return the old one's path.

    `generation` is the newest in any other source of the run. Raises OSError, ChainError.
    """
    new = run.chain_directory.with_name(f".tmp-chain-{time.time_ns()}")
    new.mkdir()
    Chain(open_store(str(new)), run.name).begin(
        adoption(records, found, generation), RunDirectory(run.directory).next_attempt(), "headway checkpoint adopt"
    )
    old = run.chain_directory.with_name(f"chain.replaced-{time.time_ns()}")
    run.chain_directory.rename(old)
    new.rename(run.chain_directory)
    fsync_directory(run.chain_directory.parent)
    return old


def newest_generation(run: InspectedRun) -> int:
    """Return the newest generation in the run's journal or checkpoint directories; 0 if there is none."""
    journals = RunDirectory(run.directory).journal_files()
    places = (DIRECTORY.search(path.name) for path in run.checkpoints.iterdir())
    return max([0, *journals, *(int(match[2]) for match in places if match)])
