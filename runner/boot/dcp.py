"""Hooks a script's dcp.save and dcp.load: torch's own storage and format, and records of the files in the run's directory.

With HEADWAY_DCP=headway, headway's verified storage replaces torch's plain writer, at the script's own path;
`.metadata` appears last there too, for programs that look for it. Loads detect the format from the directory, whatever
the variable is.
"""

import dataclasses
import os
import pickle
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch.distributed.checkpoint.filesystem import (
    DEFAULT_SUFFIX,
    FileSystem,
    FileSystemReader,
    FileSystemWriter,
    _StorageInfo,
)
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex, TensorStorageMetadata
from torch.distributed.checkpoint.planner import LoadPlan
from torch.distributed.checkpoint.storage import WriteResult

from headway.runner import worker as workers
from headway.runner.boot import files, records, saved
from headway.runner.boot.limitations import note_limitation, suppress_errors
from headway.runner.boot.records import DCP, DCP_BEGUN, OWN, PART, Identity
from headway.runner.boot.saved import METADATA, DamagedFileError
from headway.runner.checkpoint.format import RefusedError
from headway.runner.checkpoint.interop.dcp import StorageReader, StorageWriter
from headway.runner.checkpoint.interop.root import RootedReader, is_rooted, read_root
from headway.runner.checkpoint.read import Reader
from headway.runner.checkpoint.tools.inspect import FileRefusal, verify
from headway.runner.posix import write_atomic

# Used where torch expects the names of its data files, so that a load without headway names it in its error.
MARK = "written by headway - load it with headway.checkpoint.StorageReader"

CHOICE = "HEADWAY_DCP"

# Blocks of files that were found good here.
_whole: dict[Identity, set[int]] = {}


# --- torch's own format -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Saving:
    """A save through torch's plain writer. `leads`: this one of the saving ranks commits."""

    writer: FileSystemWriter
    directory: Path
    rank: int
    leads: bool
    together: bool


def saving_of(
    storage_writer: Any,
    process_group: Any = None,
    coordinator_rank: int = 0,
    no_dist: bool = False,
    use_collectives: bool = True,
    **_: Any,
) -> Saving | None:
    """Record the begin of a save; None for any other writer than torch's plain one to a local path, which is reported.
    Raises OSError."""
    if (worker := workers.current()) is None:
        return None
    if type(storage_writer) is not FileSystemWriter or not isinstance(storage_writer.fs, FileSystem):
        if not isinstance(storage_writer, StorageWriter):
            note_limitation(f"dcp.save through {type(storage_writer).__name__} with a custom write method: not verified")
        return None
    directory = Path(storage_writer.path).absolute()
    rank = 0 if no_dist else dist.get_rank(process_group)
    leads = no_dist or rank == coordinator_rank
    if leads and use_collectives:
        records.append(worker, [records.line(worker, DCP_BEGUN, str(directory), time.time())])
    return Saving(storage_writer, directory, rank, leads, use_collectives)


def saved_by(saving: Saving, metadata: Metadata) -> None:
    """Record the end of a save: this rank's files, and on the leading rank the checkpoint. Raises OSError."""
    if (worker := workers.current()) is None:
        return
    for name in _own_names(saving):
        files.expect(worker, str(saving.directory / name), PART)
    if saving.leads and saving.together:
        names = sorted({str(info.relative_path) for info in metadata.storage_data.values()})
        files.expect(worker, str(saving.directory / METADATA), PART)
        records.append(worker, [records.line(worker, DCP, str(saving.directory), time.time(), names=names)])
    if threading.current_thread() is not threading.main_thread():
        # Of async_save: in parallel with the training and not in its next step.
        files.settle(files.TICK_S)


def _own_names(saving: Saving) -> list[str]:
    prefix, writer = f"__{saving.rank}_", saving.writer
    if writer.single_file_per_rank:
        names = [f"{prefix}{number}{DEFAULT_SUFFIX}" for number in range(writer.thread_count)]
        return [name for name in names if (saving.directory / name).exists()]
    with os.scandir(saving.directory) as entries:
        return [entry.name for entry in entries if entry.name.startswith(prefix) and entry.name.endswith(DEFAULT_SUFFIX)]


def damage_of_reads(reader: Any, plan: LoadPlan) -> DamagedFileError | None:
    """Return what is wrong with the blocks that torch's plain reader is about to read; None for other readers. Raises OSError."""
    if workers.current() is None or type(reader) is not FileSystemReader or not isinstance(reader.fs, FileSystem):
        return None
    files.settle()
    wanted = defaultdict[str, list[tuple[int, int]]](list)
    for item in plan.items:
        info = reader.storage_data[item.storage_index]
        wanted[info.relative_path].append((info.offset, info.length))
    for name, ranges in wanted.items():
        path = Path(reader.path) / name
        if _differs(path, ranges) and (why := saved.damage_of_file(path)) is not None:
            return DamagedFileError(f"{path}: {why}")
    return None


def _differs(path: Path, ranges: Sequence[tuple[int, int]]) -> bool:
    identity = Identity.of(path.stat())
    if (record := saved.here().of(identity)) is None:
        return False
    length, whole = records.block_bytes(identity.bytes), _whole.setdefault(identity, set())
    wanted = {number for at, size in ranges for number in range(at // length, -(-(at + size) // length))} - whole
    if any(records.differ(path, identity.bytes, record.blocks[number : number + 1], number) for number in sorted(wanted)):
        return True
    whole |= wanted
    return False


def damage_of_metadata(reader: Any) -> DamagedFileError | None:
    """Return what is wrong with `.metadata`, like `damage_of_reads`. Raises OSError."""
    if workers.current() is None or type(reader) is not FileSystemReader or not isinstance(reader.fs, FileSystem):
        return None
    path = Path(reader.path) / METADATA
    if not path.exists() or (why := saved.damage_of_file(path)) is None:
        return None
    return DamagedFileError(f"{path}: {why}")


# --- headway's format -------------------------------------------------------------------------------------------------


class ScriptWriter(StorageWriter):
    """Headway's writer where a script expects torch's: it writes a `.metadata` at the end, too."""

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        super().finish(metadata, results)
        write_atomic(self.path / METADATA, pickle.dumps(marked(metadata)))
        suppress_errors(_record_own, self.path)


def _record_own(path: Path) -> None:
    if (worker := workers.current()) is not None:
        records.append(worker, [records.line(worker, OWN, str(path.absolute()), time.time())])


def marked(metadata: Metadata) -> Metadata:
    """Return torch's metadata with MARK as the name of every data file."""
    return dataclasses.replace(metadata, storage_data={index: _StorageInfo(MARK, 0, 0) for index in _indices(metadata)})


def _indices(metadata: Metadata) -> Iterator[MetadataIndex]:
    for name, found in metadata.state_dict_metadata.items():
        if isinstance(found, TensorStorageMetadata):
            yield from (MetadataIndex(name, chunk.offsets) for chunk in found.chunks)
        else:
            yield MetadataIndex(name)


def is_ours(path: Path) -> bool:
    """Return whether headway wrote the directory's current content; torch may have overwritten it."""
    metadata = path / METADATA
    return is_rooted(path) and (not metadata.exists() or MARK.encode() in metadata.read_bytes())


def opened(path: Path) -> Reader | None:
    """Return the reader of a directory that headway wrote; None if torch has overwritten it. Raises RefusedError, OSError."""
    return RootedReader(path, read_root(path)) if is_ours(path) else None


def damage_of(path: Path) -> str | None:
    """Return the first error of a directory that headway wrote; None if there is none, or if torch has overwritten it.
    Raises OSError."""
    return damage_of_parts(path, None)


def damage_of_parts(path: Path, ranks: Sequence[int] | None) -> str | None:
    """Return the first error like `damage_of`, limited to the parts of `ranks`; None: all parts, and whether they are
    complete. Raises OSError."""
    try:
        if (reader := opened(path)) is None:
            return None
        for found in verify(reader, ranks):
            if isinstance(found, FileRefusal):
                return _as_read(path, f"{found.name}: {found.reason}", found.unread)
    except RefusedError as error:
        return _as_read(path, str(error), error.unread)
    return None


def _as_read(path: Path, why: str, unread: int | None) -> str:
    """Return `why`. Raises the OSError behind it. A missing file in a directory that can be listed was lost, which is damage."""
    if unread is not None:
        raise OSError(unread, os.strerror(unread), str(path))
    next(path.iterdir(), None)
    return why


# --- in place of torch's -----------------------------------------------------------------------------------------------


def writer_for(storage_writer: Any, use_collectives: bool = True, **_: Any) -> ScriptWriter | None:
    """Return headway's writer in place of torch's plain writer to a local path, if the script's environment asks for it."""
    if os.environ.get(CHOICE) != "headway" or not use_collectives:
        return None
    if type(storage_writer) is not FileSystemWriter or not isinstance(storage_writer.fs, FileSystem):
        return None
    path = Path(storage_writer.path)
    if not storage_writer.overwrite and (path / METADATA).exists():
        # The script gets torch's error.
        return None
    return ScriptWriter(path) if _is_torchs_format(storage_writer) else None


def _is_torchs_format(storage_writer: FileSystemWriter) -> bool:
    """Return whether the format is the plain one: torch has had other formats and extensions since 2.7."""
    kind = getattr(storage_writer, "serialization_format", None)
    return (kind is None or kind.name == "TORCH_SAVE") and not getattr(storage_writer, "_extensions", None)


def reader_for(storage_reader: Any) -> StorageReader | None:
    """Return headway's reader in place of torch's plain reader of a directory that headway wrote."""
    if type(storage_reader) is not FileSystemReader or not isinstance(storage_reader.fs, FileSystem):
        return None
    path = Path(storage_reader.path)
    return StorageReader(path) if is_ours(path) else None
