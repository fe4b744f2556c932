"""Detects stopped ranks: heartbeats and probes in, suspicions and culprits out; no I/O and no clock of its own.

A rank without heartbeat is suspected early, which costs nothing but a probe of its process. It is reported as hung only
when the probes show evidence for it (`Hang.why`), or when its section's timeout has passed. Silence is no evidence:
missing heartbeats indicate a problem of a network or a node, which the coordinator handles.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from headway.runner.contract import Timeout, set_by
from headway.runner.health import collectives, culprits
from headway.runner.health.collectives import Collective
from headway.runner.health.culprits import Standing
from headway.runner.health.quantiles import Quantiles, bucket_of
from headway.runner.health.stragglers import Straggler, Stragglers
from headway.runner.health.timeouts import SHARE, SectionTimeouts, name_of

__all__ = ["Findings", "Hang", "Probe", "RankBeat", "Straggler", "Watch"]

# A proven hang is reported within BOUND_S of the last heartbeat, or BOUND_FACTOR times the usual interval where that is
# longer. Suspicion begins early enough for two probes within that; heartbeats need only reach as far as they can be
# there in time.
BOUND_S, BOUND_FACTOR = 2.0, 5.0
# Of the bound.
_SUSPECT, _KNOWN, _NAME = 0.375, 0.6, 0.8
PROBES_APART_S, _PROBES_APART_MOST_S = 0.5, 60.0
# In its first steps a rank does one-time work, perhaps behind a lock: a stopped process is proof all the same, and a
# lock after FIRST_STEPS_S of doing nothing.
FIRST_STEPS, FIRST_STEPS_S = 30, 10.0
# Between two calls, of which ticks are ten a second: a longer gap means that the watch's own process was stopped.
STALL_S = 5.0
# From the end of a rank's main thread (Z) until the kernel has freed what its process held; unlocking memory that a GPU copies
# to takes seconds for each 10 GB. Its exit code is better evidence than a hang.
EXITING_S = 60.0
# For a probe of a rank that others have moved past; then it is judged without one.
UNSEEN_S = 10.0
# Ranks; in a larger job, probes go to possible culprits and to a sample that changes each time.
_PROBE_ALL = 1024
_SAMPLE = 64
# The probe's own cost to the process: a handler that writes its stack to a file.
_PROBE_CPU_S, _PROBE_CPU_SHARE, _PROBE_IO_BYTES = 0.02, 0.02, 64 * 1024
_TRAINING = frozenset({"data", "compute", "collective", "script"})
# p99 is computed again after that.
_USUAL_FOR_S = 1.0
# A pass over all ranks takes 2 us each, so that it takes a tenth of a core at most.
_JUDGE_S_A_RANK = 2e-5


class RankBeat(NamedTuple):
    """The content of a rank's heartbeat page.

    `age_s` is the time since its last heartbeat, None before the first; `own_s` the time that it has spent outside of
    waits for others since it started, None where that is not measured.
    """

    step: int
    section: str
    pulse: int
    age_s: float | None
    own_s: float | None = None


@dataclass(frozen=True)
class Probe:
    """A look at a rank's process from outside.

    `state` is proc(5)'s letter; `cpu_s` and `io_bytes` are totals of the process and its children; `stack` is the main
    thread's, innermost frame first, each `file:line function`, empty if it is unavailable; `where` is the section of
    that stack: one of contract.SECTIONS, or None. `waits_on` is the kernel function that the main thread sleeps in
    (/proc/PID/wchan), None if it is unavailable.
    """

    state: str
    cpu_s: float
    io_bytes: int
    stack: tuple[str, ...] = ()
    where: str | None = None
    waits_on: str | None = None


@dataclass(frozen=True)
class Hang:
    """A generation without progress. `ranks` are the culprits, empty when no rank differs from the others; `silent_s`
    is the duration."""

    ranks: tuple[int, ...]
    section: str
    silent_s: float
    why: str


@dataclass(frozen=True)
class Findings:
    """`probe`: ranks whose processes should be probed now; `stragglers`: those found since the last call."""

    probe: frozenset[int] = frozenset()
    hang: Hang | None = None
    stragglers: tuple[Straggler, ...] = ()


@dataclass(slots=True)
class _Rank:
    """`sign_s` is its last heartbeat, on the watch's clock, and `age_s` its age when the agent last read the page;
    `first` the first step that was seen of it, 0 before that."""

    step: int
    section: str
    pulse: int
    age_s: float
    sign_s: float
    first: int


@dataclass(frozen=True)
class _Look:
    """The newest probe of a rank, the time since which its stack has been the same, and the time since which it has been idle."""

    probe: Probe
    at_s: float
    held_s: float
    idle_from: Probe
    idle_s: float


@dataclass(frozen=True)
class _Waits:
    """The collectives that a rank has entered and that have not completed, group and number; since when its dumps show the same,
    and when the newest came."""

    pending: frozenset[tuple[str, int]]
    since_s: float
    seen_s: float


class Watch:
    """Watches one generation. Times are seconds of any monotonic clock, the same for all calls.

    Call `tick` every 0.1 s; it looks at single ranks only while no rank moves.
    """

    def __init__(self, ranks: int, timeouts: Mapping[str, Timeout], now_s: float, stages: int = 1) -> None:
        """Create the watch. `stages`: pipeline stages, the outermost axis of the ranks."""
        self._total, self._began_s, self._moved_s = ranks, now_s, now_s
        self._ranks: dict[int, _Rank] = {}
        self._ended: set[int] = set()
        self._furthest = 0
        self._timeouts, self._gaps = SectionTimeouts(timeouts), Quantiles()
        self._usual_s, self._usual_until_s = 0.0, -math.inf
        # Silent beyond their timeouts, except those that wait in a collective.
        self._overdue: set[int] = set()
        self._looks: dict[int, _Look] = {}
        # By torch's flight recorder, since any rank moved.
        self._entered: dict[int, tuple[Collective, ...]] = {}
        self._waits: dict[int, _Waits] = {}
        # Ranks that have dumped it since their newest probe.
        self._recorded: set[int] = set()
        # NCCL's own report.
        self._said = ""
        self._asked_s, self._asked, self._judged_s = -math.inf, 0, -math.inf
        # When a rank was last seen to use CPU, to do I/O or to be in another place than before.
        self._busy: dict[int, float] = {}
        # Of ranks that others have moved past, while these move.
        self._behind: dict[int, _Look] = {}
        # Since when there are such, and when they were last probed.
        self._behind_s, self._behind_asked_s = math.inf, -math.inf
        self._called_s = now_s
        self._stragglers = Stragglers(ranks, stages)

    # --- what is seen -------------------------------------------------------------------------------------------------

    def beat(self, ranks: Mapping[int, RankBeat], now_s: float) -> None:
        """Record heartbeats of one node's ranks."""
        self._is_called(now_s)
        for rank, (step, section, pulse, seen_age_s, own_s) in ranks.items():
            if rank in self._ended:
                continue
            age_s = now_s - self._began_s if seen_age_s is None else seen_age_s
            if (each := self._ranks.get(rank)) is None:
                self._ranks[rank] = each = _Rank(step, section, pulse, age_s, now_s - age_s, step)
                self._moved(each.sign_s)
            elif pulse != each.pulse or step != each.step or section != each.section or age_s < each.age_s:
                self._sign(each, step, section, pulse, age_s, now_s - age_s)
                self._overdue.discard(rank)
                self._behind.pop(rank, None)
            else:
                # A late message made the heartbeat look younger than it is.
                each.sign_s, each.age_s = min(each.sign_s, now_s - age_s), age_s
                if age_s > BOUND_S and section != "collective" and age_s > self._timeouts.limit_s(section, step):
                    self._overdue.add(rank)
            if own_s is not None:
                self._stragglers.saw(rank, step, own_s, now_s, training=section in _TRAINING)

    def ended(self, ranks: Iterable[int]) -> None:
        """Record that these ranks have ended: nothing more is expected of them."""
        for rank in ranks:
            self._ended.add(rank)
            self._ranks.pop(rank, None)
            self._overdue.discard(rank)
            for known in (self._looks, self._behind, self._busy):
                known.pop(rank, None)

    def slept(self, seconds: float) -> None:
        """Discount a time in which no heartbeats were read: that silence does not count."""
        self._called_s += seconds
        self._began_s += seconds
        self._moved_s += seconds
        self._asked_s += seconds
        self._behind_s += seconds
        self._behind_asked_s += seconds
        for each in self._ranks.values():
            each.sign_s += seconds
        self._busy = {rank: at_s + seconds for rank, at_s in self._busy.items()}
        # Probes and dumps from before and after it cannot be compared.
        self._looks, self._behind, self._waits = {}, {}, {}

    def _is_called(self, now_s: float) -> None:
        if now_s - self._called_s > STALL_S:
            self.slept(now_s - self._called_s)
        self._called_s = now_s

    def probed(self, ranks: Mapping[int, Probe], now_s: float) -> None:
        """Record probes of one node's ranks."""
        self._is_called(now_s)
        for rank, probe in ranks.items():
            for known in (self._looks, self._behind) if rank in self._overdue else (self._looks,):
                before = known.get(rank)
                known[rank] = look = _look(probe, now_s, before, recorded=rank in self._recorded)
                if before is not None and look.idle_s == now_s:
                    self._busy[rank] = now_s
            self._recorded.discard(rank)

    def recorded(self, ranks: Mapping[int, tuple[Collective, ...]], said: str | None = None) -> None:
        """Record the newest collectives of one node's ranks, from their flight recorders; and NCCL's own report on the job."""
        self._entered.update(ranks)
        for rank, entered in ranks.items():
            pending, before = frozenset((each.group, each.waits) for each in entered if each.waits), self._waits.get(rank)
            is_same = before is not None and before.pending == pending
            self._waits[rank] = _Waits(pending, before.since_s if before and is_same else self._called_s, self._called_s)
        self._recorded.update(ranks)
        self._said = said or self._said

    def _sign(self, each: _Rank, step: int, section: str, pulse: int, age_s: float, sign_s: float) -> None:
        """Record a heartbeat: the interval is at least what the previous heartbeat showed, and on average since that."""
        signs = pulse - each.pulse
        gap_s = (sign_s - each.sign_s) / signs if signs > 1 else sign_s - each.sign_s
        bucket = bucket_of(gap_s if gap_s > each.age_s else each.age_s)
        # Times before the first step, and that step's own, are not usual.
        if each.step:
            self._gaps.add(bucket)
        self._timeouts.saw(each.section, bucket)
        each.first = each.first or step
        each.step, each.section, each.pulse, each.age_s, each.sign_s = step, section, pulse, age_s, sign_s
        self._furthest = max(self._furthest, step)
        self._moved(sign_s)

    def _moved(self, sign_s: float) -> None:
        if sign_s > self._moved_s:
            self._moved_s = sign_s
            if self._looks or self._entered or self._said:
                self._looks, self._entered, self._said = {}, {}, ""
                self._waits = {}
            self._asked_s, self._asked = -math.inf, 0

    # --- what follows -------------------------------------------------------------------------------------------------

    def tick(self, now_s: float) -> Findings:
        """Return what the coordinator should do now."""
        self._is_called(now_s)
        stragglers = self._stragglers.found()
        silent_s, bound_s = now_s - self._moved_s, self._bound_s(now_s)
        if silent_s < _SUSPECT * bound_s:
            behind = self._others_go_on_without()
            return Findings(self._to_probe_behind(behind, now_s), self._left_behind(behind, now_s), stragglers)
        hang = None
        if silent_s >= _NAME * bound_s and now_s >= self._judged_s + len(self._ranks) * _JUDGE_S_A_RANK:
            self._judged_s = now_s
            hang = self._proven(now_s, bound_s) or self._timed_out(now_s)
        hang = hang or self._left_behind(self._others_go_on_without(), now_s)
        return Findings(self._to_probe(now_s, silent_s), hang, stragglers)

    def _bound_s(self, now_s: float) -> float:
        """Return the time within which a proven hang is reported."""
        if now_s >= self._usual_until_s:
            self._usual_s, self._usual_until_s = self._gaps.at(SHARE), now_s + _USUAL_FOR_S
            self._timeouts.renew()
        return max(BOUND_S, BOUND_FACTOR * self._usual_s)

    def _proven(self, now_s: float, bound_s: float) -> Hang | None:
        """Return a hang that two probes prove, if all ranks of the generation are known not to have moved."""
        if not self._all_silent_for(_KNOWN * bound_s):
            return None
        # In a job too large to probe all ranks: the probed ones, and those whose heartbeats show a wait.
        few = len(self._ranks) <= _PROBE_ALL
        found = culprits.proven([s for s in self._standings() if few or s.rank in self._looks or s.section == "collective"])
        if found is None:
            return self._never_meet(now_s)
        ranks, why = found
        if not all(self._is_sure_of(rank) for rank in ranks):
            return None
        return self._hang(ranks, now_s, why)

    def _never_meet(self, now_s: float) -> Hang | None:
        """Return a hang of ranks that wait for each other in different collectives with unchanged stacks: time cannot
        resolve it.

        It is the program's fault and no rank's, so only the text names them: no node comes under suspicion.
        """
        odds = collectives.at_odds(self._known())
        if odds is None or not all(rank in self._looks and _is_held(self._looks[rank]) for rank in odds[1]):
            return None
        return self._hang((), now_s, odds[0].why, "collective")

    def _is_sure_of(self, rank: int) -> bool:
        """Return whether a rank that seems to hang does. Before its first step, one-time work may well wait for a lock."""
        each, look = self._ranks[rank], self._looks[rank]
        if each.first > 0 and each.step - each.first >= FIRST_STEPS:
            return True
        return _is_stopped(look) or (len(self._gaps) > 0 and look.at_s - look.idle_s >= FIRST_STEPS_S)

    def _timed_out(self, now_s: float) -> Hang | None:
        """Return a hang if no rank has moved for longer than the timeout of any section that could explain it.

        A working rank explains a waiting one, and a rank that uses CPU or does I/O works, whatever its section is: unless
        its device is what it waits for, which takes a core.
        """
        if not self._ranks:
            return None
        unmet = self._entered_by_all()
        standings = [replace(each, section="collective") if each.rank in unmet else each for each in self._standings()]
        working = [each for each in standings if each.section != "collective"] or standings
        limits = [(*self._limit_of(each, self._looks.get(each.rank)), each) for each in working]
        name, limit_s, longest = max(limits, key=lambda found: found[1])
        if any(each.section != "collective" and self._is_busy(each.rank, now_s, limit_s) for each in working):
            name, limit_s = max((name, limit_s), ("busy", self._timeouts.of("busy")), key=lambda found: found[1])
        if not self._all_silent_for(limit_s):
            return None
        found = self._missing()
        ranks = found.ranks if found is not None else culprits.outliers(standings)
        why = f"no rank has sent a heartbeat for longer than the timeout of `{name}`, {limit_s:.0f} s ({set_by(name)})"
        if longest.rank in unmet:
            why += f"; every rank has entered {unmet[longest.rank]}, which does not complete"
        return self._hang(ranks, now_s, why, longest.section)

    def _entered_by_all(self) -> dict[int, str]:
        """Return the ranks in a collective that all of its group have entered, and that has not completed; and which one.

        It counts once two dumps show the same, the timeout of `collective` apart: what was recorded earlier may have completed.
        """
        limit_s = self._timeouts.of("collective")
        long = {rank for rank, waits in self._waits.items() if waits.pending and waits.seen_s - waits.since_s >= limit_s}
        return {rank: what for rank, what in collectives.entered_by_all(self._known(), self._ranks).items() if rank in long}

    def _limit_of(self, each: Standing, look: _Look | None) -> tuple[str, float]:
        """Return the timeout of a rank in that place, name and seconds: of its section, or of what it waits for outside
        of the job."""
        names = [name_of(each.section, each.step)]
        if look is not None and each.section != "collective" and culprits.waits_outside(look.probe.stack, look.probe.waits_on):
            names.append("evaluation")
        return max(((name, self._timeouts.of(name)) for name in names), key=lambda found: found[1])

    def _is_busy(self, rank: int, now_s: float, limit_s: float) -> bool:
        """Return whether the rank was seen at work within its timeout, or within the last few probes where that is longer."""
        looks_s = 3 * _probes_apart_s(now_s - self._ranks[rank].sign_s)
        return self._busy.get(rank, -math.inf) > now_s - max(limit_s, looks_s)

    # --- ranks that others have moved past ----------------------------------------------------------------------------

    def _others_go_on_without(self) -> list[int]:
        """Return ranks that are silent beyond their timeout while the others are two steps ahead: no rank waits for them."""
        return sorted(rank for rank in self._overdue if 0 < self._ranks[rank].step <= self._furthest - 2)

    def _to_probe_behind(self, ranks: list[int], now_s: float) -> frozenset[int]:
        """Return those of them to probe now: no other rule probes them, as others move."""
        if not ranks:
            self._behind_s = math.inf
            return frozenset()
        self._behind_s = min(self._behind_s, now_s)
        if now_s - self._behind_asked_s < _probes_apart_s(now_s - self._behind_s) - 1e-6:
            return frozenset()
        self._behind_asked_s = now_s
        return frozenset(ranks[:_PROBE_ALL])

    def _left_behind(self, behind: list[int], now_s: float) -> Hang | None:
        """Return a hang of those that others have moved past and that are not at work."""
        ranks = tuple(rank for rank in behind if self._has_stopped(rank, now_s))
        if not ranks:
            return None
        name, limit_s = self._limit_behind(ranks[0])
        why = f"silent for longer than the timeout of `{name}`, {limit_s:.0f} s ({set_by(name)}); others make progress"
        return self._hang(ranks, now_s, why)

    def _has_stopped(self, rank: int, now_s: float) -> bool:
        """Return whether two probes found it idle for its whole timeout, or it cannot be probed."""
        _, limit_s = self._limit_behind(rank)
        look = self._behind.get(rank)
        if look is None:
            return now_s - self._behind_s >= UNSEEN_S
        is_idle = look.at_s - look.idle_s >= PROBES_APART_S - 1e-6
        return is_idle and self._ranks[rank].age_s > limit_s and not self._is_busy(rank, now_s, limit_s)

    def _limit_behind(self, rank: int) -> tuple[str, float]:
        each, look = self._ranks[rank], self._behind.get(rank)
        return self._limit_of(Standing(rank, each.step, each.section), look)

    def _hang(self, ranks: tuple[int, ...], now_s: float, why: str, section: str = "") -> Hang:
        since_s = min((self._ranks[rank].sign_s for rank in ranks), default=self._moved_s)
        if ranks:
            where = self._looks[ranks[0]].probe.where if ranks[0] in self._looks else None
            section = where or self._ranks[ranks[0]].section
        found = self._missing()
        more = [found.why] if found is not None and found.why != why else []
        more += [f"NCCL says: {self._said}"] if self._said else []
        return Hang(ranks, section, now_s - since_s, "; ".join([why, *more]))

    def _missing(self) -> collectives.Missing | None:
        """Return the ranks that block others by the flight recorders; none if a probe shows that they wait too: a dump
        may be older."""
        known = self._known()
        if (odds := collectives.at_odds(known)) is not None:
            return odds[0]
        found = collectives.missing(known)
        if found is None:
            return None
        looks = [self._looks[rank].probe for rank in found.ranks if rank in self._looks]
        pending = {rank for rank, entered in known.items() if not all(each.done for each in entered)}
        stale = any(look.where == "collective" for look in looks) and not pending.issuperset(found.ranks)
        return None if stale else found

    def _known(self) -> dict[int, tuple[Collective, ...]]:
        return {rank: entered for rank, entered in self._entered.items() if rank in self._ranks}

    def _all_silent_for(self, seconds: float) -> bool:
        """Return whether every rank that has not ended was probed `seconds` or more after the last heartbeat of any."""
        if len(self._ranks) + len(self._ended) < self._total:
            return False
        return all(each.sign_s + each.age_s - self._moved_s >= seconds - 1e-6 for each in self._ranks.values())

    def _standings(self) -> Iterator[Standing]:
        """Yield the place of each rank, by its probes or, where there is none, by its heartbeats."""
        for rank, each in self._ranks.items():
            look = self._looks.get(rank)
            yield Standing(rank, each.step, each.section) if look is None else _standing(rank, each, look)

    # --- probes -------------------------------------------------------------------------------------------------------

    def _to_probe(self, now_s: float, silent_s: float) -> frozenset[int]:
        """Return the ranks to probe: every PROBES_APART_S at first, and more rarely the longer the silence lasts."""
        if now_s - self._asked_s < _probes_apart_s(silent_s) - 1e-6:
            return frozenset()
        self._asked_s, self._asked = now_s, self._asked + 1
        if len(self._ranks) <= _PROBE_ALL:
            return frozenset(self._ranks)
        return frozenset([*self._in_the_way(), *self._sampled()])

    def _in_the_way(self) -> Iterator[int]:
        """Yield the ranks that were found to do something other than wait, then those that may, by their heartbeats."""
        suspects = [rank for rank, look in self._looks.items() if look.probe.state in "TZ" or look.probe.where != "collective"]
        others = [rank for rank, each in self._ranks.items() if each.section != "collective" and rank not in self._looks]
        yield from (suspects + others)[: _PROBE_ALL - _SAMPLE]

    def _sampled(self) -> list[int]:
        ranks = list(self._ranks)
        stride = len(ranks) // _SAMPLE
        return ranks[self._asked % stride :: stride][:_SAMPLE]


def _probes_apart_s(silent_s: float) -> float:
    """Return the interval between two probes of a rank that has been silent for so long."""
    return min(max(PROBES_APART_S, silent_s / 10), _PROBES_APART_MOST_S)


def _look(probe: Probe, now_s: float, before: _Look | None, *, recorded: bool) -> _Look:
    """Compare a probe with the previous one. `recorded`: the process has written a dump since then, which counts as
    idle if it was idle before."""
    if before is None or probe.stack != before.probe.stack or probe.state != before.probe.state:
        return _Look(probe, now_s, now_s, probe, now_s)
    since = before.idle_from
    cpu_s, span_s = probe.cpu_s - since.cpu_s, now_s - before.idle_s
    idle = cpu_s <= _PROBE_CPU_S + _PROBE_CPU_SHARE * span_s and probe.io_bytes - since.io_bytes <= _PROBE_IO_BYTES
    if recorded and not idle and before.at_s - before.idle_s >= PROBES_APART_S - 1e-6:
        return _Look(probe, now_s, before.held_s, probe, before.idle_s)
    return _Look(probe, now_s, before.held_s, since if idle else probe, before.idle_s if idle else now_s)


def _is_held(look: _Look) -> bool:
    """Return whether the stack stayed the same; an empty one does not count: a running process shows none."""
    return (bool(look.probe.stack) or look.probe.state in "TZ") and look.at_s - look.held_s >= PROBES_APART_S - 1e-6


def _is_stopped(look: _Look) -> bool:
    """Return whether its process is stopped (T), or has ended and cannot be freed (Z)."""
    held_s = look.at_s - look.held_s
    return (look.probe.state == "T" and held_s >= PROBES_APART_S - 1e-6) or (look.probe.state == "Z" and held_s >= EXITING_S)


def _standing(rank: int, each: _Rank, look: _Look) -> Standing:
    held = _is_held(look)
    idle = look.at_s - look.idle_s >= PROBES_APART_S - 1e-6
    probe = look.probe
    return Standing(
        rank,
        each.step,
        probe.where or each.section,
        probe.stack,
        stopped=_is_stopped(look),
        held=held,
        idle=idle and probe.state == "S",
        waits_on=probe.waits_on,
    )
