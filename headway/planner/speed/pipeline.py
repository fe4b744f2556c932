"""Computes the length of a pipelined step by running its schedule over the times of its stages, as far as necessary."""

from functools import lru_cache

from headway.planner.schedules.orders import is_folded
from headway.planner.schedules.schedule import make_schedule
from headway.planner.schedules.timeline import Times, run

Passes = tuple[tuple[float, ...], tuple[float, ...], tuple[float, ...]]
"""Of each stage the seconds of a forward pass, of an input gradient, of a weight gradient."""


def ranks_of_stages(schedule: str, ranks: int, chunks: int) -> tuple[int, ...]:
    """Return the rank that holds each stage."""
    there = tuple(range(ranks))
    return (*there, *reversed(there)) if is_folded(schedule) else there * chunks


@lru_cache(maxsize=4096)
def makespan(
    schedule: str, ranks: int, chunks: int, count: int, passes: Passes, transfer: float
) -> tuple[float, tuple[float, ...]]:
    """When the last of `count` microbatches is through, and how long each rank computes, in seconds. Raises ScheduleError.

    Once the pipeline is full, every `ranks` microbatches take the same time: what is beyond that need not be run. With several unequal
    stages a rank that takes some rounds.
    """
    rounds = 3 if chunks == 1 else 6
    run_through = count if count <= (rounds + 1) * ranks or count % ranks else rounds * ranks
    busy = [0.0] * ranks
    for stage, rank in enumerate(ranks_of_stages(schedule, ranks, chunks)):
        busy[rank] += count * sum(part[stage] for part in passes)
    end = _end(schedule, ranks, chunks, run_through, passes, transfer)
    if run_through < count:
        before = _end(schedule, ranks, chunks, run_through - ranks, passes, transfer)
        end += max(end - before, max(busy) * ranks / count) * (count - run_through) / ranks
    return end, tuple(busy)


def _end(schedule: str, ranks: int, chunks: int, count: int, passes: Passes, transfer: float) -> float:
    between = (transfer,) * (ranks * chunks - 1)
    return run(
        make_schedule(schedule, ranks, count, chunks), Times(passes[0], passes[1], passes[2], between, exposed=True)
    ).makespan
