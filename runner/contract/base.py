"""Defines how a checkpoint is named, and what a generation begins with."""

from dataclasses import dataclass


@dataclass(frozen=True, order=True)
class CheckpointId:
    """Identifies one checkpoint of a run: its number of optimizer steps, and the generation that wrote it."""

    step: int
    generation: int

    @property
    def directory(self) -> str:
        return f"step-{self.step:09d}.g{self.generation:06d}"


@dataclass(frozen=True)
class Base:
    """The start of a generation: a checkpoint with the hash of its manifest, read from `tier`."""

    step: int
    generation: int
    manifest_xxh3_128: str
    tier: str = "shared"

    @property
    def checkpoint(self) -> CheckpointId:
        return CheckpointId(self.step, self.generation)
