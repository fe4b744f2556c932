"""Prepares a pipeline schedule to be timed many times: its operations, their dependencies, and what its ranks hold."""

from array import array
from collections.abc import Iterator, Sequence
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import get_args

from headway.planner.identity import ByIdentity
from headway.planner.schedules.operation import Kind, Operation
from headway.planner.schedules.orders import Shape, is_folded, rank_orders
from headway.planner.schedules.steps import Steps, steps_of

_KINDS: tuple[Kind, ...] = get_args(Kind)


class Schedule(ByIdentity, frozen=True, dict=True):
    """`rank_of` has the rank of each stage; `steps` are the operations of all ranks in an order in which they can run."""

    name: str
    shape: Shape
    rank_of: tuple[int, ...]
    steps: Steps
    codes: "tuple[array[int], ...]"
    """Each rank's operations as numbers; `operations` reads them."""

    def operations(self, rank: int) -> Iterator[Operation]:
        """Yield what the rank runs, in order."""
        return (_decoded(code, self.shape) for code in self.codes[rank])

    def stages_of(self, rank: int) -> tuple[int, ...]:
        """Return the stages that the rank holds, ascending."""
        return tuple(stage for stage, holder in enumerate(self.rank_of) if holder == rank)

    @cached_property
    def in_flight(self) -> tuple[int, ...]:
        """Return, for each stage, the most microbatches at a time whose forward is done and whose weight gradients are not."""
        peaks = [0] * self.shape.stages
        for rank, states in enumerate(self._held):
            chunks = len(self.stages_of(rank))
            for index, stage in enumerate(self.stages_of(rank)):
                peaks[stage] = max(state[index] + state[index + chunks] for state in states)
        return tuple(peaks)

    def peaks(self, activation: Sequence[float], kept: Sequence[float] | None = None) -> tuple[float, ...]:
        """Return, for each rank, the most that it holds at a time. It depends on the order alone, not on how long passes take.

        A microbatch costs `activation` of its stage, in whatever unit, from its forward to its input gradient, and from there to its
        weight gradient `kept`: as much, where that is not given.
        """
        kept = activation if kept is None else kept
        if (len(activation), len(kept)) != (self.shape.stages, self.shape.stages):
            raise ValueError(f"{len(activation)} and {len(kept)} weights were given, and there are {self.shape.stages} stages")
        return tuple(self._peak(rank, activation, kept) for rank in range(self.shape.ranks))

    def _peak(self, rank: int, activation: Sequence[float], kept: Sequence[float]) -> float:
        stages = self.stages_of(rank)
        weights = [activation[stage] for stage in stages] + [kept[stage] for stage in stages]
        return max(sum(weight * held for weight, held in zip(weights, state, strict=True)) for state in self._held[rank])

    @cached_property
    def _held(self) -> tuple[frozenset[tuple[int, ...]], ...]:
        """Return, for each rank, every state before something is released: of each of its stages the microbatches
        without an input gradient yet, then of each those with that but no weight gradient."""
        return tuple(frozenset(self._states(rank)) for rank in range(self.shape.ranks))

    def _states(self, rank: int) -> Iterator[tuple[int, ...]]:
        stages = self.stages_of(rank)
        held = [0] * (2 * len(stages))
        for operation, following in pairwise(self.operations(rank)):
            forwarded = stages.index(operation.stage)
            held[forwarded] += 1 if operation.kind == "F" else -1 if operation.kind in "IB" else 0
            held[forwarded + len(stages)] += 1 if operation.kind == "I" else -1 if operation.kind == "W" else 0
            if operation.kind in "FI" and following.kind != "F":
                yield tuple(held)


@lru_cache(maxsize=256)
def make_schedule(name: str, ranks: int, microbatches: int, chunks: int = 1) -> Schedule:
    """Return the schedule `name` of torch.distributed.pipelining, or `ZBH1`, of `ranks` that hold `chunks` stages each.

    The same object for the same arguments: what is found out of its order is found once. Raises ScheduleError where the
    schedule does not take the shape, and DeadlockError where its order cannot run.
    """
    shape = Shape(ranks, chunks, microbatches)
    orders = rank_orders(name, shape)
    codes = tuple(array("i", (_code(operation, shape) for operation in order)) for order in orders)
    return Schedule(name, shape, _ranks_of_stages(name, shape), steps_of(orders, shape.stages, microbatches), codes)


def _ranks_of_stages(name: str, shape: Shape) -> tuple[int, ...]:
    there = range(shape.ranks)
    if is_folded(name):
        return (*there, *reversed(there))
    return (*there,) * shape.chunks


def _code(operation: Operation, shape: Shape) -> int:
    kind = len(_KINDS) * operation.overlapped + _KINDS.index(operation.kind)
    return (kind * shape.stages + operation.stage) * shape.microbatches + operation.microbatch


def _decoded(code: int, shape: Shape) -> Operation:
    rest, microbatch = divmod(code, shape.microbatches)
    kind, stage = divmod(rest, shape.stages)
    overlapped, letter = divmod(kind, len(_KINDS))
    return Operation(_KINDS[letter], stage, microbatch, bool(overlapped))
