"""Summarizes many simulated runs of one plan with their spread, and goodput over the checkpoint interval."""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean

from msgspec import Struct

from headway.planner.goodput.interval import best_interval, expected_goodput, with_interval
from headway.planner.goodput.run import SimulatedRun
from headway.planner.goodput.simulate import Outcome, TimeBucket, simulate_each

# Intervals of the table, as multiples of the best one.
_FACTORS = (1 / 8, 1 / 4, 1 / 2, 1 / math.sqrt(2), 1, math.sqrt(2), 2, 4, 8)


class SampleSpread(Struct, frozen=True):
    """The mean over the runs, and between which values nine of ten of them lie."""

    mean: float
    low: float
    high: float


class Summary(Struct, frozen=True):
    """The results of the runs: means and spreads over `runs` seeds, times in seconds.

    `shares` are means of each bucket's share of the time; `failures` and `replaced` count for one run. `of_held` is the
    goodput if the job's spares count as nodes that do nothing. `lost_s` is the total cost of one interruption.
    """

    runs: int
    goodput: SampleSpread
    of_held: float
    wall_s: SampleSpread
    shares: Mapping[TimeBucket, float]
    interruptions: SampleSpread
    failures: Mapping[str, float]
    lost_s: float
    restarts: float
    from_scratch: float
    replaced: SampleSpread
    nodes_used: SampleSpread
    finished: int
    out_of_restarts: int
    gpu_hours: float


def summarize(run: SimulatedRun, outcomes: Sequence[Outcome]) -> Summary:
    """Return the figures of at least one outcome of the run."""
    wall_s = _spread(outcomes, lambda each: each.wall_s)
    goodput, interruptions = _spread(outcomes, lambda each: each.goodput), _spread(outcomes, lambda each: each.interruptions)
    failures: Counter[str] = sum((Counter(each.failures) for each in outcomes), Counter())
    held = run.nodes + run.spares
    return Summary(
        runs=len(outcomes),
        goodput=goodput,
        of_held=goodput.mean * run.nodes / held,
        wall_s=wall_s,
        shares={bucket: fmean(each.buckets[bucket] / each.wall_s for each in outcomes) for bucket in TimeBucket},
        interruptions=interruptions,
        failures={name: count / len(outcomes) for name, count in failures.most_common()},
        lost_s=wall_s.mean * (1 - goodput.mean) / interruptions.mean if interruptions.mean else 0.0,
        restarts=fmean(each.restarts for each in outcomes),
        from_scratch=fmean(each.from_scratch for each in outcomes),
        replaced=_spread(outcomes, lambda each: sum(each.replaced.values())),
        nodes_used=_spread(outcomes, lambda each: each.nodes_used),
        finished=sum(each.finished for each in outcomes),
        out_of_restarts=sum(each.out_of_restarts for each in outcomes),
        gpu_hours=wall_s.mean / 3600 * held * run.gpus_per_node,
    )


class IntervalRow(Struct, frozen=True):
    """Goodput with this interval of one tier: simulated, and by the formula, which ignores waiting for nodes."""

    interval_s: float
    goodput: SampleSpread
    expected: float


def over_interval(run: SimulatedRun, tier: str, seeds: Sequence[int]) -> tuple[IntervalRow, ...]:
    """Goodput over the interval of the tier, from an eighth of the best one to eight times it within the run, and at the run's own."""
    best = best_interval(run, tier)
    intervals = {min(max(run.step_s, factor * best), run.length_s) for factor in _FACTORS} | {run.tier(tier).interval_s}
    return tuple(_row(with_interval(run, tier, interval_s), interval_s, seeds) for interval_s in sorted(intervals))


def _row(run: SimulatedRun, interval_s: float, seeds: Sequence[int]) -> IntervalRow:
    goodput = _spread(simulate_each(run, seeds), lambda outcome: outcome.goodput)
    return IntervalRow(interval_s, goodput, expected_goodput(run))


def _spread(outcomes: Sequence[Outcome], value: Callable[[Outcome], float]) -> SampleSpread:
    values = sorted(value(outcome) for outcome in outcomes)
    last = len(values) - 1
    return SampleSpread(fmean(values), values[round(0.05 * last)], values[round(0.95 * last)])
