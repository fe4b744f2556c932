"""Times a pipeline schedule, given the times of its stages."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from msgspec import Struct

from headway.planner.schedules.operation import Operation
from headway.planner.schedules.schedule import Schedule
from headway.planner.schedules.steps import SLOTS


class Times(Struct, frozen=True):
    """Seconds of one microbatch: of each stage its forward, input gradient and weight gradient; a full backward is the latter two.

    `transfer[s]` is the time from stage s to stage s + 1 and back, where they are on different ranks. It delays who receives; with
    `exposed` the receiver also computes nothing meanwhile, as under 1F1B in Megatron-LM, which receives between passes (its
    forward_backward_pipelining_without_interleaving refuses overlap_p2p_comm). `hidden[s]` is what stage s saves where its forward runs
    together with a backward (DualPipeV).
    """

    forward: Sequence[float]
    input_gradient: Sequence[float]
    weight_gradient: Sequence[float]
    transfer: Sequence[float] = ()
    exposed: bool = False
    hidden: Sequence[float] = ()


class ScheduleSpan(NamedTuple):
    """An operation with its start and end, in seconds from the start of the step."""

    rank: int
    operation: Operation
    start: float
    end: float


class Timeline(Struct, frozen=True):
    """`finish` and `busy` are of each rank, in seconds: when its last operation ends, and how long it computes."""

    finish: tuple[float, ...]
    busy: tuple[float, ...]

    @property
    def makespan(self) -> float:
        """Seconds until the last rank ends."""
        return max(self.finish)

    @property
    def bubble(self) -> float:
        """The share of all ranks' time until the last one ends in which nothing is computed."""
        return 1 - sum(self.busy) / (len(self.busy) * self.makespan)


def run(schedule: Schedule, times: Times) -> Timeline:
    """Run every operation as early as its rank and its input allow.

    Raises ValueError where `times` are not of the schedule's stages.
    """
    costs, finish = _costs(schedule, times), [0.0] * schedule.shape.ranks
    _ends(schedule, times, costs, finish)
    return Timeline(tuple(finish), _busy(schedule, costs))


def spans(schedule: Schedule, times: Times) -> Iterator[ScheduleSpan]:
    """Yield what `run` times, operation by operation: after all that it needs, and each rank's in order."""
    costs = _costs(schedule, times)
    ends = _ends(schedule, times, costs, [0.0] * schedule.shape.ranks)
    operations = [schedule.operations(rank) for rank in range(schedule.shape.ranks)]
    gate = SLOTS.index("gate") * schedule.shape.stages
    for rank, slot, end in zip(schedule.steps.ranks, schedule.steps.slots, ends[1:], strict=True):
        if slot < gate:
            yield ScheduleSpan(rank, next(operations[rank]), end - costs[slot], end)


def _ends(schedule: Schedule, times: Times, costs: Sequence[float], clocks: list[float]) -> list[float]:
    """When each step ends, by its number; `clocks` are then at each rank's last end."""
    transfers = _transfers(schedule, times)
    delays, pauses = ([0.0] * len(costs), transfers) if times.exposed else (transfers, [0.0] * len(costs))
    ends = [0.0]
    append = ends.append
    steps = schedule.steps
    for rank, received, slot in zip(steps.ranks, steps.inputs, steps.slots, strict=True):
        arrival, free = ends[received] + delays[slot], clocks[rank]
        clocks[rank] = end = (arrival if arrival > free else free) + pauses[slot] + costs[slot]
        append(end)
    return ends


def _costs(schedule: Schedule, times: Times) -> list[float]:
    """Return what each slot takes."""
    stages = schedule.shape.stages
    hidden = times.hidden or [0.0] * stages
    given = [len(part) for part in (times.forward, times.input_gradient, times.weight_gradient, hidden)]
    if given != [stages] * 4 or len(times.transfer) not in (0, stages - 1):
        raise ValueError(f"times of {given} stages and {len(times.transfer)} transfers were given, and there are {stages} stages")
    full = [i + w for i, w in zip(times.input_gradient, times.weight_gradient, strict=True)]
    paired = [forward - saved for forward, saved in zip(times.forward, hidden, strict=True)]
    return [*times.forward, *times.input_gradient, *times.weight_gradient, *full, *paired, *full, *([0.0] * stages)]


def _transfers(schedule: Schedule, times: Times) -> list[float]:
    """Return how long what each slot receives is under way; a paired backward's is received at the gate before it."""
    none = [0.0] * schedule.shape.stages
    between = list(times.transfer) or none[1:]
    for stage, (sender, receiver) in enumerate(zip(schedule.rank_of, schedule.rank_of[1:], strict=False)):
        between[stage] *= sender != receiver
    down, up = [0.0, *between], [*between, 0.0]
    return [*down, *up, *none, *up, *down, *none, *up]


def _busy(schedule: Schedule, costs: Sequence[float]) -> tuple[float, ...]:
    busy = [0.0] * schedule.shape.ranks
    for slot, passes in schedule.steps.passes.items():
        busy[schedule.rank_of[slot % schedule.shape.stages]] += passes * costs[slot]
    return tuple(busy)
