"""Wraps hang detectors in one interface: headway's, and timeouts on the time between a rank's steps."""

import math
from collections.abc import Mapping
from typing import Protocol

from headway.runner.contract import DEFAULT_TIMEOUTS, Timeout
from headway.runner.health.watch import Probe, RankBeat, Watch


class Detector(Protocol):
    """Sees what a coordinator sees, in any clock."""

    def beat(self, ranks: Mapping[int, RankBeat], now_s: float) -> None: ...

    def probed(self, ranks: Mapping[int, Probe], now_s: float) -> None: ...

    def tick(self, now_s: float) -> tuple[frozenset[int], tuple[int, ...] | None]:
        """Return the ranks to probe now; and the ranks that it would end the job for, which may be none by name, or None."""


class Ours:
    """headway's watch, as the coordinator has it; `busy_s` in place of the default for ranks that use CPU."""

    def __init__(self, ranks: int, now_s: float, busy_s: float = DEFAULT_TIMEOUTS["busy"].floor_s) -> None:
        self._watch = Watch(ranks, {**DEFAULT_TIMEOUTS, "busy": Timeout(busy_s)}, now_s)
        self.beat, self.probed = self._watch.beat, self._watch.probed
        self.stragglers = 0

    def tick(self, now_s: float) -> tuple[frozenset[int], tuple[int, ...] | None]:
        findings = self._watch.tick(now_s)
        self.stragglers += len(findings.stragglers)
        return findings.probe, None if findings.hang is None else findings.hang.ranks


class StepTimeout:
    """A job is hung when a rank has not completed a step for `timeout_s`. All ranks that are late are named."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        # By rank: step, and when it was first seen.
        self._steps: dict[int, tuple[int, float]] = {}

    def beat(self, ranks: Mapping[int, RankBeat], now_s: float) -> None:
        for rank, beat in ranks.items():
            if rank not in self._steps or beat.step != self._steps[rank][0]:
                self._steps[rank] = beat.step, now_s

    def probed(self, ranks: Mapping[int, Probe], now_s: float) -> None:
        pass

    def tick(self, now_s: float) -> tuple[frozenset[int], tuple[int, ...] | None]:
        if now_s - min((seen_s for _, seen_s in self._steps.values()), default=math.inf) <= self._timeout_s:
            return frozenset(), None
        return frozenset(), tuple(rank for rank, (_, seen_s) in self._steps.items() if now_s - seen_s > self._timeout_s)


class LearnedTimeout(StepTimeout):
    """`FACTOR` times the longest time between two steps in the first WARM_UP_S, during which it names no rank.

    NVRx calculates its timeouts so, with this `safety_factor` as its default (nvidia_resiliency_ext/fault_tolerance, config.py and
    timeouts_calc.py).
    """

    FACTOR, WARM_UP_S = 5.0, 10.0

    def __init__(self, now_s: float) -> None:
        super().__init__(math.inf)
        self._until_s, self._longest_s = now_s + self.WARM_UP_S, 0.0

    def beat(self, ranks: Mapping[int, RankBeat], now_s: float) -> None:
        if now_s <= self._until_s:
            for rank, beat in ranks.items():
                step, seen_s = self._steps.get(rank, (beat.step, now_s))
                self._longest_s = max(self._longest_s, (now_s - seen_s) / max(beat.step - step, 1))
        elif self._timeout_s == math.inf:
            self._timeout_s = self.FACTOR * self._longest_s
        super().beat(ranks, now_s)
