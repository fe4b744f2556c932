"""Tracks which ranks of a node have sealed a checkpoint: it is stored once all have, and discarded if one leaves before."""

from dataclasses import dataclass, field

from headway.runner.checkpoint.keeper.captures import CaptureBuffer
from headway.runner.contract import CheckpointId


class TiersDifferError(Exception):
    """Ranks of a node ask for the same checkpoint on different tiers."""


@dataclass
class Gathered:
    """The sealed buffers of a checkpoint, by rank, and the tiers that they go to."""

    checkpoint: CheckpointId
    tiers: tuple[str, ...]
    buffers: dict[int, CaptureBuffer] = field(default_factory=dict)


@dataclass
class Gathering:
    """The `ranks` local ranks of one generation."""

    generation: int
    ranks: int
    _waiting: dict[CheckpointId, Gathered] = field(default_factory=dict)
    _left: set[int] = field(default_factory=set)

    def add(self, checkpoint: CheckpointId, tiers: tuple[str, ...], buffer: CaptureBuffer) -> Gathered:
        """Add a buffer; return what has gathered so far. Raises TiersDifferError."""
        gathered = self._waiting.setdefault(checkpoint, Gathered(checkpoint, tiers))
        if gathered.tiers != tiers:
            raise TiersDifferError(f"rank {buffer.rank} saves step {checkpoint.step} to {tiers}, but others to {gathered.tiers}")
        gathered.buffers[buffer.rank] = buffer
        return gathered

    def take(self, checkpoint: CheckpointId) -> Gathered | None:
        """Return the checkpoint, once, when all ranks have sealed it."""
        gathered = self._waiting.get(checkpoint)
        if gathered is None or len(gathered.buffers) < self.ranks:
            return None
        return self._waiting.pop(checkpoint)

    def join(self, rank: int) -> None:
        self._left.discard(rank)

    def leave(self, rank: int) -> None:
        """Record that `rank` will seal nothing more, unless it joins again."""
        self._left.add(rank)

    def take_hopeless(self) -> list[tuple[Gathered, int]]:
        """Return each checkpoint, once, that a rank has left without having sealed it, with that rank."""
        found = [(gathered, rank) for gathered in self._waiting.values() for rank in self._left - gathered.buffers.keys()]
        hopeless = {gathered.checkpoint: (gathered, rank) for gathered, rank in found}
        for checkpoint in hopeless:
            del self._waiting[checkpoint]
        return list(hopeless.values())

    def give_up(self, checkpoint: CheckpointId) -> Gathered | None:
        """Return what has gathered of a checkpoint that some rank will never seal."""
        return self._waiting.pop(checkpoint, None)

    def take_all(self) -> list[Gathered]:
        """Return all that waits: its generation is over."""
        waiting, self._waiting = list(self._waiting.values()), {}
        return waiting
