"""Places checkpoints along a run: how far training gets despite their pauses, and which of them a restart can use."""

import math
from collections.abc import Sequence

from msgspec import Struct

from headway.planner.goodput.run import Scope, SimulatedRun, SimulatedTier

# A position is a sum of floating-point seconds; one that is this close to a multiple of an interval is that multiple.
_CLOSE = 1e-9
# A position just before a pause: its checkpoint is not taken yet.
_BEFORE_S = 1e-4


class SavePauses:
    """Wall-clock time and training, converted into each other: every tier stops training for its blocking time at each multiple."""

    def __init__(self, tiers: Sequence[SimulatedTier]) -> None:
        self._each = [(tier.spacing_s, tier.block_s) for tier in tiers if tier.block_s > 0]
        self._share = sum(block / spacing for spacing, block in self._each)
        self._longest = sum(block for _, block in self._each)

    def wall(self, start: float, end: float) -> float:
        """Return seconds that training takes from position `start` to `end`, the pauses in (start, end] with it."""
        return end - start + self.paused(start, end)

    def paused(self, start: float, end: float) -> float:
        """Return seconds of the pauses in (start, end]."""
        return sum(block * (multiples(end, spacing) - multiples(start, spacing)) for spacing, block in self._each)

    def reached(self, start: float, wall_s: float) -> float:
        """Return the position after `wall_s` seconds from position `start`; during a pause, just before the position at
        which it began."""
        if not self._each:
            return start + wall_s
        # No more than one pause of each tier comes on top of their mean share, so training gets at least this far.
        position = start + max(0.0, (wall_s - self._longest) / (1 + self._share))
        while True:
            left_s = wall_s - self.wall(start, position)
            pause = min((multiples(position, spacing) + 1) * spacing for spacing, _ in self._each)
            if position + left_s < pause:
                return position + left_s
            if self.wall(start, pause) > wall_s:
                return max(position, pause - _BEFORE_S)
            position = pause


def multiples(position: float, spacing: float) -> int:
    """Return how many multiples of `spacing` lie in (0, position]."""
    return math.floor(position / spacing + _CLOSE)


class Restore(Struct, frozen=True):
    """A checkpoint to resume from: the position in training that it holds, and the time to read it."""

    position: float
    load_s: float


class Checkpoints:
    """The content of each tier: the newest position that can be loaded, None if there is none."""

    def __init__(self, run: SimulatedRun) -> None:
        self._tiers = run.tiers
        self._pauses = SavePauses(run.tiers)
        self._newest: list[float | None] = [None] * len(run.tiers)

    def trained(self, start: float, wall_s: float) -> None:
        """Record that training continued from position `start` for `wall_s` seconds: finished writes can be loaded."""
        for index, tier in enumerate(self._tiers):
            if wall_s < tier.write_s:
                continue
            written = self._pauses.reached(start, wall_s - tier.write_s)
            number = multiples(written, tier.spacing_s)
            if number > multiples(start, tier.spacing_s):
                self._newest[index] = max(self._newest[index] or 0.0, number * tier.spacing_s)

    def restore(self, scope: Scope, position: float, sound: float) -> Restore:
        """Return the checkpoint that costs the least work and reading after a failure at `position`; the beginning when
        there is none.

        No position after `sound` may be used. Checkpoints lost by the failure, and unsound ones, are removed.
        """
        self._newest = [newest if scope in tier.survives else None for tier, newest in self._each()]
        usable = [_usable(tier, newest, sound) for tier, newest in self._each()]
        if sound < position:
            self._newest = [None if each is None else each.position for each in usable]
        found = [each for each in usable if each is not None]
        return min(found, key=lambda each: position - each.position + each.load_s, default=Restore(0.0, 0.0))

    def _each(self) -> list[tuple[SimulatedTier, float | None]]:
        return list(zip(self._tiers, self._newest, strict=True))


def _usable(tier: SimulatedTier, newest: float | None, sound: float) -> Restore | None:
    """Return the newest checkpoint of the tier that is not after `sound`, while it is kept."""
    if newest is None:
        return None
    position = min(newest, multiples(sound, tier.spacing_s) * tier.spacing_s)
    kept = position > 0 and position > newest - tier.keep * tier.spacing_s + _BEFORE_S
    return Restore(position, tier.load_s) if kept else None
