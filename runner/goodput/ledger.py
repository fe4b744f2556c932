"""Divides a generation's wall time into buckets from journal, metrics and heartbeats; they sum to the wall time exactly."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

# Steps of a generation whose times are kept.
POINTS = 4096

Line = Mapping[str, Any]


@dataclass(frozen=True)
class StepTime:
    """One completed optimizer step of a generation, its duration, and how long saves blocked training before it.

    `wall` is when it was complete, in Unix seconds; 0 if unknown. With `count` it is the last of so many, which took
    `seconds` in all.
    """

    step: int
    seconds: float
    save_s: float = 0.0
    wall: float = 0.0
    count: int = 1


@dataclass(frozen=True)
class Account:
    """A generation's share of the run: from the end of the previous one (Unix seconds) until all its ranks had ended.

    `buckets` are wall seconds of the `slots` nodes that compute. All seconds of the `spares` nodes are `spare_idle`.
    """

    start: float
    end: float
    buckets: dict[str, float]
    slots: int = 1
    spares: int = 0

    @property
    def node_s(self) -> dict[str, float]:
        """Return node-seconds by bucket: together `slots + spares` times the wall time."""
        found = {name: seconds * self.slots for name, seconds in self.buckets.items()}
        return {**found, "spare_idle": self.spares * (self.end - self.start)} if self.spares else found


class Seen:
    """The steps of one generation from heartbeats: (completed steps, Unix seconds) at each change, in bounded memory.

    The coordinator calls `add` with the highest step of a beat's ranks.
    """

    def __init__(self) -> None:
        self.steps: list[tuple[int, float]] = []

    def add(self, step: int, wall: float) -> None:
        """Record `step` if it is higher than any before."""
        if step <= (self.steps[-1][0] if self.steps else 0):
            return
        self.steps.append((step, wall))
        # Every second one is enough to compute the time of the steps in between.
        if len(self.steps) > POINTS:
            self.steps = [*self.steps[:1], *self.steps[2::2]]


@dataclass
class Book:
    """Accounts of one generation after another. `until`: the end of the last one; `best`: the highest step completed so
    far.

    A script's steps are counted from each of its starts: `base` is the number completed before the last start, as far
    as its saves show.
    """

    until: float
    script: bool = False
    best: int = 0
    base: int = 0

    def close(
        self,
        end: float,
        journal: Sequence[Line],
        steps: Sequence[StepTime] = (),
        seen: Sequence[tuple[int, float]] = (),
        *,
        saves: Sequence[float] = (),
        slots: int = 1,
        spares: int = 0,
    ) -> Account:
        """Return the account of the generation that has ended at `end`, with its own `journal`.

        `steps` come from metrics.jsonl; `seen` is `Seen.steps` of the generation, by which a script's time is split;
        `saves` are the Unix times of a script's saves.
        """
        before = self.best - self.base if self.script else self.best
        closed = account(self.until, end, journal, steps, before, seen=seen, slots=slots, spares=spares)
        self.until = closed.end
        if not self.script:
            self.best = max([self.best, *(step.step for step in steps)])
        elif seen:
            self.best = max(self.best, self.base + seen[-1][0])
            self.base += _saved_step(journal, seen, saves)
        return closed


def account(
    start: float,
    end: float,
    journal: Sequence[Line],
    steps: Iterable[StepTime],
    best_before: int,
    *,
    seen: Sequence[tuple[int, float]] = (),
    slots: int = 1,
    spares: int = 0,
) -> Account:
    """Split `start`..`end`. `best_before` is the highest step completed by earlier generations: repeating those is
    lost.

    restart: until rank 0 has its process and imports; rendezvous: until the process group is initialized; restore:
    until every rank has verified the base; save_block: while saves blocked training, at the end until they are stored;
    hang: from the last heartbeat until a hang was reported; detect: from the last completed step, or the report, until
    all ranks of a failed generation had ended; straggle: additional time of steps due to a rank that had been reported
    as a straggler. `spares` nodes are idle all the time.

    A script's steps are known from heartbeats only: the time until its first step is `restart`, and without any step
    all its time counts as productive.
    """
    # A wall clock may be set back.
    end = max(start, end)
    script = next((line for line in journal if line["kind"] == "section" and line["name"] == "script"), None)
    if script is not None:
        buckets = _split_script(
            start, end, float(script["wall"]), journal, list(_step_times(script, seen, best_before)), best_before
        )
    else:
        buckets = _split(start, end, journal, list(steps), best_before)
    return Account(start, end, buckets, slots, spares)


def _split(start: float, end: float, journal: Sequence[Line], steps: list[StepTime], best_before: int) -> dict[str, float]:
    marks = [start, *(_reached(journal, mark, end) for mark in ("rendezvous", "restore", "loaded")), end]
    marks = [min(max(mark, start), end) for mark in marks]
    for i in range(1, len(marks)):
        marks[i] = max(marks[i], marks[i - 1])
    buckets = {"restart": 0.0, "rendezvous": 0.0, "restore": 0.0}
    for name, (began, ended) in zip(("restart", "rendezvous", "restore"), pairwise(marks), strict=False):
        hanging = _hanging(journal, began, ended)
        _add(buckets, {name: ended - began - hanging, "hang": hanging})
    _add(buckets, _split_training(marks[-2], end, journal, steps, best_before))
    return buckets


def _split_script(
    start: float, end: float, began: float, journal: Sequence[Line], steps: list[StepTime], best_before: int
) -> dict[str, float]:
    began = min(max(began, start), end)
    if not steps:
        hanging = _hanging(journal, began, end)
        buckets = {"restart": began - start, "productive": end - began - hanging}
        _add(buckets, {"hang": hanging})
        return buckets
    first = min(max(steps[0].wall - steps[0].seconds, began), end)
    buckets = {"restart": first - start}
    _add(buckets, _split_training(first, end, journal, steps, best_before, rest="productive"))
    return buckets


def _step_times(script: Line, seen: Sequence[tuple[int, float]], best_before: int) -> Iterator[StepTime]:
    """Yield a script's steps between heartbeats, all of equal duration. The first is taken to be as long as the next
    ones: earlier time is the script's own start."""
    if not seen:
        return
    points = [(0, max(float(script["wall"]), seen[0][1] - _usual_s(seen) * seen[0][0])), *seen]
    for (step, wall), (next_step, next_wall) in pairwise(points):
        each = max(0.0, next_wall - wall) / (next_step - step)
        until = [min(max(best_before, step), next_step), next_step]
        for first, last in pairwise([step, *until]):
            if last > first:
                yield StepTime(last, each * (last - first), wall=wall + each * (last - step), count=last - first)


def _usual_s(seen: Sequence[tuple[int, float]]) -> float:
    """Return the seconds per step between the first and the last that were seen; 0 if only one time is known."""
    (first, began), (last, ended) = seen[0], seen[-1]
    return max(0.0, ended - began) / (last - first) if last > first else 0.0


def _saved_step(journal: Sequence[Line], seen: Sequence[tuple[int, float]], saves: Sequence[float]) -> int:
    """Return the number of steps of this start that a script had completed at its last observed save."""
    newest = max([*saves, *(float(line["wall"]) for line in journal if line["kind"] == "committed")], default=None)
    return max((step for step, wall in seen if newest is not None and wall <= newest), default=0)


def _reached(journal: Sequence[Line], mark: str, otherwise: float) -> float:
    """Return when rank 0 entered a section, or all ranks had loaded."""
    for line in journal:
        if line["kind"] == mark or (line["kind"] == "section" and line["name"] == mark):
            return float(line["wall"])
    return otherwise


def _hanging(journal: Sequence[Line], began: float, ended: float) -> float:
    """Return the seconds of `began`..`ended` in which the generation hung: from the last heartbeat until the report."""
    hang = next((line for line in journal if line["kind"] == "hang"), None)
    if hang is None:
        return 0.0
    named = float(hang["wall"])
    return max(0.0, min(named, ended) - max(named - float(hang["silent_s"]), began))


def _split_training(
    began: float, ended: float, journal: Sequence[Line], steps: list[StepTime], best_before: int, rest: str = "restart"
) -> dict[str, float]:
    """Split the training time. `rest` is the bucket of the time after the last step if nothing has failed."""
    seconds = ended - began
    spent = {"productive": 0.0, "lost_recompute": 0.0, "save_block": _waited(journal), "straggle": 0.0}
    drags = _drags(journal)
    for step in steps:
        dragged = _dragged(step, drags)
        _add(spent, {"save_block": step.save_s, "straggle": dragged})
        _add(spent, {"lost_recompute" if step.step <= best_before else "productive": step.seconds - dragged})
    measured = sum(spent.values())
    # Clocks of two processes: never more than the elapsed time.
    shrink = min(1.0, seconds / measured) if measured else 0.0
    found = {name: value * shrink for name, value in spent.items() if value or name != "straggle"}
    left = seconds - measured * shrink
    hanging = min(left, _hanging(journal, began, ended))
    failed = any(line["kind"] == "failure" for line in journal)
    _add(found, {"detect" if failed else rest: left - hanging, "hang": hanging})
    return found


def _waited(journal: Sequence[Line]) -> float:
    return sum(float(line["seconds"]) for line in journal if line["kind"] == "waited")


def _drags(journal: Sequence[Line]) -> list[tuple[float, float, float]]:
    """Return for each reported straggler: since when, its own seconds per step, and those that the others need."""
    found = (line for line in journal if line["kind"] == "straggler" and line["ratio"] > 1)
    return [(float(line["wall"]), float(line["own_step_s"]), float(line["own_step_s"]) / float(line["ratio"])) for line in found]


def _dragged(step: StepTime, drags: Sequence[tuple[float, float, float]]) -> float:
    """Return the seconds of a step that the slowest of the stragglers reported by then cost: none once steps are as
    long as the others'."""
    each = step.seconds / step.count
    costs = (min(slow, each) - usual for since, slow, usual in drags if since <= step.wall)
    return max(0.0, max(costs, default=0.0)) * step.count


def _add(buckets: dict[str, float], more: Mapping[str, float]) -> None:
    """Add seconds; a bucket appears only with some."""
    for name, seconds in more.items():
        if seconds or name in buckets:
            buckets[name] = buckets.get(name, 0.0) + seconds
