"""Computes checkpoint intervals: published optima as formulas, and the best interval of a run with several tiers by search."""

import math
from collections.abc import Callable

from msgspec import Struct
from msgspec.structs import replace

from headway.planner.goodput.run import Scope, SimulatedRun, SimulatedTier

_GOLDEN = (math.sqrt(5) - 1) / 2
_PRECISION = 1e-4
_GRID = 64


def young(mtbf_s: float, block_s: float) -> float:
    """Return seconds of work between two checkpoints, first order: sqrt(2 M C), for failures M apart and saves that
    block for C.

    Young 1974, https://doi.org/10.1145/361147.361115
    """
    return math.sqrt(2 * mtbf_s * block_s)


def daly(mtbf_s: float, block_s: float) -> float:
    """Return seconds of work between two checkpoints, higher order: sqrt(2 M C) (1 + sqrt(C/2M)/3 + (C/2M)/9) - C; M
    where C >= 2 M.

    Daly 2006, https://doi.org/10.1016/j.future.2004.11.016
    """
    if block_s >= 2 * mtbf_s:
        return mtbf_s
    x = block_s / (2 * mtbf_s)
    return young(mtbf_s, block_s) * (1 + math.sqrt(x) / 3 + x / 9) - block_s


def availability_period(mtbf_s: float, block_s: float, recovery_s: float) -> float:
    """Return seconds from one checkpoint to the next, the save with it: C + sqrt(2 (M + R) C + C^2), with recoveries of
    R.

    Saxena et al. 2024, https://arxiv.org/abs/2410.18124. It counts no failures during recovery, so it holds where R is
    far below M.
    """
    return block_s + math.sqrt(2 * (mtbf_s + recovery_s) * block_s + block_s**2)


def expected_ettr(failures_s: float, restart_s: float, interval_s: float, block_s: float) -> float:
    """Effective training time ratio, first order: (1 - f (u0 + dt/2)) / (1 + w/dt) for f failures a second.

    Kokolis et al., HPCA 2025, https://arxiv.org/abs/2410.21680. It holds while few of the intervals see a failure.
    """
    return (1 - failures_s * (restart_s + interval_s / 2)) / (1 + block_s / interval_s)


def expected_goodput(run: SimulatedRun) -> float:
    """Return the share of time that is training that counts, without a simulation and without waiting for nodes.

    Daly's complete model, 1 / (e^(fD) (e^(f (T + C)) - 1) / (f T)): exact for one tier and memoryless failures f. With
    several tiers the failures that each of them answers give one such factor each, which is exact to first order. A
    replica that continues without the others costs its stall, and its share of the work while it is unavailable.
    """
    share = sum(tier.block_s / tier.spacing_s for tier in run.tiers)
    goodput = 1 / (1 + share)
    rates = {scope: rate for scope, rate in run.rates().items() if rate > 0}
    if run.replicas is not None:
        goodput *= _without_replicas(run, rates.pop(Scope.NODE, 0.0) + rates.pop(Scope.PROCESS, 0.0))
    answers = [_answer(run, scope, rate, share) for scope, rate in rates.items()]
    goodput *= math.exp(-sum(answer.rate * answer.down_s for answer in answers))
    for period_s in {answer.period_s for answer in answers}:
        exponent = period_s * sum(answer.rate for answer in answers if answer.period_s == period_s)
        goodput *= exponent / math.expm1(exponent) if exponent < 700 else 0.0
    return goodput


def best_interval(run: SimulatedRun, tier: str) -> float:
    """Return seconds of training between two checkpoints of this tier at which the expected goodput is highest; the
    other tiers stay.

    At least a step, and the time to write one; at most the run's length. Raises KeyError when the run has no such tier.
    """
    chosen = run.tier(tier)
    low = max(run.step_s, chosen.write_s - chosen.block_s)
    high = max(low, run.length_s)
    best = math.exp(_maximum(lambda x: expected_goodput(with_interval(run, tier, math.exp(x))), math.log(low), math.log(high)))
    return high if math.isclose(best, high) else best


def with_interval(run: SimulatedRun, kind: str, interval_s: float) -> SimulatedRun:
    """Return the run with this interval of this tier."""
    return replace(run, tiers=tuple(replace(tier, interval_s=interval_s) if tier.kind == kind else tier for tier in run.tiers))


class _Answer(Struct, frozen=True):
    """The cost of failures of one scope: how often they come, how long the job is down, and the period of the tier that
    it goes back to."""

    rate: float
    down_s: float
    period_s: float


def _answer(run: SimulatedRun, scope: Scope, rate: float, share: float) -> _Answer:
    """Return the answer of the tier that loses the least on average; without any, all of the run's work is lost."""
    stopped_s = _detect_s(run, scope) + _restart_s(run, scope)
    costs = [(_period_s(tier, share) / 2 + tier.write_s + tier.load_s, tier) for tier in run.tiers if scope in tier.survives]
    if not costs:
        return _Answer(rate, stopped_s, run.length_s)
    tier = min(costs, key=lambda cost: cost[0])[1]
    return _Answer(rate, stopped_s + tier.load_s + tier.write_s, _period_s(tier, share))


def _period_s(tier: SimulatedTier, share: float) -> float:
    return tier.spacing_s * (1 + share)


def _detect_s(run: SimulatedRun, scope: Scope) -> float:
    """Return the mean time until a failure of the scope is noticed, with the training that was wrong before that."""
    failures = run.failures
    if scope in {Scope.RACK, Scope.JOB}:
        return failures.detect_s
    weights = [
        (cause.weight * (cause.replaced if scope is Scope.NODE else 1 - cause.replaced), cause) for cause in failures.causes
    ]
    total = sum(weight for weight, _ in weights)
    return sum(weight * (cause.detect_s + cause.latent_s) for weight, cause in weights) / total if total else 0.0


def _restart_s(run: SimulatedRun, scope: Scope) -> float:
    recovery = run.recovery
    if scope in {Scope.NODE, Scope.RACK} and not run.spares:
        return recovery.provision_s + recovery.cold_s
    return recovery.warm_s


def _without_replicas(run: SimulatedRun, rate: float) -> float:
    if run.replicas is None:
        return 1.0
    away_s = run.replicas.rejoin_s + run.failures.replaced * (0 if run.spares else run.recovery.provision_s)
    return math.exp(-rate * run.replicas.stall_s) * max(0.0, 1 - rate * away_s / run.replicas.count)


def _maximum(value: Callable[[float], float], low: float, high: float) -> float:
    """Return where a function has its highest value: the best of a grid, refined between its neighbours (golden-section
    search), or an end.

    Beyond some interval another tier answers failures and goodput stays the same, so there may be more than one
    maximum.
    """
    ends, step = (low, high), (high - low) / _GRID
    best = max((low + number * step for number in range(_GRID + 1)), key=value)
    low, high = max(low, best - step), min(high, best + step)
    first, second = high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)
    at_first, at_second = value(first), value(second)
    while high - low > _PRECISION:
        if at_first >= at_second:
            high, second, at_second = second, first, at_first
            first = high - _GOLDEN * (high - low)
            at_first = value(first)
        else:
            low, first, at_first = first, second, at_second
            second = low + _GOLDEN * (high - low)
            at_second = value(second)
    return max((low + high) / 2, *ends, key=value)
