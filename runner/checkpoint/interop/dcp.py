"""Implements torch.distributed.checkpoint's storage classes over headway's format: verified bytes, no pickle, atomic replacement.

    dcp.save(state, storage_writer=StorageWriter(path))
    dcp.load(state, storage_reader=StorageReader(path))

Planners, DTensors, resharding and async_save stay torch's own. A checkpoint is `.headway.json` and the files that it
names. A save creates files with new names and then replaces `.headway.json`; until then, the previous checkpoint stays
valid.
"""

import io
import os
import re
import secrets
import sys
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint import storage
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import (
    LoadItemType,
    LoadPlan,
    LoadPlanner,
    ReadItem,
    SavePlan,
    SavePlanner,
    WriteItem,
    WriteItemType,
)
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from headway.runner.checkpoint.format import MANIFEST, Box, Manifest, RefusedError, part_name
from headway.runner.checkpoint.interop.part import PartWriter
from headway.runner.checkpoint.interop.root import (
    GENERATION,
    ROOT,
    RUN,
    STEP,
    Root,
    RootedReader,
    SavedChunk,
    SavedTensor,
    read_root,
    root_bytes,
)
from headway.runner.checkpoint.keeper.capture import Stored
from headway.runner.checkpoint.objects import ObjectError, decode, encode
from headway.runner.checkpoint.tensors import dtype_name, dtype_named
from headway.runner.contract import CheckpointId
from headway.runner.posix import fsync_directory, write_atomic

_OWN = re.compile(r"(data-\d+-[0-9a-f]{16}\.bin|part-\d+-[0-9a-f]{16}\.json)")


# --- saving -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Written:
    """One rank's report of its files to the coordinator: `boxes` names each tensor's boxes by their offset."""

    stored: Stored
    part: str
    boxes: tuple[tuple[str, tuple[int, ...]], ...]
    objects: tuple[str, ...]
    foreign: tuple[str, ...]


class _AtPath:
    """The methods that torch expects of both storages for their directory."""

    path: Path

    @property
    def checkpoint_id(self) -> Path:
        return self.path

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        self.path = Path(checkpoint_id) if checkpoint_id else self.path

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        return "://" not in str(checkpoint_id)


class StorageWriter(_AtPath, storage.StorageWriter):
    """For `dcp.save` and `dcp.async_save`, in threads or processes. `path`: a directory that all ranks see.

    Other files below `path` stay untouched. A value that is neither a tensor nor of a type in objects.py is kept as
    torch.save writes it, if torch.load accepts that with weights_only=True; otherwise the save fails and names it
    (ObjectError).
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        super().__init__()
        self.path, self._rank = Path(path), 0

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        if not kwargs.get("use_collectives", True):
            raise ValueError(
                "use_collectives=False makes a separate checkpoint for each rank; leave it out with headway's StorageWriter"
            )
        # torch passes it since 2.9. Before, the saving ranks are taken to be the job's: a custom group's ranks are
        # unknown.
        self._rank = kwargs.get("rank", dist.get_rank() if dist.is_initialized() else 0) or 0

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        self.path.mkdir(parents=True, exist_ok=True)
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        # No rank writes before it has its plan, so unnamed files are of a failed save.
        _sweep_unnamed(self.path)
        return plans

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        written = self._write(plan, planner)
        done: Future[list[WriteResult]] = Future()
        done.set_result([WriteResult(MetadataIndex(written.part), written.stored.file_bytes, written)])
        return done

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Record what all ranks wrote: this commits the new checkpoint. Raises OSError."""
        written = [result.storage_data for (result,) in results]
        fsync_directory(self.path)
        root = _root(metadata, written)
        write_atomic(self.path / ROOT, root_bytes(root))
        _sweep(_own_files(self.path), root)

    def _write(self, plan: SavePlan, planner: SavePlanner) -> _Written:
        # Unique for each rank and save: the plan cannot carry one for all, as torch's planners reuse cached plans.
        nonce = secrets.token_hex(8)
        part, data = f"part-{self._rank}-{nonce}.json", f"data-{self._rank}-{nonce}.bin"
        boxes, objects, foreign = list[tuple[str, tuple[int, ...]]](), list[str](), list[str]()
        with PartWriter(self.path / data, self._rank, RUN, CheckpointId(STEP, GENERATION)) as writer:
            for item in plan.items:
                if item.type is WriteItemType.BYTE_IO:
                    kept = objects if _hold(writer, planner, item) else foreign
                    kept.append(item.index.fqn)
                else:
                    boxes.append((item.index.fqn, _add(writer, planner, item)))
            stored = writer.finish(self.path / part)
        fsync_directory(self.path)
        return _Written(stored, part, tuple(boxes), tuple(objects), tuple(foreign))


def _add(writer: PartWriter, planner: SavePlanner, item: WriteItem) -> tuple[int, ...]:
    """Write a tensor or a shard; return its offset in the global tensor."""
    tensor, data = planner.resolve_data(item), item.tensor_data
    if not isinstance(tensor, torch.Tensor) or data is None:
        raise ObjectError(f"the planner gave a {type(tensor).__name__} for the tensor `{item.index.fqn}`")
    offset = tuple(data.chunk.offsets)
    writer.add(item.index.fqn, tensor.detach(), tuple(data.size), offset)
    return offset


def _hold(writer: PartWriter, planner: SavePlanner, item: WriteItem) -> bool:
    """Keep a value that is not a tensor; return False if it had to be kept as torch.save writes it."""
    name = item.index.fqn
    if isinstance(planner, DefaultSavePlanner) and _plain(type(planner)):
        try:
            writer.hold(name, planner.lookup_object(item.index))
            return True
        except ObjectError:
            pass
    stream = planner.resolve_data(item)
    if not isinstance(stream, io.BytesIO):
        raise ObjectError(f"the planner gave a {type(stream).__name__} for the value `{name}`")
    raw = stream.getvalue()
    if reason := _unloadable(raw):
        raise ObjectError(f"`{name}` could not be reloaded without running its code: {reason}")
    writer.add(name, torch.frombuffer(bytearray(raw), dtype=torch.uint8))
    return False


def _plain(kind: type[DefaultSavePlanner]) -> bool:
    """Return whether the planner leaves values unchanged, so they can be taken before torch.save."""
    default = DefaultSavePlanner
    return kind.resolve_data is default.resolve_data and kind.transform_object is default.transform_object


def _unloadable(raw: bytes) -> str | None:
    """Return why torch.load refuses these bytes with weights_only=True; None if it accepts them."""
    try:
        torch.load(io.BytesIO(raw), map_location="cpu", weights_only=True)
    except Exception as error:
        # The bytes are untrusted, so any error is possible.
        return str(error).splitlines()[0]
    return None


def _root(metadata: Metadata, written: list[_Written]) -> Root:
    manifest = Manifest(
        RUN,
        STEP,
        GENERATION,
        world_size=len(written),
        mesh={},
        parts={str(w.stored.rank): w.stored.part_xxh3_128 for w in written},
        files={w.stored.file: w.stored.file_bytes for w in written},
        trust="written",
        versions={"torch": torch.__version__, "python": sys.version.split()[0]},
    )
    where = {key: w.stored.rank for w in written for key in w.boxes}
    tensors = {
        name: _saved(name, found, where)
        for name, found in metadata.state_dict_metadata.items()
        if isinstance(found, TensorStorageMetadata)
    }
    names = {part_name(w.stored.rank): w.part for w in written}
    objects = {name: w.stored.rank for w in written for name in w.objects}
    foreign = {name: w.stored.rank for w in written for name in w.foreign}
    return Root(manifest, names, tensors, objects, foreign, encode(metadata.planner_data, "planner_data"))


def _saved(name: str, found: TensorStorageMetadata, where: dict[tuple[str, tuple[int, ...]], int]) -> SavedTensor:
    chunks = tuple(SavedChunk(Box(tuple(c.offsets), tuple(c.sizes)), where[name, tuple(c.offsets)]) for c in found.chunks)
    return SavedTensor(dtype_name(found.properties.dtype), tuple(found.size), found.properties.requires_grad, chunks)


def _sweep_unnamed(path: Path) -> None:
    """Delete headway's files that the checkpoint does not name; none if the checkpoint cannot be read."""
    if not (files := _own_files(path)):
        return
    try:
        _sweep(files, read_root(path))
    except RefusedError:
        if not (path / ROOT).exists():
            _sweep(files, None)


def _own_files(path: Path) -> list[Path]:
    return [file for file in path.iterdir() if _OWN.fullmatch(file.name)]


def _sweep(files: list[Path], root: Root | None) -> None:
    named = set() if root is None else {*root.names.values(), *root.manifest.files}
    for file in files:
        if file.name not in named:
            file.unlink(missing_ok=True)


# --- loading ----------------------------------------------------------------------------------------------------------


class _Refused(Metadata):
    """Metadata that was refused: dcp.load makes an AssertionError of what read_metadata raises, so this raises when it
    is used."""

    def __init__(self, error: RefusedError) -> None:
        self.error = error

    def __getattr__(self, name: str) -> Any:
        raise self.error


class StorageReader(_AtPath, storage.StorageReader):
    """For `dcp.load`, at any world size and layout. Data that differs from what was saved raises CheckpointException
    with a RefusedError in it."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        super().__init__()
        self.path = Path(path)

    def read_metadata(self, *_: Any, **__: Any) -> Metadata:
        """Return torch's metadata; if it is refused, an object that raises RefusedError when it is used."""
        try:
            root = read_root(self.path)
        except RefusedError as error:
            return _Refused(error)
        values = {name: BytesStorageMetadata() for name in (*root.objects, *root.foreign)}
        tensors = {name: _metadata(saved) for name, saved in root.tensors.items()}
        return Metadata({**tensors, **values}, planner_data=decode(root.planner_data), storage_data=root)

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *_: Any, **__: Any) -> None:
        if isinstance(metadata, _Refused):
            raise metadata.error
        self._root: Root = metadata.storage_data
        self._reader = RootedReader(self.path, self._root)

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        for item in plan.items:
            if item.type is LoadItemType.BYTE_IO:
                planner.load_bytes(item, self._value(item.storage_index.fqn))
            else:
                self._fill(item, planner)
        done: Future[None] = Future()
        done.set_result(None)
        return done

    def _value(self, name: str) -> io.BytesIO:
        """Return a value as torch.save writes it, which planners read. It is stored as JSON, or as bytes that
        weights_only=True accepts."""
        if name in self._root.objects:
            found = self._reader.objects(self._root.objects[name])
            if name not in found:
                raise self._reader.refuse(part_name(self._root.objects[name]), f"has no object `{name}`")
            stream = io.BytesIO()
            torch.save(found[name], stream)
            stream.seek(0)
            return stream
        part = self._reader.part(self._root.foreign[name])
        raw = b"".join(bytes(self._reader.chunk(name, chunk)) for chunk in part.tensors[name].chunks)
        if reason := _unloadable(raw):
            raise self._reader.refuse(part_name(part.rank), f"`{name}` cannot be loaded without running its code: {reason}")
        return io.BytesIO(raw)

    def _fill(self, item: ReadItem, planner: LoadPlanner) -> None:
        name, box, ranks = self._wanted(item)
        target = planner.resolve_tensor(item).detach()
        done = sum(self._copy(name, box, target, rank) for rank in ranks)
        if done != prod(box.shape):
            raise self._reader.refuse(MANIFEST, f"tensor `{name}`: {done} of {prod(box.shape)} elements of {box} are there")
        planner.commit_tensor(item, target)

    def _wanted(self, item: ReadItem) -> tuple[str, Box, list[int]]:
        """Return the tensor, the item's box in global coordinates, and the ranks whose parts have it."""
        name, saved = item.storage_index.fqn, self._root.tensors[item.storage_index.fqn]
        begin = tuple(item.storage_index.offset or (0,) * len(saved.shape))
        offset = tuple(a + b for a, b in zip(begin, item.storage_offsets, strict=True))
        return name, Box(offset, tuple(item.lengths)), [c.rank for c in saved.chunks if c.box.offset == begin]

    def _copy(self, name: str, box: Box, target: torch.Tensor, rank: int) -> int:
        """Copy the rank's share of `box` into `target`; return the number of elements."""
        done, entry = 0, self._reader.part(rank).tensors.get(name)
        for chunk in entry.chunks if entry else ():
            if (common := chunk.box.intersect(box)) is not None:
                flat = torch.frombuffer(self._reader.chunk(name, chunk), dtype=torch.uint8)
                held = flat.view(dtype_named(entry.dtype)).reshape(chunk.box.shape) if entry else flat
                target[common.within(box)].copy_(held[common.within(chunk.box)])
                done += prod(common.shape)
        return done


def _metadata(saved: SavedTensor) -> TensorStorageMetadata:
    properties = TensorProperties(dtype=dtype_named(saved.dtype), requires_grad=saved.requires_grad)
    chunks = [ChunkStorageMetadata(torch.Size(c.box.offset), torch.Size(c.box.shape)) for c in saved.chunks]
    return TensorStorageMetadata(properties, torch.Size(saved.shape), chunks)
