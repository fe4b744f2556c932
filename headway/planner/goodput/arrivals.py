"""Draws the failures of a run over time from one random generator: of single nodes, of racks, and of the whole job."""

import heapq
import math
from collections.abc import Sequence
from itertools import accumulate
from random import Random
from typing import Protocol

from msgspec import Struct

from headway.planner.goodput.run import FailureCause, FailureModel, Scope, SimulatedRun


class FailureArrival(Struct, frozen=True):
    """A failure at `time_s`. `slots` are the places of the job whose nodes have failed: one, a rack's, or none when the job failed."""

    time_s: float
    scope: Scope
    cause: FailureCause
    slots: range


class Slots(Protocol):
    """Which node is where, as far as failures depend on it."""

    def node_in(self, slot: int, time_s: float) -> int | None:
        """Return the node in the slot; None while it is empty."""

    def slot_of(self, node: int, time_s: float) -> int | None:
        """Return the slot that the node is in; None while it is in none."""


class _Stream(Protocol):
    @property
    def next_s(self) -> float: ...

    def take(self) -> FailureArrival | None:
        """Return the failure at `next_s`; None where it would have hit an empty slot."""


class Arrivals:
    """The next failure, and the one after it, without end. The cost is that of the failures: nodes that never fail cost nothing."""

    def __init__(self, run: SimulatedRun, slots: Slots, random: Random) -> None:
        failures = run.failures
        self._nodes = _Memoryless(run, slots, random) if failures.shape == 1 else _Ageing(run, random)
        self._streams: list[_Stream] = [self._nodes]
        if failures.rack_mtbf_s is not None:
            self._streams.append(_Racks(run, failures.rack_mtbf_s, random))
        if failures.job_mtbf_s is not None:
            self._streams.append(_Jobs(failures, failures.job_mtbf_s, random))

    def next(self) -> FailureArrival:
        """Return the next failure in time."""
        while True:
            failure = min(self._streams, key=lambda stream: stream.next_s).take()
            if failure is not None:
                return failure

    def replaced(self, slot: int, now_s: float, filled_s: float) -> None:
        """Record that the node in the slot was removed, and from `filled_s` on a new or repaired one is there."""
        if isinstance(self._nodes, _Ageing):
            self._nodes.replaced(slot, now_s, filled_s)


class _Blame:
    """Draws the cause of a node's failure, and whether the node has to be replaced."""

    def __init__(self, causes: Sequence[FailureCause], random: Random) -> None:
        self._causes, self._random = causes, random
        self._weights = list(accumulate(cause.weight for cause in causes))

    def failure(self, time_s: float, slot: int) -> FailureArrival:
        cause = self._random.choices(self._causes, cum_weights=self._weights)[0]
        scope = Scope.NODE if self._random.random() < cause.replaced else Scope.PROCESS
        return FailureArrival(time_s, scope, cause, range(slot, slot + 1))


class _Racks:
    def __init__(self, run: SimulatedRun, mtbf_s: float, random: Random) -> None:
        self._run, self._random = run, random
        self._rate = run.racks / mtbf_s
        self._cause = FailureCause("rack", 1, 1, run.failures.detect_s)
        self.next_s = random.expovariate(self._rate)

    def take(self) -> FailureArrival:
        size = self._run.failures.rack_nodes
        first = self._random.randrange(self._run.racks) * size
        failure = FailureArrival(self.next_s, Scope.RACK, self._cause, range(first, min(first + size, self._run.nodes)))
        self.next_s += self._random.expovariate(self._rate)
        return failure


class _Jobs:
    def __init__(self, failures: FailureModel, mtbf_s: float, random: Random) -> None:
        self._random, self._rate = random, 1 / mtbf_s
        self._cause = FailureCause("job", 1, 0, failures.detect_s)
        self.next_s = random.expovariate(self._rate)

    def take(self) -> FailureArrival:
        failure = FailureArrival(self.next_s, Scope.JOB, self._cause, range(0))
        self.next_s += self._random.expovariate(self._rate)
        return failure


class _Memoryless:
    """Exponential times. Lemons are the nodes of the lowest numbers; they and the others fail as two streams.

    A failure of an empty slot, or of a node of the other stream, is dropped (thinning), so that the rates are those of the nodes at work.
    """

    def __init__(self, run: SimulatedRun, slots: Slots, random: Random) -> None:
        self._nodes, self._slots, self._random = run.nodes, slots, random
        self._blame = _Blame(run.failures.causes, random)
        factor = run.failures.lemon_factor
        self._lemons = round(run.failures.lemons * run.nodes)
        good = run.nodes / (run.failures.node_mtbf_s * (run.nodes - self._lemons + self._lemons * factor))
        self._good_rate = run.nodes * good
        self._rate = self._good_rate + self._lemons * good * factor
        self.next_s = random.expovariate(self._rate)

    def take(self) -> FailureArrival | None:
        time_s = self.next_s
        self.next_s += self._random.expovariate(self._rate)
        slot = self._lemon(time_s) if self._random.random() * self._rate >= self._good_rate else self._good(time_s)
        return None if slot is None else self._blame.failure(time_s, slot)

    def _lemon(self, time_s: float) -> int | None:
        return self._slots.slot_of(self._random.randrange(self._lemons), time_s)

    def _good(self, time_s: float) -> int | None:
        slot = self._random.randrange(self._nodes)
        node = self._slots.node_in(slot, time_s)
        return None if node is None or node < self._lemons else slot


class _Ageing:
    """Weibull times: the cumulative hazard of a node of age t is (t / scale) ** shape. A replacement is of age 0.

    Nodes that have not failed yet are one stream: the smallest of n equal hazards is an exponential time over n (order statistics), so
    that only nodes that fail are ever looked at. A node that only starts its processes again keeps its age.
    """

    def __init__(self, run: SimulatedRun, random: Random) -> None:
        failures = run.failures
        self._nodes, self._random = run.nodes, random
        self._blame = _Blame(failures.causes, random)
        self._shape, self._age_s = failures.shape, failures.age_s
        self._scale_s = failures.node_mtbf_s / math.gamma(1 + 1 / failures.shape)
        self._born: dict[int, float] = {}
        # Times of slots that failed before, each with the time at which its node was new: an entry of an earlier node is stale.
        self._coming: list[tuple[float, int, float]] = []
        self._hazard = self._hazard_at(self._age_s)
        self._untouched_s = self._draw_untouched()

    @property
    def next_s(self) -> float:
        while self._coming and self._born[self._coming[0][1]] != self._coming[0][2]:
            heapq.heappop(self._coming)
        return min(self._untouched_s, self._coming[0][0]) if self._coming else self._untouched_s

    def take(self) -> FailureArrival:
        time_s = self.next_s
        if time_s == self._untouched_s:
            slot = self._untouched_slot()
            self._born[slot] = -self._age_s
            self._untouched_s = self._draw_untouched()
        else:
            slot = heapq.heappop(self._coming)[1]
        self._draw(slot, time_s)
        return self._blame.failure(time_s, slot)

    def replaced(self, slot: int, now_s: float, filled_s: float) -> None:
        """Record that another node is in the slot from `filled_s` on."""
        untouched = slot not in self._born
        self._born[slot] = filled_s
        self._draw(slot, filled_s)
        if untouched:
            self._hazard = self._hazard_at(now_s + self._age_s)
            self._untouched_s = self._draw_untouched()

    def _draw(self, slot: int, now_s: float) -> None:
        """The slot's next failure after `now_s`, at the age that its node has by then."""
        born = self._born[slot]
        hazard = self._hazard_at(now_s - born) + self._random.expovariate(1.0)
        heapq.heappush(self._coming, (born + self._age_at(hazard), slot, born))

    def _draw_untouched(self) -> float:
        left = self._nodes - len(self._born)
        if not left:
            return math.inf
        self._hazard += self._random.expovariate(left)
        return self._age_at(self._hazard) - self._age_s

    def _untouched_slot(self) -> int:
        while (slot := self._random.randrange(self._nodes)) in self._born:
            pass
        return slot

    def _hazard_at(self, age_s: float) -> float:
        return float((age_s / self._scale_s) ** self._shape)

    def _age_at(self, hazard: float) -> float:
        return float(self._scale_s * hazard ** (1 / self._shape))
