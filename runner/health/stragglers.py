"""Finds slow ranks by the time that each spends on its own work, relative to the median, over several windows.

A step takes as long as its slowest rank, so step times are the same for all; the time outside of waits for others is
not. Ranks are compared with ranks of their own pipeline stage. A rank is named when SLOW_WINDOWS of its last WINDOWS
were slow and their median is far beyond the variation of its ratio from window to window: neither pauses nor jitter
with long tails cause that, nor what slows all ranks equally.
"""

import bisect
import math
import statistics
from dataclasses import dataclass

WINDOWS, SLOW_WINDOWS = 16, 14
RATIO = 1.05
# Iglewicz and Hoaglin, How to Detect and Handle Outliers, 1993: what is beyond it is an outlier.
ROBUST_Z = 3.5
# Standard errors of the windows' median.
_SURE = 5.0
# Of a normal distribution: its standard deviation over its median absolute deviation.
_TO_SIGMA = 1.4826
# Of a normal distribution: the standard error of a sample's median over that of its mean, sqrt(pi / 2).
_OF_MEDIAN = 1.2533
# Ranks; with fewer the deviation itself is a guess.
_ENOUGH_FOR_SPREAD = 8
WINDOW_S = 5.0
# A heartbeat comes in the middle of a step, so a window's ends are wrong by up to a step each: 3 % of so many steps at
# the most.
STEPS_A_WINDOW = 32
# Per step; a smaller loss is not worth a node.
_WORTH_S = 1e-3

# Window and pipeline stage.
_Key = tuple[int, int]


@dataclass(frozen=True)
class Straggler:
    """A rank whose own time per step has been `ratio` times the others' median over the last windows."""

    rank: int
    ratio: float
    own_step_s: float


@dataclass(slots=True)
class _Rank:
    """`begun` and `next` are windows, `next` the first that was not looked at; `last` is the previous window's time per
    step, which is compared when all have closed it."""

    begun: int
    next: int
    step: int
    own_s: float
    odd: bool = False
    last: tuple[_Key, float] | None = None
    # Of the last windows.
    ratios: tuple[float, ...] = ()
    # Whether they were slow.
    slow: tuple[bool, ...] = ()
    named: bool = False


class Stragglers:
    """Finds slow ranks of one generation of `ranks` ranks in `stages` pipeline stages, stages outermost."""

    def __init__(self, ranks: int, stages: int = 1) -> None:
        self._of_stage = max(ranks // stages, 1)
        self._ranks: dict[int, _Rank] = {}
        self._times: dict[_Key, list[float]] = {}
        self._middles: dict[_Key, tuple[float, float]] = {}
        self._found: list[Straggler] = []

    def saw(self, rank: int, step: int, own_s: float, now_s: float, *, training: bool) -> None:
        """Record that the rank has completed `step` steps and spent `own_s` outside of waits.

        A window with other work than `training` does not count: one rank may well evaluate or save for all.
        """
        each = self._ranks.get(rank)
        if each is None:
            window = int(now_s / WINDOW_S)
            # Its first window begins in the middle of one.
            self._ranks[rank] = _Rank(window, window + 1, step, own_s, odd=True)
            return
        if not training:
            each.odd = True
        if now_s < each.next * WINDOW_S:
            return
        window = int(now_s / WINDOW_S)
        each.next = window + 1
        if step - each.step < STEPS_A_WINDOW:
            return
        if not each.odd:
            self._close(rank, each, (own_s - each.own_s) / (step - each.step))
        each.begun, each.step, each.own_s, each.odd = window, step, own_s, not training

    def found(self) -> tuple[Straggler, ...]:
        """Return those found since the last call; a rank is named again only after it was not slow in between."""
        found, self._found = tuple(self._found), []
        return found

    def _close(self, rank: int, each: _Rank, own_step_s: float) -> None:
        if each.last is not None:
            self._compare(rank, each, *each.last)
        key = (each.begun, rank // self._of_stage)
        if key not in self._times:
            self._keep_newest(each.begun)
        self._times.setdefault(key, []).append(own_step_s)
        each.last = (key, own_step_s)

    def _compare(self, rank: int, each: _Rank, key: _Key, own_step_s: float) -> None:
        """Compare the rank's time in a window with the others', which are all known by now."""
        times = self._times.get(key, [])
        if len(times) < 2:
            return
        middle_s, deviation_s = self._middle(key) if len(times) >= _ENOUGH_FOR_SPREAD else (_of_others(times, own_step_s), 0.0)
        if min(middle_s, own_step_s) <= 0:
            return
        worth_s = max((RATIO - 1) * middle_s, ROBUST_Z * _TO_SIGMA * deviation_s, _WORTH_S)
        each.ratios = (*each.ratios, own_step_s / middle_s)[-WINDOWS:]
        each.slow = (*each.slow, own_step_s - middle_s > worth_s)[-WINDOWS:]
        if not any(each.slow):
            each.named = False
        elif not each.named and sum(each.slow) >= SLOW_WINDOWS and _is_steady(each.ratios):
            each.named = True
            self._found.append(Straggler(rank, statistics.median(each.ratios), own_step_s))

    def _middle(self, key: _Key) -> tuple[float, float]:
        """Return median and median absolute deviation of a window."""
        if key not in self._middles:
            times = sorted(self._times[key])
            middle_s = statistics.median(times)
            self._middles[key] = middle_s, statistics.median(abs(each - middle_s) for each in times)
        return self._middles[key]

    def _keep_newest(self, begun: int) -> None:
        """Keep this window and the previous one: a rank is compared when it closes the next one."""
        kept = sorted({begun, *(window for window, _ in self._times)})[-2:]
        self._times = {key: times for key, times in self._times.items() if key[0] in kept}
        self._middles = {key: middle for key, middle in self._middles.items() if key in self._times}


def _of_others(times: list[float], own_step_s: float) -> float:
    """Return the median without one of `own_step_s`."""
    ordered = sorted(times)
    del ordered[bisect.bisect_left(ordered, own_step_s)]
    return statistics.median(ordered)


def _is_steady(ratios: tuple[float, ...]) -> bool:
    """Return whether the ratios exceed 1 by far more than they vary."""
    logs = [math.log(ratio) for ratio in ratios]
    middle = statistics.median(logs)
    sigma = _TO_SIGMA * statistics.median(abs(each - middle) for each in logs)
    return middle > _SURE * _OF_MEDIAN * sigma / math.sqrt(len(logs))
