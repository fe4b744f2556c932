"""Builds pipeline schedules: the operations of each rank, in the order in which it runs them.

The orders are those of torch 2.13 (torch/distributed/pipelining/schedules.py). With microbatches a multiple of the ranks,
Interleaved1F1B is Megatron-LM's too (megatron/core/pipeline_parallel/schedules.py, forward_backward_pipelining_with_interleaving).
"""

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from itertools import zip_longest
from typing import get_args

from msgspec import Struct

from headway.planner.schedules.operation import Kind, Operation


class ScheduleError(ValueError):
    """A schedule that is not known, or that does not take these stages and microbatches."""


class Shape(Struct, frozen=True):
    """`ranks` hold `chunks` stages each, and run `microbatches` a step."""

    ranks: int
    chunks: int
    microbatches: int

    @property
    def stages(self) -> int:
        """Stages of all ranks."""
        return self.ranks * self.chunks

    @property
    def in_round(self) -> int:
        """Return how many microbatches an interleaved schedule runs through one stage before it turns to the next."""
        return self.microbatches // max(1, self.microbatches // self.ranks)


Order = list[Operation]


def rank_orders(name: str, shape: Shape) -> list[Order]:
    """Return the operations of each rank under the schedule `name`.

    Raises ScheduleError where torch refuses the shape; 1F1B alone also takes fewer microbatches than ranks, as
    Megatron-LM does.
    """
    if name not in _ORDERS:
        raise ScheduleError(f"`{name}` is not a pipeline schedule; there are {', '.join(_ORDERS)}")
    _check(name, shape)
    return [_ORDERS[name](shape, rank) for rank in range(shape.ranks)]


def is_folded(name: str) -> bool:
    """Return whether stages go over the ranks and back, so that a rank's two stages form a V; otherwise they restart at
    the first rank."""
    return name in _FOLDED


def _check(name: str, shape: Shape) -> None:
    numbers = (shape.ranks, shape.chunks, shape.microbatches)
    if min(numbers) < 1:
        raise ScheduleError(
            f"ranks, stages of a rank and microbatches are at least 1; here they are {', '.join(map(str, numbers))}"
        )
    wanted = 1 if name in _ONE_STAGE else 2 if name in _FOLDED else shape.chunks
    if shape.chunks != wanted:
        raise ScheduleError(f"`{name}` needs {wanted} stage{'s' * (wanted > 1)} per rank, not {shape.chunks}")
    if name in _IN_ROUNDS and shape.microbatches % shape.in_round:
        rounds = shape.microbatches // shape.ranks
        raise ScheduleError(
            f"`{name}` runs in rounds of equal size, but {shape.microbatches} microbatches do not divide into {rounds} rounds"
        )
    if name == "DualPipeV" and shape.microbatches < shape.stages:
        raise ScheduleError(f"`{name}` needs a microbatch for each of {shape.stages} stages, not {shape.microbatches}")


def _gpipe(shape: Shape, rank: int) -> Order:
    return [*_passes("F", rank, range(shape.microbatches)), *_passes("B", rank, range(shape.microbatches))]


def _one_forward_one_backward(shape: Shape, rank: int) -> Order:
    """Yield the order of arXiv 2006.09503 (PipeDream-Flush)."""
    numbers = range(shape.microbatches)
    return _alternating(list(_passes("F", rank, numbers)), list(_passes("B", rank, numbers)), warm_up=shape.ranks - 1 - rank)


def _looped_breadth_first(shape: Shape, rank: int) -> Order:
    """Yield the order of arXiv 2211.05953; gradients of the last microbatch come first, as in torch."""
    stages = range(rank, shape.stages, shape.ranks)
    forwards = [operation for stage in stages for operation in _passes("F", stage, range(shape.microbatches))]
    numbers = range(shape.microbatches - 1, -1, -1)
    return forwards + [operation for stage in reversed(stages) for operation in _passes("B", stage, numbers)]


def _interleaved(shape: Shape, rank: int) -> Order:
    """Yield the order of arXiv 2104.04473, section 2.2.2."""
    warm_up = (shape.chunks - 1) * shape.in_round + 2 * (shape.ranks - 1 - rank)
    return _alternating(list(_rounds("F", shape, rank)), list(_rounds("B", shape, rank)), warm_up)


def _interleaved_zero_bubble(shape: Shape, rank: int) -> Order:
    """Yield the order of arXiv 2401.10241, ZB-H1: every weight gradient waits for as many input gradients as there are
    ranks before this one, so that each rank holds as much as the first under 1F1B."""
    warm_up = (shape.chunks - 1) * shape.in_round + shape.ranks - 1 - rank
    order = _alternating(list(_rounds("F", shape, rank)), list(_rounds("I", shape, rank)), warm_up)
    return list(_with_weight_gradients(order, delay=rank))


def _zero_bubble_v(shape: Shape, rank: int) -> Order:
    """Yield the order of arXiv 2401.10241, section 6, in the form that fits equal passes: made for a pipeline full of
    microbatches, and without those that there are not."""
    count = max(2 * shape.ranks - 1, shape.microbatches)
    down, up = rank, shape.stages - 1 - rank
    ahead = shape.ranks - rank
    order = _Order()
    order.add("F", down, times=2 * ahead - 1)
    for _ in range(rank):
        order.add("F", up)
        order.add("F", down)
    for _ in range(ahead):
        order.add("FIW", up)
    while order.done("F", up) < count:
        order.add("FIW" if order.done("F", down) < count else "IW", down)
        order.add("FIW", up)
    for _ in range(rank):
        order.add("I", down)
        order.add("I", up)
    for _ in range(ahead):
        order.add("IW", down)
    order.add("W", up, times=order.done("I", up) - order.done("W", up))
    order.add("W", down, times=order.done("I", down) - order.done("W", down))
    return [operation for operation in order.operations if operation.microbatch < shape.microbatches]


def _dual_pipe_v(shape: Shape, rank: int) -> Order:
    """deepseek-ai/DualPipe:dualpipe/dualpipev.py, by its eight steps."""
    down, up = rank, shape.stages - 1 - rank
    ahead = shape.ranks - 1 - rank
    order = _Order()
    order.add("F", down, times=2 * ahead)
    for _ in range(rank + 1):
        order.add("F", down)
        order.add("F", up)
    for _ in range(ahead):
        order.add("IWF", up)
    for index in range(shape.microbatches - shape.stages + rank + 1):
        order.add_pair(down, up, overlapped=ahead > 0 or index > 0)
        order.add_pair(up, down)
    for _ in range(ahead):
        order.add("B", up)
        order.add_pair(up, down)
    # The second half of the chunks leaves its weight gradients for the bubble.
    for turn in range(2 * (rank + 1)):
        order.add("I" if turn > rank else "B", down if turn % 2 else up)
    for _ in range(ahead):
        order.add_weight_gradient()
        order.add("I", down)
    for _ in range(rank + 1):
        order.add_weight_gradient()
    return order.operations


class _Order:
    """An order that grows: the passes of one kind through one stage take the microbatches in turn."""

    def __init__(self) -> None:
        self.operations: Order = []
        self._done: Counter[tuple[str, int]] = Counter()
        # The stages whose weight gradients are pending, oldest first.
        self._waiting: deque[int] = deque()

    def done(self, kind: Kind, stage: int) -> int:
        """Return how many passes of this kind the stage has."""
        return self._done[kind, stage]

    def add(self, kinds: str, stage: int, times: int = 1) -> None:
        """One pass of each of the kinds through the stage."""
        for kind in kinds * times:
            self._add(_KINDS[kind], stage)

    def add_pair(self, forward: int, backward: int, overlapped: bool = True) -> None:
        """A forward through one stage and a backward through the other, at the same time."""
        self._add("F", forward, overlapped)
        self._add("B", backward)

    def add_weight_gradient(self) -> None:
        """The weight gradient whose input gradient has waited longest; nothing where none waits."""
        if self._waiting:
            self._add("W", self._waiting[0])

    def _add(self, kind: Kind, stage: int, overlapped: bool = False) -> None:
        parts: tuple[Kind, ...] = ("I", "W") if kind == "B" else (kind,)
        self.operations.append(Operation(kind, stage, self._done[parts[0], stage], overlapped))
        for part in parts:
            self._done[part, stage] += 1
        if kind == "I":
            self._waiting.append(stage)
        elif kind == "W":
            self._waiting.remove(stage)


def _passes(kind: Kind, stage: int, microbatches: Iterable[int]) -> Iterator[Operation]:
    return (Operation(kind, stage, microbatch) for microbatch in microbatches)


def _rounds(kind: Kind, shape: Shape, rank: int) -> Iterator[Operation]:
    """Yield the order in which each round of microbatches goes through the rank's stages, forward or backward, before the next."""
    stages = range(rank, shape.stages, shape.ranks)
    for first in range(0, shape.microbatches, shape.in_round):
        for stage in stages if kind == "F" else reversed(stages):
            yield from _passes(kind, stage, range(first, min(first + shape.in_round, shape.microbatches)))


def _alternating(forwards: Order, backwards: Order, warm_up: int) -> Order:
    """`warm_up` forwards, then one forward and one backward, then the backwards that are left."""
    pairs = zip_longest(forwards[warm_up:], backwards)
    return forwards[:warm_up] + [operation for pair in pairs for operation in pair if operation is not None]


def _with_weight_gradients(order: Order, delay: int) -> Iterator[Operation]:
    """Yield after each input gradient the oldest weight gradient, once `delay` wait; those that wait at the end come last."""
    waiting: deque[Operation] = deque()
    for operation in order:
        yield operation
        if operation.kind == "I":
            waiting.append(operation._replace(kind="W"))
            if len(waiting) > delay:
                yield waiting.popleft()
    yield from waiting


_KINDS: dict[str, Kind] = {kind: kind for kind in get_args(Kind)}

_ONE_STAGE = ("GPipe", "1F1B", "ZBH1")
_FOLDED = ("ZBVZeroBubble", "DualPipeV")
_IN_ROUNDS = ("Interleaved1F1B", "InterleavedZeroBubble")

# ZBH1 is ZB-H1 of arXiv 2401.10241: InterleavedZeroBubble of one stage a rank.
_ORDERS: dict[str, Callable[[Shape, int], Order]] = {
    "GPipe": _gpipe,
    "1F1B": _one_forward_one_backward,
    "Interleaved1F1B": _interleaved,
    "LoopedBFS": _looped_breadth_first,
    "InterleavedZeroBubble": _interleaved_zero_bubble,
    "ZBVZeroBubble": _zero_bubble_v,
    "DualPipeV": _dual_pipe_v,
    "ZBH1": _interleaved_zero_bubble,
}
