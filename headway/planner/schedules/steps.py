"""Orders the operations of all ranks so that each can run, as arrays that a simulation walks once."""

from array import array
from collections import Counter
from collections.abc import Sequence
from functools import cached_property

from msgspec import Struct, field

from headway.planner.schedules.operation import Kind, Operation
from headway.planner.schedules.orders import Order

# What a step can be, each for every stage. A paired forward and backward run together; the gate before them waits for the backward's input.
SLOTS = ("F", "I", "W", "B", "paired F", "paired B", "gate")
_SLOT_OF: dict[Kind, int] = {"F": 0, "I": 1, "W": 2, "B": 3}
_PAIRED_F, _PAIRED_B, _GATE = 4, 5, 6

_NOT_MADE = -1
# The last place of what is made.
_ALWAYS_THERE = -1


class DeadlockError(ValueError):
    """Ranks wait for each other, or for something that no rank does."""


class Steps(Struct, frozen=True, dict=True):
    """Of each step its rank, the number of the step that makes what it receives, and its slot: index in SLOTS x stages + stage.

    Steps count from 1, and the first is at index 0; a step that receives nothing has input 0. A step comes after all that it needs.
    """

    ranks: "array[int]" = field(default_factory=lambda: array("i"))
    inputs: "array[int]" = field(default_factory=lambda: array("i"))
    slots: "array[int]" = field(default_factory=lambda: array("i"))

    def append(self, rank: int, received: int, slot: int) -> int:
        """Add a step; return its number."""
        self.ranks.append(rank)
        self.inputs.append(received)
        self.slots.append(slot)
        return len(self.ranks)

    @cached_property
    def passes(self) -> dict[int, int]:
        """How many steps each slot has."""
        return Counter(self.slots)


def steps_of(orders: Sequence[Order], stages: int, microbatches: int) -> Steps:
    """Run the ranks' orders without a clock. Raises DeadlockError where they cannot end."""
    execution = _Execution(orders, stages, microbatches)
    execution.run()
    return execution.steps


class _Execution:
    """Each rank runs until its input is missing; the rank that makes it wakes it."""

    def __init__(self, orders: Sequence[Order], stages: int, microbatches: int) -> None:
        self.steps = Steps()
        self._orders, self._stages, self._microbatches = orders, stages, microbatches
        self._next = [0] * len(orders)
        self._runnable = list(range(len(orders)))
        self._waiting: dict[int, int] = {}
        # The step that made each stage's output of each microbatch, then those of its input gradients; last, what is
        # always there.
        self._made = [_NOT_MADE] * (2 * stages * microbatches) + [0]

    def run(self) -> None:
        """Run until every rank is at its end."""
        while self._runnable:
            self._run(self._runnable.pop())
        for rank, order in enumerate(self._orders):
            if self._next[rank] < len(order):
                raise DeadlockError(f"rank {rank} waits forever before {order[self._next[rank]]}")

    def _run(self, rank: int) -> None:
        """Run the rank as far as possible."""
        order, at = self._orders[rank], self._next[rank]
        while at < len(order):
            pair = order[at].overlapped
            ran = self._run_pair(rank, order[at], order[at + 1]) if pair else self._run_single(rank, order[at])
            if not ran:
                break
            at += 2 if pair else 1
        self._next[rank] = at

    def _run_single(self, rank: int, operation: Operation) -> bool:
        """Return whether the rank could continue."""
        received = self._received(rank, operation)
        if received == _NOT_MADE:
            return False
        step = self.steps.append(rank, received, _SLOT_OF[operation.kind] * self._stages + operation.stage)
        self._make(operation, step)
        return True

    def _run_pair(self, rank: int, forward: Operation, backward: Operation) -> bool:
        """Return whether the rank could continue. The outputs of both exist when both have ended."""
        before, received = self._received(rank, backward), self._received(rank, forward)
        if _NOT_MADE in (before, received):
            return False
        self.steps.append(rank, before, _GATE * self._stages + backward.stage)
        self.steps.append(rank, received, _PAIRED_F * self._stages + forward.stage)
        last = self.steps.append(rank, 0, _PAIRED_B * self._stages + backward.stage)
        self._make(forward, last)
        self._make(backward, last)
        return True

    def _received(self, rank: int, operation: Operation) -> int:
        """Return the step that made what the operation receives, and 0 where it receives nothing; the rank waits where
        anything is missing."""
        made = self._made
        for needed in self._needs(operation):
            if made[needed] == _NOT_MADE:
                self._waiting[needed] = rank
                return _NOT_MADE
        return made[needed]

    def _needs(self, operation: Operation) -> tuple[int, ...]:
        """Return the places of what the stage itself must have made, and last of what it receives from another."""
        kind, stage, microbatch, _ = operation
        output = stage * self._microbatches + microbatch
        if kind == "F":
            return (output - self._microbatches if stage else _ALWAYS_THERE,)
        gradient = output + self._stages * self._microbatches
        if kind == "W":
            return gradient, _ALWAYS_THERE
        return output, (gradient + self._microbatches if stage < self._stages - 1 else _ALWAYS_THERE)

    def _make(self, operation: Operation, step: int) -> None:
        kind, stage, microbatch, _ = operation
        if kind == "W":
            return
        made = (stage if kind == "F" else stage + self._stages) * self._microbatches + microbatch
        self._made[made] = step
        if made in self._waiting:
            self._runnable.append(self._waiting.pop(made))
