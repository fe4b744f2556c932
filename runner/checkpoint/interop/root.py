"""Reads .headway.json of a directory written by headway's storage classes, and the checkpoint that it names, verified."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import xxhash

from headway.runner.checkpoint.format import MANIFEST, Box, Manifest, RefusedError, record_bytes
from headway.runner.checkpoint.read import Reader
from headway.runner.checkpoint.sources import DirectorySource
from headway.runner.contract import Base, CheckpointId, RecordError, from_json, to_json

# No other program gives this name to a file of a checkpoint.
ROOT = ".headway.json"
SCHEMA = "headway.dcp/1"
# A directory outside of a run holds one checkpoint.
RUN, STEP, GENERATION = "dcp", 0, 0


@dataclass(frozen=True)
class SavedChunk:
    """A box of a tensor as the planner cut it, and the rank whose part has it."""

    box: Box
    rank: int


@dataclass(frozen=True)
class SavedTensor:
    """torch's TensorStorageMetadata; elements are stored strided and row-major whatever the layout was."""

    dtype: str
    shape: tuple[int, ...]
    requires_grad: bool
    chunks: tuple[SavedChunk, ...]


@dataclass(frozen=True)
class Root:
    """`.headway.json`: the manifest, the files of its parts, and the state that torch's planners need for a load.

    `objects` and `foreign` give the rank that holds a value: as an object of its part, or as bytes of torch.save in a
    tensor of bytes.
    """

    manifest: Manifest
    names: dict[str, str]
    tensors: dict[str, SavedTensor]
    objects: dict[str, int]
    foreign: dict[str, int]
    planner_data: Any
    schema: str = SCHEMA


@dataclass(frozen=True)
class RootedCheckpoint(CheckpointId):
    """The one checkpoint of a directory; errors name files below that directory."""

    path: str = ""

    @property
    def directory(self) -> str:
        return self.path


@dataclass(frozen=True)
class PlacedBase(Base):
    path: str = ""

    @property
    def checkpoint(self) -> CheckpointId:
        return RootedCheckpoint(self.step, self.generation, self.path)


def root_bytes(root: Root) -> bytes:
    """Return the record in one line, and the line's hash in a second one."""
    line = to_json(root).encode()
    return line + b"\n" + to_json_hash(line)


def to_json_hash(line: bytes) -> bytes:
    return f'{{"xxh3_128": "{xxhash.xxh3_128_hexdigest(line)}"}}\n'.encode()


def read_root(path: Path) -> Root:
    """Return the verified `.headway.json` below `path`. Raises RefusedError."""
    place = RootedCheckpoint(STEP, GENERATION, str(path))
    try:
        raw = (path / ROOT).read_bytes()
    except FileNotFoundError:
        raise RefusedError(place, ROOT, _absent(path)) from None
    except OSError as error:
        raise RefusedError(place, ROOT, error.strerror or str(error), error.errno) from None
    line, newline, rest = raw.partition(b"\n")
    if not newline or rest != to_json_hash(line):
        raise RefusedError(place, ROOT, "the first line does not have the hash on the second line")
    try:
        return from_json(Root, line.decode())
    except (RecordError, UnicodeDecodeError) as error:
        raise RefusedError(place, ROOT, str(error)) from None


def is_rooted(path: Path) -> bool:
    """Return whether headway's storage wrote the directory, judging by the record's schema. Raises OSError."""
    try:
        found = json.loads((path / ROOT).read_bytes().partition(b"\n")[0])
    except (FileNotFoundError, NotADirectoryError):
        return False
    except ValueError:
        # A damaged record, which a later read reports.
        return True
    # Either key is enough, since one may be damaged.
    return isinstance(found, dict) and (str(found.get("schema")).startswith(SCHEMA.partition("/")[0]) or "manifest" in found)


def _absent(path: Path) -> str:
    if not path.is_dir():
        return "there is no such directory"
    if (path / ".metadata").exists():
        return (
            "not found, but there is the .metadata of a plain torch.distributed.checkpoint, which cannot be verified: "
            "load it once with torch's FileSystemReader, or import it with `headway checkpoint import dcp`"
        )
    return "not found; expected the output of headway's StorageWriter"


class RootedSource:
    """The files of a checkpoint under the names that its parts and `Reader` use."""

    def __init__(self, path: Path, root: Root) -> None:
        self._files, self._root = DirectorySource(path), root

    def read(self, name: str) -> bytes:
        return record_bytes(self._root.manifest) if name == MANIFEST else self._files.read(self._root.names.get(name, name))

    def read_into(self, name: str, offset: int, out: memoryview, seed: int = 0) -> str:
        return self._files.read_into(name, offset, out, seed)

    def is_gone(self, name: str, error: OSError) -> bool:
        return self._files.is_gone(self._root.names.get(name, name), error)


class RootedReader(Reader):
    """Reads the checkpoint of a directory; errors use the file names of that directory."""

    def __init__(self, path: Path, root: Root) -> None:
        self._names = root.names
        manifest_hash = xxhash.xxh3_128_hexdigest(record_bytes(root.manifest))
        super().__init__(RootedSource(path, root), RUN, PlacedBase(STEP, GENERATION, manifest_hash, path=str(path)))

    def refuse(self, name: str, reason: str, unread: int | None = None) -> RefusedError:
        return super().refuse(self._names.get(name, name), reason, unread)


def open_reader(path: Path) -> Reader:
    """Return the reader of the checkpoint in `path`. Raises RefusedError."""
    return RootedReader(path, read_root(path))
