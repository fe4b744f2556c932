"""Computes the memory of a request's layouts, reusing earlier results."""

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from msgspec.structs import replace

from headway.planner.memory.ledger import MemoryUse, peak
from headway.planner.schedules.orders import is_folded
from headway.planner.search.request import Request
from headway.planner.training import Degrees, Recompute, Training

SAVING: dict[Recompute, int] = {"none": 0, "selective": 1, "full": 2}

# What layouts that answer for each other have in common: all but the data-parallel split, the microbatch and recomputation.
_Kind = tuple[int, int, int, int, bool, str, str, int]
_FORWARD_FIRST = ("GPipe", "LoopedBFS")
_LEAST = ("1F1B", 1)
"""Of all schedules, the fewest microbatches in flight: `pp` on the first rank, and no more anywhere (arXiv 2104.04473, section 2.2)."""


class _Share(NamedTuple):
    """Of layouts of one kind, what their memory differs by."""

    saving: int
    shards: int
    micro: int
    accumulates: bool

    def is_within(self, other: "_Share") -> bool:
        """Return whether it takes no more than the other: it saves as much, splits its state as far, and reads no more
        at once.

        Where the other may have all its microbatches in flight at once, it may hold no gradients at the same time, and only
        take less for that.
        """
        less = self.saving >= other.saving and self.shards >= other.shards
        return less and (self.micro == other.micro or (self.micro < other.micro and other.accumulates))


class Memory:
    """The layouts of one request that fit."""

    def __init__(self, request: Request) -> None:
        self._accepted = ("fits", "tight") if request.tight else ("fits",)
        self._unfit: dict[_Kind, list[tuple[_Share, MemoryUse]]] = {}
        self._computed: dict[tuple[_Kind, _Share], MemoryUse] = {}
        self.least: dict[Recompute, MemoryUse] = {}
        """Of the layouts that do not fit, under each recomputation, what they take at least."""
        self.left_out: Counter[Recompute] = Counter()
        """How many do not fit."""

    def use(self, training: Training) -> MemoryUse | None:
        """Return what the layout takes; None where it does not fit."""
        too_much = self._too_much(training)
        if too_much is None:
            return self._use(training)
        self.left_out[training.recompute] += 1
        before = self.least.get(training.recompute)
        if before is None or too_much.needed < before.needed:
            self.least[training.recompute] = too_much
        return None

    def _too_much(self, training: Training) -> MemoryUse | None:
        """Return what a layout that takes no more takes, where even that does not fit."""
        share = _share(training)
        for less in _relaxed(training):
            known = next((use for other, use in self._unfit.get(_kind(less.degrees), ()) if other.is_within(share)), None)
            found = known or self._use(less)
            if found.verdict not in self._accepted:
                return found
        return None

    def _use(self, training: Training) -> MemoryUse:
        kind, share = _kind(training.degrees), _share(training)
        if (kind, share) not in self._computed:
            found = self._computed[kind, share] = peak(training)
            if found.verdict not in self._accepted:
                self._unfit.setdefault(kind, []).append((share, found))
        return self._computed[kind, share]


def _relaxed(training: Training) -> Iterator[Training]:
    """Yield layouts that take no more: the plainest schedule, state split over all data-parallel ranks, and the layout itself."""
    degrees = training.degrees
    spread = replace(degrees, dp_replicate=1, dp_shard=degrees.dp)
    if _is_no_leaner(training):
        yield replace(training, degrees=replace(spread, schedule=_LEAST[0], chunks=_LEAST[1]))
    yield replace(training, degrees=spread)
    yield training


def _is_no_leaner(training: Training) -> bool:
    """Return whether it surely takes as much as 1F1B with one stage a rank: folded stages may even out blocks that do
    not divide, and where all passes forward come first, activations and gradients need not meet."""
    degrees = training.degrees
    if degrees.schedule in _FORWARD_FIRST or not _accumulates(training):
        return False
    return not is_folded(degrees.schedule) or training.model.layers % (degrees.pp * degrees.chunks) == 0


def _accumulates(training: Training) -> bool:
    """Return whether ranks surely hold the gradients of some microbatches with the activations of others: no schedule
    that could hold fewer has more than `2 pp` in flight."""
    pp = training.degrees.pp
    return training.accumulation > (1 if pp == 1 else 2 * pp)


def _kind(degrees: Degrees) -> _Kind:
    return (
        degrees.tp,
        degrees.cp,
        degrees.pp,
        degrees.ep,
        degrees.sequence_parallel,
        degrees.sharding,
        degrees.schedule,
        degrees.chunks,
    )


def _share(training: Training) -> _Share:
    return _Share(SAVING[training.recompute], training.degrees.dp_shard, training.micro, _accumulates(training))


def headroom(memory: MemoryUse) -> float:
    """Return bytes of the GPU's memory that are left."""
    return memory.capacity - memory.needed
