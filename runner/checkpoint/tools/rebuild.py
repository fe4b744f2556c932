"""Creates runs that start from a checkpoint of another origin."""

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import xxhash

from headway.runner.checkpoint.chain import Chain, Commit
from headway.runner.checkpoint.format import MANIFEST, Manifest, data_name, part_name, record_bytes
from headway.runner.checkpoint.interop.archive import Archive
from headway.runner.checkpoint.interop.part import PartWriter
from headway.runner.checkpoint.interop.plain_dcp import PlainDcp
from headway.runner.checkpoint.stateful import flatten
from headway.runner.checkpoint.stores import open_store
from headway.runner.checkpoint.tools.inspect import InspectedRun, PlaceError
from headway.runner.contract import Base, CheckpointId, Exit, RunConfig, RunDirectory, Verdict, to_json
from headway.runner.posix import fsync_directory, write_atomic, write_durable
from headway.runner.rundir import create_handle_of_loop, open_run

HOLDER = "headway checkpoint import"


@dataclass(frozen=True)
class Contents:
    """The contents of a run's first checkpoint."""

    tensors: Mapping[str, torch.Tensor]
    objects: Mapping[str, Any]


def found_run(directory: Path, config: RunConfig | None, spec: bytes | None) -> InspectedRun:
    """Create a run directory to import into: of a job, whose first attempt the import is, or without a job.

    Raises PlaceError when there is something already.
    """
    if directory.exists():
        raise PlaceError(f"`{directory}` exists; an import creates a new run, so pass a directory that does not exist yet")
    if config is not None:
        made = open_run(directory.parent, directory.name, config, 0, spec=spec)
    else:
        made = RunDirectory(directory.resolve(), 0)
        for folder in (made.chain, made.checkpoints):
            folder.mkdir(parents=True)
        create_handle_of_loop(made, 1)
    return InspectedRun(made.root, directory.name)


def settle_import(run: InspectedRun, origin: Path, step: int) -> None:
    """Record how the import's attempt has ended: as one that resumes from its commit."""
    code, cause = Exit.PREEMPTED, f"imported from {origin}"
    verdict = Verdict(run.name, 0, 1, code.name.lower(), cause, int(code), step=step, committed_step=step)
    write_atomic(RunDirectory(run.directory, 0).verdict, to_json(verdict, indent=2).encode() + b"\n")


def commit_first(run: InspectedRun, step: int, contents: Contents, origin: Path) -> Base:
    """Write the checkpoint of `step`, claim generation 1 and commit it. Raises OSError, ObjectError, ChainError."""
    chain = Chain(open_store(str(run.chain_directory)), run.name)
    chain.read()
    generation = chain.claim(None, 0, HOLDER).generation
    checkpoint = CheckpointId(step, generation)
    temporary = run.checkpoints / f".tmp-{checkpoint.directory}"
    temporary.mkdir()
    raw = record_bytes(_write(temporary, run, checkpoint, contents, origin))
    write_durable(temporary / MANIFEST, raw)
    fsync_directory(temporary)
    temporary.rename(run.checkpoints / checkpoint.directory)
    fsync_directory(run.checkpoints)
    hashed = xxhash.xxh3_128_hexdigest(raw)
    chain.append(Commit(step, hashed), generation, 0, HOLDER)
    return Base(step, generation, hashed)


def _write(directory: Path, run: InspectedRun, checkpoint: CheckpointId, contents: Contents, origin: Path) -> Manifest:
    with PartWriter(directory / data_name(0, 0), 0, run.name, checkpoint) as writer:
        for name, tensor in contents.tensors.items():
            writer.add(name, tensor)
        for name, value in contents.objects.items():
            writer.hold(name, value)
        stored = writer.finish(directory / part_name(0))
    return Manifest(
        run.name,
        checkpoint.step,
        checkpoint.generation,
        world_size=1,
        mesh={},
        parts={"0": stored.part_xxh3_128},
        files={stored.file: stored.file_bytes},
        trust=f"imported from {origin}",
        versions={"torch": torch.__version__, "python": sys.version.split()[0]},
    )


class _OneByOne(Mapping[str, torch.Tensor]):
    """An archive's tensors under other names, each read on demand."""

    def __init__(self, archive: Archive, names: Mapping[str, str]) -> None:
        self._archive, self._names = archive, names

    def __getitem__(self, name: str) -> torch.Tensor:
        return self._archive.tensor(self._names[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def contents_of_safetensors(archive: Archive) -> Contents:
    """Return the tensors below `model`, so that `checkpoint.open(RUN).load({"model": model})` fills a model with these
    parameters."""
    names = {f"model/{name}": name for name in archive.tensors()}
    return Contents(_OneByOne(archive, names), {"state": {}, "rng": None})


def contents_of_dcp(archive: PlainDcp) -> Contents:
    """Return tensors and values under the names that `checkpoint.open(RUN).load(state)` looks for, given the state that
    was saved."""
    state, names = archive.nested()
    leaves = dict(flatten(state))
    tensors = {path: names[id(leaf)] for path, leaf in leaves.items() if isinstance(leaf, torch.Tensor)}
    values = {path: leaf for path, leaf in leaves.items() if path not in tensors}
    return Contents(_OneByOne(archive, tensors), {"state": values, "rng": None})
