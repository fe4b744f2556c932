"""Generates a job of any length in virtual time, as heartbeats and probes: heavy-tailed steps, and all slow phases of a healthy job."""

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from benchmarks.detection.detectors import Detector
from headway.runner.health.watch import Probe, RankBeat

BEAT_S, TICK_S = 0.5, 0.1
# Below this a Pareto tail has no variance.
HEAVY = 2.0
# Of an event; a longer one than a section's timeout is hung by the user's setting.
LONGEST_S = 500.0
# Of an event: a Pareto tail so heavy that its variance is infinite.
_SHORTEST_S, _TAIL = 2.0, 1.1


@dataclass(frozen=True)
class Doing:
    """An activity of a rank; `cpu` while it uses it. It sends a heartbeat when it begins, and `every_s` if that is set."""

    section: str
    seconds: float
    state: str = "R"
    cpu: bool = True
    waits_on: str | None = None
    stack: tuple[str, ...] = ("/job/train.py:40 loss_of",)
    where: str | None = None
    every_s: float = math.inf


_IN_LIBRARY = ("/usr/lib/python3.11/threading.py:320 wait", "/job/train.py:70 main")
_COLLECTIVE = ("/site-packages/torch/distributed/distributed_c10d.py:3000 all_reduce", "/job/train.py:60 main")


def waiting(seconds: float) -> Doing:
    return Doing("collective", seconds, "S", cpu=False, waits_on="futex_do_wait", stack=_COLLECTIVE, where="collective")


# What happens now and then to one rank while the others wait for it.
HAPPENS: Mapping[str, Doing] = {
    "recompile": Doing("compile", 1.0),
    "recompile that no hook sees": Doing("compute", 1.0),
    "garbage collection": Doing("compute", 1.0),
    "evaluation with signs of life": Doing("evaluation", 1.0, every_s=0.3),
    "evaluation that no hook sees": Doing("compute", 1.0),
    "storage stall in the loader": Doing("data", 1.0, "D", cpu=False, waits_on="folio_wait_bit_common"),
    "loader's process is late": Doing("data", 1.0, "S", cpu=False, waits_on="do_poll"),
    "storage stall that no hook sees": Doing("compute", 1.0, "D", cpu=False, waits_on="nfs_wait_bit_killable"),
    "a pipe that no hook sees": Doing("compute", 1.0, "S", cpu=False, waits_on="anon_pipe_read"),
    "checkpoint wait": Doing("save", 1.0, "S", cpu=False, waits_on="futex_do_wait"),
    "a library's thread is waited for": Doing("compute", 1.0, "S", cpu=False, waits_on="futex_do_wait", stack=_IN_LIBRARY),
    "a busy server is asked again later": Doing("compute", 1.0, "S", cpu=False, waits_on="hrtimer_nanosleep"),
}
# To all of them: what they wait for together, that all are slow, and missing heartbeats.
TO_ALL = ("lazy communicator set-up", "all slow", "nothing heard", "heard late")


@dataclass(frozen=True)
class Steps:
    """Seconds of a step's compute: a lognormal body, and a Pareto tail for one in `tail_every`."""

    median_s: float
    sigma: float
    tail: float
    tail_every: int = 20

    def draw(self, chance: random.Random) -> float:
        seconds = self.median_s * chance.lognormvariate(0.0, self.sigma)
        if chance.random() * self.tail_every < 1.0:
            seconds *= chance.paretovariate(self.tail)
        return min(seconds, LONGEST_S)


def fitted(steps_s: Sequence[float]) -> Steps:
    """Return the body by median and quartiles; the tail by Hill's estimator over the longest twentieth (Hill, Annals of
    Statistics 3, 1975), or HEAVY where what was recorded is lighter than that."""
    ordered = sorted(steps_s)
    count = len(ordered)
    low, median, high = (ordered[int(share * count)] for share in (0.25, 0.5, 0.75))
    longest = ordered[-max(count // 20, 2) :]
    spread = sum(math.log(each / longest[0]) for each in longest) / len(longest)
    return Steps(median, math.log(high / low) / 1.349, min(1.0 / spread, HEAVY))


@dataclass
class _Rank:
    """`cpu_s` is up to the beginning of this step."""

    pulse: int = 0
    own_s: float = 0.0
    cpu_s: float = 0.0
    doing: Sequence[Doing] = field(default_factory=tuple)


class Job:
    """`ranks` ranks in data parallel; something happens every `every` steps on average."""

    def __init__(self, ranks: int, steps: Steps, every: float, seed: int) -> None:
        self._ranks, self._steps, self._every = [_Rank() for _ in range(ranks)], steps, every
        self._chance = random.Random(seed)
        self.now_s, self.step = 0.0, 0
        self.happened: dict[str, int] = {}
        self._slow_steps, self._unheard_until_s = 0, 0.0
        self._late: list[dict[int, RankBeat]] | None = None
        self._next_beat_s, self._next_tick_s = BEAT_S, TICK_S

    def run(self, steps: int, detectors: Sequence[Detector]) -> Iterator[int]:
        """Run so many steps, whatever the detectors report; yield the index of one that would end the job, which may then be
        replaced in the list."""
        for _ in range(steps):
            self.step += 1
            together_s = self._draw_step()
            began_s, until_s = self.now_s, self.now_s + together_s
            while min(self._next_beat_s, self._next_tick_s) < until_s:
                yield from self._hear(began_s, detectors)
            for rank in self._ranks:
                self._pass_step(rank)
            self.now_s = until_s

    def _draw_step(self) -> float:
        """Decides what each rank does in this step; returns how long the step takes."""
        slow, meets_s = 10.0 if self._slow_steps else 1.0, 0.01
        self._slow_steps = max(self._slow_steps - 1, 0)
        what, seconds = self._draw_event()
        match what:
            case "lazy communicator set-up":
                meets_s = seconds
            case "all slow":
                self._slow_steps = round(seconds)
            case "nothing heard" | "heard late":
                self._unheard_until_s, self._late = self.now_s + seconds, [] if what == "heard late" else None
        to = self._chance.randrange(len(self._ranks)) if what in HAPPENS else -1
        busy_s = [slow * self._steps.draw(self._chance) for _ in self._ranks]
        takes_s = max(each + (seconds if number == to else 0.0) for number, each in enumerate(busy_s)) + meets_s
        for number, (rank, own_s) in enumerate(zip(self._ranks, busy_s, strict=True)):
            more = [_lasting(HAPPENS[what], seconds)] if number == to and what is not None else []
            own = [Doing("data", 0.1 * own_s), Doing("compute", 0.9 * own_s), *more]
            rank.doing = (*own, waiting(takes_s - sum(each.seconds for each in own)))
        return takes_s

    def _draw_event(self) -> tuple[str | None, float]:
        if self._chance.random() * self._every >= 1.0:
            return None, 0.0
        what = self._chance.choice([*HAPPENS, *TO_ALL])
        self.happened[what] = self.happened.get(what, 0) + 1
        return what, min(_SHORTEST_S * self._chance.paretovariate(_TAIL), LONGEST_S)

    def _hear(self, began_s: float, detectors: Sequence[Detector]) -> Iterator[int]:
        """Yield the next heartbeats or the next look at what they say."""
        if self._next_beat_s <= self._next_tick_s:
            self._beat(self._next_beat_s, began_s, detectors)
            self._next_beat_s += BEAT_S
            return
        now_s = self._next_tick_s
        for number, detector in enumerate(detectors):
            probe, named = detector.tick(now_s)
            if probe:
                detector.probed({rank: self._probe(self._ranks[rank], now_s - began_s) for rank in probe}, now_s)
            if named is not None:
                yield number
        self._next_tick_s += TICK_S

    def _beat(self, now_s: float, began_s: float, detectors: Sequence[Detector]) -> None:
        beats = {number: self._shown(rank, now_s - began_s) for number, rank in enumerate(self._ranks)}
        if now_s < self._unheard_until_s:
            if self._late is not None:
                self._late.append(beats)
            return
        for each in (*(self._late or ()), beats):
            for detector in detectors:
                detector.beat(each, now_s)
        self._late = None

    def _shown(self, rank: _Rank, into_s: float) -> RankBeat:
        """Return a rank's page so far into the step."""
        pulse, own_s = rank.pulse, rank.own_s
        for doing in rank.doing[:-1]:
            pulse += 1
            if into_s < doing.seconds:
                signs = int(into_s / doing.every_s)
                age_s = into_s - (signs * doing.every_s if signs else 0.0)
                return RankBeat(self.step - 1, doing.section, pulse + signs, age_s, own_s)
            into_s, own_s = into_s - doing.seconds, own_s + doing.seconds
        return RankBeat(self.step - 1, "collective", pulse + 1, into_s, own_s)

    def _probe(self, rank: _Rank, into_s: float) -> Probe:
        cpu_s = rank.cpu_s
        for doing in rank.doing:
            cpu_s += min(into_s, doing.seconds) if doing.cpu else 0.0
            if into_s < doing.seconds:
                break
            into_s -= doing.seconds
        return Probe(doing.state, cpu_s, 0, doing.stack, doing.where, doing.waits_on)

    def _pass_step(self, rank: _Rank) -> None:
        for doing in rank.doing:
            rank.pulse += 1 + int(doing.seconds / doing.every_s)
            rank.cpu_s += doing.seconds if doing.cpu else 0.0
            rank.own_s += doing.seconds if doing.section != "collective" else 0.0


def _lasting(doing: Doing, seconds: float) -> Doing:
    return Doing(doing.section, seconds, doing.state, doing.cpu, doing.waits_on, doing.stack, doing.where, doing.every_s)
