"""What stands in for torch's plain storage under a script's dcp.save and dcp.load: headway's verified one, at the script's own path.

`.metadata` appears last, as torch's writer has it, for whoever looks for it. A directory that torch itself wrote is loaded as ever, and
said to be unverified.
"""

import dataclasses
import os
import pickle
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from torch.distributed.checkpoint.filesystem import (
    FileSystem,
    FileSystemReader,
    FileSystemWriter,
    _StorageInfo,
)
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex, TensorStorageMetadata
from torch.distributed.checkpoint.storage import WriteResult

from headway.runner.boot import saved
from headway.runner.boot.unseen import carefully, unseen
from headway.runner.checkpoint.foreign.dcp import StorageReader, StorageWriter
from headway.runner.checkpoint.foreign.root import ROOT, RootedReader, read_root
from headway.runner.checkpoint.format import RefusedError
from headway.runner.checkpoint.posix import write_atomic
from headway.runner.checkpoint.read import Reader
from headway.runner.checkpoint.tools.inspect import Refused, verify

METADATA = ".metadata"
# Stands where torch looks for its data files, so that a load without headway names it in its error.
MARK = "written by headway - load it with headway.checkpoint.StorageReader"


class ScriptWriter(StorageWriter):
    """Headway's writer where a script expects torch's: at the end there is a `.metadata` too."""

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        super().finish(metadata, results)
        write_atomic(self.path / METADATA, pickle.dumps(marked(metadata)))
        carefully(saved.record, self.path, saved.DCP)


def marked(metadata: Metadata) -> Metadata:
    """The metadata as torch would have it, but with MARK as the name of every data file."""
    return dataclasses.replace(metadata, storage_data={index: _StorageInfo(MARK, 0, 0) for index in _indices(metadata)})


def _indices(metadata: Metadata) -> Iterator[MetadataIndex]:
    for name, found in metadata.state_dict_metadata.items():
        if isinstance(found, TensorStorageMetadata):
            yield from (MetadataIndex(name, chunk.offsets) for chunk in found.chunks)
        else:
            yield MetadataIndex(name)


def is_ours(path: Path) -> bool:
    """Whether headway wrote what a directory holds now; torch may have overwritten it since."""
    metadata = path / METADATA
    return (path / ROOT).exists() and (not metadata.exists() or MARK.encode() in metadata.read_bytes())


def opened(path: Path) -> Reader | None:
    """The checkpoint in a directory that headway wrote; None where it is torch's by now. Raises RefusedError, OSError."""
    return RootedReader(path, read_root(path)) if is_ours(path) else None


def damage_of(path: Path) -> str | None:
    """The first thing wrong with a directory that headway wrote; None if nothing is, or if it is torch's by now. Raises OSError."""
    return damage_of_parts(path, None)


def damage_of_parts(path: Path, ranks: Sequence[int] | None) -> str | None:
    """As `damage_of`, of what some of the ranks that saved have written; None: of all, and of what they are together. Raises OSError."""
    try:
        if (reader := opened(path)) is None:
            return None
        for found in verify(reader, ranks):
            if isinstance(found, Refused):
                return _as_read(path, f"{found.name}: {found.reason}", found.unread)
    except RefusedError as error:
        return _as_read(path, str(error), error.unread)
    return None


def _as_read(path: Path, why: str, unread: int | None) -> str:
    """`why`. Raises the OSError behind it. A file that is missing from a directory that can be listed was lost, which is damage."""
    if unread is not None:
        raise OSError(unread, os.strerror(unread), str(path))
    next(path.iterdir(), None)
    return why


# --- in place of torch's -----------------------------------------------------------------------------------------------


def writer_for(storage_writer: Any, use_collectives: bool = True, **_: Any) -> ScriptWriter | None:
    """Ours in place of torch's plain writer to a local path; None for any other, which is said."""
    plain = type(storage_writer) is FileSystemWriter and isinstance(storage_writer.fs, FileSystem)
    path = Path(storage_writer.path) if plain else None
    if path is not None and not storage_writer.overwrite and (path / METADATA).exists():
        return None  # torch's error is the script's
    if path is None or not use_collectives or not _is_torchs_format(storage_writer):
        if not isinstance(storage_writer, StorageWriter):
            unseen(f"dcp.save through {type(storage_writer).__name__} with its own way of writing: not verified")
        return None
    return ScriptWriter(path)


def _is_torchs_format(storage_writer: FileSystemWriter) -> bool:
    """torch has had other formats and extensions since 2.7."""
    kind = getattr(storage_writer, "serialization_format", None)
    return (kind is None or kind.name == "TORCH_SAVE") and not getattr(storage_writer, "_extensions", None)


def reader_for(storage_reader: Any) -> StorageReader | None:
    """Ours in place of torch's plain reader of a directory that headway wrote."""
    if type(storage_reader) is not FileSystemReader or not isinstance(storage_reader.fs, FileSystem):
        return None
    path = Path(storage_reader.path)
    if is_ours(path):
        return StorageReader(path)
    unseen(f"dcp.load of {path}: torch wrote it, so nothing in it can be verified")
    return None
