"""Lists a run's checkpoints as rows, and reads one checkpoint as verified bytes. Needs no torch."""

import json
import os
import re
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from math import prod
from pathlib import Path

from headway.runner.checkpoint.chain import (
    Chain,
    Claim,
    Commit,
    Committed,
    Record,
    lineage,
    newest_base,
    retired,
)
from headway.runner.checkpoint.format import MANIFEST, Chunk, RefusedError, parse_manifest, part_name
from headway.runner.checkpoint.read import Reader
from headway.runner.checkpoint.sources import DirectorySource, ObjectSource, Source
from headway.runner.checkpoint.stores import open_store
from headway.runner.contract import Base, CheckpointId, RunConfig, RunDirectory, from_json

DIRECTORY = re.compile(r"step-(\d{9})\.g(\d{6})")
_THREADS = 8


class PlaceError(ValueError):
    """A path is not what a verb needs; the message has what was found and what is expected."""


class ForeignError(ValueError):
    """Files in another format cannot be read or written; the message names the file or tensor and the reason."""


@dataclass(frozen=True)
class InspectedRun:
    """A run's directory and the name in its records, which stays when the directory is moved."""

    directory: Path
    name: str

    @property
    def checkpoints(self) -> Path:
        return RunDirectory(self.directory, 0).checkpoints

    @property
    def chain_directory(self) -> Path:
        return RunDirectory(self.directory, 0).chain

    def chain(self) -> Chain:
        return Chain(open_store(str(self.chain_directory)), self.name)

    def reader(self, base: Base) -> Reader:
        """Return the checkpoint's reader, in the tier that `base` names. Raises RefusedError, PlaceError."""
        return Reader(self._source(base), self.name, base)

    def config(self) -> RunConfig | None:
        """Return the newest attempt's run.json; None if there is none. Raises RecordError."""
        directory = RunDirectory(self.directory)
        files = [directory.at(attempt).run_json for attempt in directory.attempt_numbers()]
        newest = next((file for file in reversed(files) if file.exists()), None)
        return None if newest is None else from_json(RunConfig, newest.read_text())

    def _source(self, base: Base) -> Source:
        if base.tier == "shared":
            return DirectorySource(self.checkpoints / base.checkpoint.directory)
        config = self.config()
        urls = [tier.url for tier in config.checkpoint.tiers if tier.kind == base.tier and tier.url] if config else []
        if not urls:
            raise PlaceError(f"{base.checkpoint.directory} is on `{base.tier}` only, and no run.json of the run has its location")
        return ObjectSource(urls[-1], self.name, base.checkpoint)


def open_run(path: Path) -> InspectedRun:
    """Return the run at `path`. Raises PlaceError."""
    directory = RunDirectory(path, 0)
    if not directory.chain.is_dir():
        raise PlaceError(f"`{path}` is not a run: it has no shared/chain; expected a directory created by `headway run`")
    return InspectedRun(path, _name(directory))


def _name(directory: RunDirectory) -> str:
    """Return the run's name: from the handle, else the first record, else the directory."""
    for file in (directory.handle, *sorted(directory.chain.glob("*.json"))[:1]):
        try:
            found = json.loads(file.read_text())["run"]
        except (OSError, ValueError, KeyError, TypeError):
            continue
        if isinstance(found, str):
            return found
    return directory.root.resolve().name


# --- ls ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """One checkpoint of a run, or a directory that is none. `tiers` are those that hold it; `made_at` is when it was
    committed."""

    step: int | None
    generation: int | None
    tiers: tuple[str, ...]
    bytes: int | None
    made_at: float | None
    states: tuple[str, ...]
    directory: str


def rows(run: InspectedRun, records: Sequence[Record]) -> list[Row]:
    """Return every commit in the order of the chain, then the directories next to them that were never committed."""
    counting = lineage(records)
    known = {c.checkpoint: c for c in counting}
    commits: dict[CheckpointId, list[Record]] = {}
    for record in records:
        if isinstance(record.entry, Commit):
            commits.setdefault(CheckpointId(record.entry.step, record.generation), []).append(record)
    found = [_row(run, records, at, written, known.get(at)) for at, written in commits.items()]
    return found + _uncommitted(run, {at.directory for at in commits})


def _row(
    run: InspectedRun, records: Sequence[Record], at: CheckpointId, written: list[Record], counting: Committed | None
) -> Row:
    gone = retired(records)
    on = [tier for record in written if isinstance(record.entry, Commit) for tier in record.entry.tiers]
    tiers = tuple(tier for tier in dict.fromkeys(on) if (at, tier) not in gone)
    directory = run.checkpoints / at.directory
    states = [*_standing(records, at, tiers, counting), *_bases(records, at)]
    if "shared" in tiers and not directory.is_dir():
        states.append("missing in shared storage")
    return Row(at.step, at.generation, tiers, _bytes(directory, at), written[0].made_at, tuple(states), at.directory)


def _standing(records: Sequence[Record], at: CheckpointId, tiers: tuple[str, ...], counting: Committed | None) -> list[str]:
    newest = newest_base(records)
    if newest is not None and newest.checkpoint == at:
        return ["newest"]
    return [*([] if counting else ["rolled back"]), *([] if tiers else ["retired"])]


def _bases(records: Sequence[Record], at: CheckpointId) -> list[str]:
    claims = {r.generation: r.entry.base for r in records if isinstance(r.entry, Claim)}
    return [f"base of generation {number}" for number, base in claims.items() if base is not None and base.checkpoint == at]


def _uncommitted(run: InspectedRun, committed: set[str]) -> list[Row]:
    found = sorted(run.checkpoints.iterdir()) if run.checkpoints.is_dir() else []
    left = [path for path in found if path.name not in committed and path.is_dir() and "step-" in path.name]
    return [Row(*_numbers(path.name), (), _size(path), None, ("not committed",), path.name) for path in left]


def _numbers(name: str) -> tuple[int | None, int | None]:
    match = DIRECTORY.search(name)
    return (int(match[1]), int(match[2])) if match else (None, None)


def _size(path: Path) -> int:
    return sum(entry.stat().st_size for entry in path.rglob("*") if entry.is_file())


def _bytes(directory: Path, at: CheckpointId) -> int | None:
    """Return the size of the tensor data from the manifest; None if it cannot be read."""
    try:
        return sum(parse_manifest((directory / MANIFEST).read_bytes(), at).files.values())
    except (OSError, RefusedError):
        return None


def run_and_step(name: str) -> tuple[Path, int | None]:
    """Parse RUN or RUN@STEP. Raises PlaceError for a step that is not a number."""
    place, at, step = name.rpartition("@")
    if not at or Path(name).exists():
        return Path(name), None
    if not step.isdecimal():
        raise PlaceError(f"`{name}` is not RUN@STEP: `{step}` is not a number")
    return Path(place), int(step)


def lost_chain(run: InspectedRun, records: Sequence[Record]) -> str | None:
    """Return why the chain seems lost: checkpoints exist and the chain has none. A save begins with a claim, so records
    are missing."""
    if records or not run.checkpoints.is_dir():
        return None
    left = sum(1 for path in run.checkpoints.iterdir() if DIRECTORY.fullmatch(path.name))
    return f"it is empty, but there are {left} checkpoints beside it" if left else None


def chosen(run: InspectedRun, records: Sequence[Record], step: int | None) -> Base:
    """Return the newest checkpoint that counts and is stored, or the one of `step`. Raises PlaceError naming the
    available ones."""
    if reason := lost_chain(run, records):
        raise PlaceError(
            f"the chain of run `{run.name}` is lost: {reason}; run `headway checkpoint adopt` to see what can be done"
        )
    there = standing(records)
    for base in there:
        if step is None or base.step == step:
            return base
    steps = ", ".join(str(base.step) for base in there) or "none"
    raise PlaceError(f"run `{run.name}` has no checkpoint{'' if step is None else f' of step {step}'}; it has: {steps}")


def standing(records: Sequence[Record]) -> list[Base]:
    """Return the checkpoints that count, newest first, each in the tier that is read first."""
    return [committed.on(committed.tiers[0]) for committed in lineage(records) if committed.tiers]


# --- verify -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Progress:
    """Bytes verified, of all bytes."""

    done: int
    of: int


@dataclass(frozen=True)
class FileRefusal:
    """A file, with the tensor or object in it, that differs from what was committed; `unread` is RefusedError's."""

    name: str
    reason: str
    unread: int | None = None


def verify(reader: Reader, ranks: Sequence[int] | None = None) -> Iterator[Progress | FileRefusal]:
    """Read every part, object and chunk; continue after an error. Ends with the progress of all bytes.

    With `ranks`, read only their parts, without checking that all parts together are complete.
    """
    parts = [_part(reader, rank) for rank in (range(reader.manifest.world_size) if ranks is None else ranks)]
    yield from (found for found in parts if isinstance(found, FileRefusal))
    chunks = [(name, chunk) for part in parts if not isinstance(part, FileRefusal) for name, chunk in part]
    of, done = sum(chunk.length for _, chunk in chunks), 0
    with ThreadPoolExecutor(_threads()) as pool:
        for (_, chunk), refused in zip(chunks, pool.map(lambda found: _verify_chunk(reader, *found), chunks), strict=True):
            done += chunk.length
            yield refused or Progress(done, of)
    if ranks is None and all(not isinstance(part, FileRefusal) for part in parts):
        yield from _uncovered(reader)
    yield Progress(done, of)


def _threads() -> int:
    """Return the number of threads. Each holds a chunk in memory (64 MB by default), and the ranks of a node that
    verify together share its cores."""
    return max(1, min(_THREADS, (os.cpu_count() or 1) // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))))


def _part(reader: Reader, rank: int) -> list[tuple[str, Chunk]] | FileRefusal:
    """Return the chunks of a rank's part, after reading its objects."""
    try:
        reader.objects(rank)
        return [(name, chunk) for name, entry in reader.part(rank).tensors.items() for chunk in entry.chunks]
    except RefusedError as error:
        return FileRefusal(error.name, error.reason, error.unread)
    except ValueError as error:
        return FileRefusal(part_name(rank), f"an object cannot be read: {error}")


def _verify_chunk(reader: Reader, name: str, chunk: Chunk) -> FileRefusal | None:
    try:
        reader.chunk(name, chunk)
    except RefusedError as error:
        return FileRefusal(error.name, error.reason, error.unread)
    return None


def _uncovered(reader: Reader) -> Iterator[FileRefusal]:
    """Yield the tensors with elements that no part has."""
    try:
        tensors = reader.tensors()
    except RefusedError as error:
        yield FileRefusal(error.name, error.reason)
        return
    for name, tensor in tensors.items():
        there = sum(prod(chunk.box.shape) for chunk in distinct(tensor.chunks))
        if there != prod(tensor.shape):
            yield FileRefusal(MANIFEST, f"tensor `{name}`: {there} of {prod(tensor.shape)} elements are present")


def distinct(chunks: tuple[Chunk, ...]) -> list[Chunk]:
    """Return one chunk per box: every rank that holds a tiny tensor writes it."""
    return list({chunk.box: chunk for chunk in reversed(chunks)}.values())
