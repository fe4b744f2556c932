"""Reads a plain torch.distributed.checkpoint directory as tensors and values, without running code from its pickles.

The format carries no checksum, so damage goes unnoticed: use it to import checkpoints, once.
"""

import io
import pickle
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint._traverse import set_element
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import FileSystemWriter, _StorageInfo
from torch.distributed.checkpoint.metadata import BytesStorageMetadata, Metadata, MetadataIndex, TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_saver import save

from headway.runner.checkpoint.interop.archive import Archive, Described
from headway.runner.checkpoint.tensors import dtype_name, dtype_named
from headway.runner.checkpoint.tools.inspect import ForeignError
from headway.runner.posix import appearing

METADATA = ".metadata"
_OBJECTS = "objects"
_METADATA_CLASSES = (
    "BytesStorageMetadata ChunkStorageMetadata Metadata MetadataIndex StorageMeta TensorProperties TensorStorageMetadata"
    " _MEM_FORMAT_ENCODING"
)
# The contents of .metadata from torch 2.13's FileSystemWriter; dtypes and layouts are admitted by their type
# (torch/serialization.py).
ADMITTED: Mapping[str, frozenset[str]] = {
    "torch.distributed.checkpoint.metadata": frozenset(_METADATA_CLASSES.split()),
    "torch.distributed.checkpoint.filesystem": frozenset({"_StorageInfo"}),
    "torch": frozenset({"Size"}),
    "torch.serialization": frozenset({"_get_layout"}),
    "collections": frozenset({"OrderedDict"}),
    "pathlib": frozenset({"Path", "PosixPath", "PurePosixPath"}),
}


class PlainDcpError(ForeignError):
    """A plain checkpoint cannot be read; the message names the file and the reason."""


class _Unpickler(pickle.Unpickler):
    """Loads torch's metadata classes and plain containers, and refuses every other name before it is imported."""

    def find_class(self, module: str, name: str) -> Any:
        if name in ADMITTED.get(module, ()):
            return super().find_class(module, name)
        if module == "torch" and isinstance(found := getattr(torch, name, None), torch.dtype):
            return found
        raise pickle.UnpicklingError(
            f"it refers to {module}.{name}, which no checkpoint's metadata needs; none of its code was run"
        )


class PlainDcp:
    """A directory of `dcp.save` with FileSystemWriter. Everything raises PlainDcpError."""

    def __init__(self, path: Path) -> None:
        self._path, self._metadata = path, _metadata(path / METADATA)
        self._storage: Mapping[MetadataIndex, _StorageInfo] = self._metadata.storage_data
        self._chunks = {(index.fqn, tuple(index.offset or ())): info for index, info in self._storage.items()}

    def tensors(self) -> dict[str, Described]:
        return {name: Described(dtype_name(found.properties.dtype), tuple(found.size)) for name, found in self._described()}

    def tensor(self, name: str) -> torch.Tensor:
        described = dict(self._described())[name]
        found = torch.empty(described.size, dtype=described.properties.dtype)
        for chunk in described.chunks:
            piece = self._load(self._chunks[name, tuple(chunk.offsets)], name)
            place = tuple(slice(o, o + n) for o, n in zip(chunk.offsets, chunk.sizes, strict=True))
            if not isinstance(piece, torch.Tensor) or piece.shape != chunk.sizes:
                raise PlainDcpError(
                    f"{self._path}: tensor `{name}` at {list(chunk.offsets)} is not a tensor of {list(chunk.sizes)}"
                )
            found[place] = piece
        return found

    def objects(self) -> dict[str, Any]:
        """Return the values, nested as they were saved; those of `export_dcp` are unchanged."""
        found = self._values()
        own: dict[str, Any] = found[_OBJECTS] if found.keys() == {_OBJECTS} else found
        return own

    def nested(self) -> tuple[dict[str, Any], dict[int, str]]:
        """Return the state as it was saved, if torch's planner recorded its nesting, with tensors on `meta`; and each
        tensor's name by its id()."""
        found, names = self._values(), dict[int, str]()
        for name, described in self._described():
            tensor = torch.empty(described.size, dtype=described.properties.dtype, device="meta")
            names[id(tensor)] = name
            set_element(found, self._path_of(name), tensor)
        return found, names

    def _values(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, described in self._metadata.state_dict_metadata.items():
            if isinstance(described, BytesStorageMetadata):
                set_element(found, self._path_of(name), self._load(self._chunks[name, ()], name))
        return found

    def _path_of(self, name: str) -> tuple[str | int, ...]:
        path: tuple[str | int, ...] = (self._metadata.planner_data or {}).get(name, (name,))
        return path

    def _described(self) -> list[tuple[str, TensorStorageMetadata]]:
        return [(name, d) for name, d in self._metadata.state_dict_metadata.items() if isinstance(d, TensorStorageMetadata)]

    def _load(self, info: _StorageInfo, name: str) -> Any:
        if info.transform_descriptors:
            raise PlainDcpError(
                f"{self._path / info.relative_path}: `{name}` is stored through {list(info.transform_descriptors)}"
            )
        try:
            with (self._path / info.relative_path).open("rb") as file:
                file.seek(info.offset)
                return torch.load(io.BytesIO(file.read(info.length)), map_location="cpu", weights_only=True)
        except Exception as error:
            # The bytes are untrusted, so any error is possible.
            raise PlainDcpError(f"{self._path / info.relative_path}: `{name}`: {str(error).splitlines()[0]}") from None


def _metadata(file: Path) -> Metadata:
    try:
        with file.open("rb") as stream:
            found = _Unpickler(stream).load()
    except OSError as error:
        raise PlainDcpError(f"{file}: {error.strerror}; expected the file that dcp.save writes last") from None
    except Exception as error:
        # The bytes are untrusted, so any error is possible.
        raise PlainDcpError(f"{file}: {error}") from None
    if not isinstance(found, Metadata) or not isinstance(found.storage_data, dict):
        raise PlainDcpError(f"{file}: holds a {type(found).__name__}; expected the metadata of torch.distributed.checkpoint")
    return found


def read_dcp(path: Path) -> PlainDcp:
    """Open a plain checkpoint for reading. Raises PlainDcpError."""
    return PlainDcp(path)


class _Lazy(DefaultSavePlanner):
    """Takes each tensor from an archive when it is written, so that one is in memory at a time."""

    def __init__(self, archive: Archive) -> None:
        super().__init__()
        self._archive = archive

    def lookup_object(self, index: MetadataIndex) -> Any:
        found = super().lookup_object(index)
        return self._archive.tensor(index.fqn) if isinstance(found, torch.Tensor) else found


def export_dcp(archive: Archive, directory: Path) -> None:
    """Write a plain checkpoint that torch's FileSystemReader loads: the tensors by name, the objects below `objects`.

    `directory` need not exist; it appears once all files are complete. Raises FileExistsError, OSError, and the
    archive's errors.
    """
    if directory.exists():
        raise FileExistsError(f"{directory} exists; pass a directory that does not exist yet")
    state: dict[str, Any] = {
        name: torch.empty(d.shape, dtype=dtype_named(d.dtype), device="meta") for name, d in archive.tensors().items()
    }
    with appearing(directory) as temporary:
        _save({**state, _OBJECTS: archive.objects()}, temporary, _Lazy(archive))


def _save(state: dict[str, Any], directory: Path, planner: _Lazy) -> None:
    """Save in this process alone; raises the original error and not torch's list of errors by rank."""
    with warnings.catch_warnings():
        # One process is intended.
        warnings.filterwarnings("ignore", "torch.distributed is disabled")
        try:
            save(state, storage_writer=FileSystemWriter(directory), planner=planner, no_dist=True)
        except CheckpointException as error:
            reason, _ = next(iter(error.failures.values()))
            raise reason from None
