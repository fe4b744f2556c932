"""Builds runs with committed checkpoints for tests of their readers, written part by part in this process."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import xxhash

from headway.runner.checkpoint.chain import Commit, newest_claim
from headway.runner.checkpoint.format import MANIFEST, Manifest, data_name, part_name, record_bytes
from headway.runner.checkpoint.interop.part import PartWriter
from headway.runner.checkpoint.tools.inspect import InspectedRun
from headway.runner.contract import Base, CheckpointId, RunDirectory


@dataclass(frozen=True)
class Piece:
    """A rank's rows of a tensor of `shape`, from row `first` on."""

    data: torch.Tensor
    shape: tuple[int, ...]
    first: int = 0


@dataclass(frozen=True)
class RankState:
    """The state that one rank saves."""

    tensors: Mapping[str, torch.Tensor | Piece]
    objects: Mapping[str, Any] = field(default_factory=dict)


def new_run(directory: Path) -> InspectedRun:
    made = RunDirectory(directory, 0)
    for folder in (made.chain, made.checkpoints):
        folder.mkdir(parents=True)
    return InspectedRun(directory, directory.name)


def claim(run: InspectedRun, base: Base | None = None) -> int:
    """The generation that is in charge from now on."""
    chain = run.chain()
    chain.read()
    return chain.claim(base, 0, "a test").generation


def save(run: InspectedRun, step: int, ranks: Sequence[RankState], tiers: tuple[str, ...] = ("shared",)) -> Base:
    """Write and commit a checkpoint of the newest generation."""
    newest = newest_claim(run.chain().read())
    assert newest is not None
    base = write(run, CheckpointId(step, newest.generation), ranks)
    run.chain().append(Commit(step, base.manifest_xxh3_128, tiers), newest.generation, 0, "a test")
    return base


def write(run: InspectedRun, at: CheckpointId, ranks: Sequence[RankState]) -> Base:
    """Write a checkpoint without a commit."""
    directory = run.checkpoints / at.directory
    directory.mkdir()
    stored = [_part(directory, run.name, at, rank, state) for rank, state in enumerate(ranks)]
    parts = {str(rank): part for rank, (part, _) in enumerate(stored)}
    files = {data_name(rank, 0): size for rank, (_, size) in enumerate(stored)}
    raw = record_bytes(Manifest(run.name, at.step, at.generation, len(ranks), {}, parts, files, "written", {}))
    (directory / MANIFEST).write_bytes(raw)
    return Base(at.step, at.generation, xxhash.xxh3_128_hexdigest(raw))


def _part(directory: Path, run: str, at: CheckpointId, rank: int, state: RankState) -> tuple[str, int]:
    with PartWriter(directory / data_name(rank, 0), rank, run, at) as writer:
        for name, held in state.tensors.items():
            piece = held if isinstance(held, Piece) else Piece(held, tuple(held.shape))
            writer.add(name, piece.data, piece.shape, (piece.first, *(0 for _ in piece.shape[1:])) if piece.shape else ())
        for name, value in state.objects.items():
            writer.hold(name, value)
        stored = writer.finish(directory / part_name(rank))
    return stored.part_xxh3_128, stored.file_bytes
