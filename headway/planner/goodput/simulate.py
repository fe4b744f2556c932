"""Simulates one run from start to end, failure by failure, and counts where its time goes."""

import math
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from enum import StrEnum
from random import Random

from msgspec import Struct

from headway.planner.goodput.arrivals import Arrivals, FailureArrival
from headway.planner.goodput.nodes import Nodes
from headway.planner.goodput.run import Replicas, RestartBudget, Scope, SimulatedRun
from headway.planner.goodput.saves import Checkpoints, SavePauses

_BISECTIONS = 60


class TimeBucket(StrEnum):
    """Where a second of the run went."""

    PRODUCTIVE = "productive"
    LOST = "work done again"
    SAVE = "waiting for saves"
    DETECT = "detecting failures"
    NODES = "waiting for nodes"
    RESTART = "restarting"
    LOAD = "reading checkpoints"
    STALL = "stalled by a lost replica"
    MISSING = "replicas missing"


class Outcome(Struct, frozen=True):
    """The result of a run. The seconds of `buckets` add up to `wall_s`.

    `finished`: all work was done; else the time was over, or, with `out_of_restarts`, the restart budget.
    `from_scratch` counts restarts that found no checkpoint; `replaced` counts replacements by node, `nodes_used` the
    nodes that computed at some time.
    """

    wall_s: float
    buckets: Mapping[TimeBucket, float]
    failures: Mapping[str, int]
    restarts: int
    from_scratch: int
    replaced: Mapping[int, int]
    nodes_used: int
    finished: bool
    out_of_restarts: bool

    @property
    def goodput(self) -> float:
        """Training that counts as a share of the wall-clock time (effective training time ratio, ETTR)."""
        return self.buckets[TimeBucket.PRODUCTIVE] / self.wall_s

    @property
    def interruptions(self) -> int:
        """Failures of every cause."""
        return sum(self.failures.values())


def simulate(run: SimulatedRun, seed: int = 0) -> Outcome:
    """Return the run as this seed lets it fail; the same seed gives the same outcome."""
    return _Simulation(run, Random(seed)).outcome()


def simulate_each(run: SimulatedRun, seeds: Sequence[int]) -> tuple[Outcome, ...]:
    """Return the run once for each seed."""
    return tuple(simulate(run, seed) for seed in seeds)


class _Simulation:
    """The state between two failures: the clock, the position in training, the remaining recovery, and the replicas
    that are unavailable."""

    def __init__(self, run: SimulatedRun, random: Random) -> None:
        self._run = run
        self._nodes = Nodes(run, random)
        self._arrivals = Arrivals(run, self._nodes, random)
        self._checkpoints, self._pauses = Checkpoints(run), SavePauses(run.tiers)
        self._allowance = _Allowance(run.budget, run.step_s) if run.budget else None
        self._clock_s = 0.0
        self._start = self._position = self._ran_s = 0.0
        self._ahead: deque[tuple[TimeBucket, float]] = deque()
        self._filled_s = 0.0
        self._cold = False
        self._away: dict[int, float] = {}
        self._buckets = dict.fromkeys(TimeBucket, 0.0)
        self._failures: Counter[str] = Counter()
        self._restarts = self._from_scratch = 0
        self._ended = self._finished = self._out_of_restarts = False

    def outcome(self) -> Outcome:
        """Run to the end."""
        while not self._ended:
            failure = self._arrivals.next()
            self._go_on(min(failure.time_s, self._run.limit_s))
            self._ended = self._ended or failure.time_s >= self._run.limit_s
            if not self._ended:
                self._fail(failure)
        return Outcome(
            wall_s=self._clock_s,
            buckets=self._buckets,
            failures=self._failures,
            restarts=self._restarts,
            from_scratch=self._from_scratch,
            replaced=self._nodes.replaced,
            nodes_used=self._nodes.used,
            finished=self._finished,
            out_of_restarts=self._out_of_restarts,
        )

    # --- passing time ----------------------------------------------------------------------------------------------------

    def _go_on(self, until_s: float) -> None:
        """Advance recovery as far as possible, then training, until a time or the end of the work."""
        while self._ahead and self._clock_s < until_s:
            bucket, left_s = self._ahead.popleft()
            spent_s = min(left_s, until_s - self._clock_s)
            self._spend(bucket, spent_s)
            if spent_s < left_s:
                self._ahead.appendleft((bucket, left_s - spent_s))
        if self._clock_s < until_s:
            self._train(until_s - self._clock_s)

    def _train(self, wall_s: float) -> None:
        self._cold = False
        left_s = self._run.work_s - self._buckets[TimeBucket.PRODUCTIVE]
        if self._trained(wall_s)[0] >= left_s:
            wall_s = self._bisected(wall_s, left_s)
            self._finished = self._ended = True
        productive, missing = self._trained(wall_s)
        position = self._pauses.reached(self._start, self._ran_s + wall_s)
        self._spend(TimeBucket.PRODUCTIVE, productive)
        self._spend(TimeBucket.MISSING, missing)
        self._spend(TimeBucket.SAVE, wall_s - productive - missing)
        self._ran_s += wall_s
        self._position = position

    def _trained(self, wall_s: float) -> tuple[float, float]:
        """Return, for so much time from now on, the training that counts, and the training lost to missing replicas."""
        trained_s = self._pauses.reached(self._start, self._ran_s + wall_s) - self._position
        missing = self._missing(self._clock_s, self._clock_s + wall_s)
        return trained_s * (1 - missing), trained_s * missing

    def _bisected(self, wall_s: float, work_s: float) -> float:
        """Return the time, at most `wall_s`, after which so much more work is done."""
        low, high = 0.0, wall_s
        for _ in range(_BISECTIONS):
            middle = (low + high) / 2
            low, high = (low, middle) if self._trained(middle)[0] >= work_s else (middle, high)
        return high

    def _missing(self, start_s: float, end_s: float) -> float:
        """Return the mean share of replicas that are unavailable between two times."""
        if self._run.replicas is None or end_s <= start_s:
            return 0.0
        away_s = sum(max(0.0, min(end_s, back_s) - start_s) for back_s in self._away.values())
        return away_s / (end_s - start_s) / self._run.replicas.count

    def _spend(self, bucket: TimeBucket, seconds: float) -> None:
        self._buckets[bucket] += seconds
        self._clock_s += seconds

    # --- a failure -------------------------------------------------------------------------------------------------------

    def _fail(self, failure: FailureArrival) -> None:
        self._failures[failure.cause.name] += 1
        filled_s = self._replace_nodes(failure)
        self._filled_s = max(self._filled_s, filled_s)
        replicas = self._run.replicas
        if replicas is not None and failure.scope is not Scope.JOB and self._drop(failure, filled_s, replicas):
            return
        self._restart(failure)

    def _replace_nodes(self, failure: FailureArrival) -> float:
        """When every slot that the failure emptied has a node again."""
        if failure.scope not in {Scope.NODE, Scope.RACK}:
            return 0.0
        asked_s = failure.time_s + failure.cause.detect_s
        filled_s = 0.0
        for slot in failure.slots:
            replacement = self._nodes.replace(slot, failure.time_s, asked_s)
            self._arrivals.replaced(slot, failure.time_s, replacement.filled_s)
            filled_s = max(filled_s, replacement.filled_s)
            self._cold = self._cold or not replacement.warm
        return filled_s

    def _drop(self, failure: FailureArrival, filled_s: float, replicas: Replicas) -> bool:
        """Continue without the failed replicas, if enough others are left and the job is not just starting as a whole."""
        hit = {slot * replicas.count // self._run.nodes for slot in failure.slots}
        away = {each: back_s for each, back_s in self._away.items() if back_s > failure.time_s}
        if replicas.count - len(hit | away.keys()) < replicas.least or self._starting:
            return False
        back_s = max(failure.time_s + failure.cause.detect_s, filled_s) + replicas.rejoin_s
        self._away = away | {each: max(back_s, away.get(each, 0.0)) for each in hit}
        if hit <= away.keys():
            return True
        if self._run.recovery.at_once:
            self._ahead.clear()
        self._ahead.append((TimeBucket.STALL, replicas.stall_s))
        self._cold = False
        return True

    @property
    def _starting(self) -> bool:
        return any(bucket is not TimeBucket.STALL for bucket, _ in self._ahead)

    def _restart(self, failure: FailureArrival) -> None:
        if self._allowance is not None and not self._allowance.take(self._position):
            self._ended = self._out_of_restarts = True
            return
        self._restarts += 1
        self._away.clear()
        load_s = self._roll_back(failure)
        if self._run.recovery.at_once:
            self._ahead.clear()
        self._ahead.append((TimeBucket.DETECT, failure.cause.detect_s))
        ready_s = self._clock_s + sum(seconds for _, seconds in self._ahead)
        self._ahead.append((TimeBucket.NODES, max(0.0, self._filled_s - ready_s)))
        recovery = self._run.recovery
        self._ahead.append((TimeBucket.RESTART, recovery.cold_s if self._cold else recovery.warm_s))
        self._ahead.append((TimeBucket.LOAD, load_s))

    def _roll_back(self, failure: FailureArrival) -> float:
        """Roll back to the best remaining checkpoint; return the time to read it."""
        self._checkpoints.trained(self._start, self._ran_s)
        sound = max(0.0, self._position - failure.cause.latent_s)
        restore = self._checkpoints.restore(failure.scope, self._position, sound)
        self._from_scratch += restore.position == 0.0
        self._lose(self._position - restore.position)
        self._start = self._position = restore.position
        self._ran_s = 0.0
        return restore.load_s

    def _lose(self, work_s: float) -> None:
        """Training that has to be done again, with its share of what missing replicas had taken away."""
        counted, missing = self._buckets[TimeBucket.PRODUCTIVE], self._buckets[TimeBucket.MISSING]
        share = counted / (counted + missing) if counted + missing else 0.0
        self._buckets[TimeBucket.PRODUCTIVE] -= work_s * share
        self._buckets[TimeBucket.MISSING] -= work_s - work_s * share
        self._buckets[TimeBucket.LOST] += work_s


class _Allowance:
    """The restart budget, as the coordinator keeps it: new steps give restarts back."""

    def __init__(self, budget: RestartBudget, step_s: float) -> None:
        self._budget, self._step_s = budget, step_s
        self._left = budget.restarts
        self._steps = self._toward_refill = self._in_vain = 0

    def take(self, position: float) -> bool:
        """Return whether one more restart is allowed after a failure at this position in training."""
        new = max(0, math.floor(position / self._step_s) - self._steps)
        self._steps += new
        self._in_vain = 0 if new else self._in_vain + 1
        refilled, self._toward_refill = divmod(self._toward_refill + new, self._budget.refill_steps)
        self._left = min(self._budget.restarts, self._left + refilled)
        if self._left <= 0 or self._in_vain >= self._budget.no_progress:
            return False
        self._left -= 1
        return True
