"""What a generation's wall time went into: journal and metrics -> seconds per bucket, which sum to the wall time exactly."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any


@dataclass(frozen=True)
class StepTime:
    """One completed optimizer step of a generation, how long it took, and how long training stood still for saves before it."""

    step: int
    seconds: float
    save_s: float = 0.0


@dataclass(frozen=True)
class Account:
    """A generation's share of the run: from the end of the one before (unix seconds) until all its ranks had ended."""

    start: float
    end: float
    buckets: dict[str, float]


def account(start: float, end: float, journal: Sequence[dict[str, Any]], steps: Iterable[StepTime], best_before: int) -> Account:
    """Splits `start`..`end`. `best_before` is the highest step completed by earlier generations: redoing those is lost.

    restart: until rank 0 has its process and imports; rendezvous: until the process group stands; restore: until every rank has
    verified the base; save_block: while training stood still for saves, at the end until they are stored; detect: from the last
    completed step until all ranks of a failed generation had ended. Of a script only its start is seen from outside: from there on its
    time counts as productive.
    """
    end = max(start, end)  # a wall clock may be set back
    if script := [line for line in journal if line["kind"] == "section" and line["name"] == "script"]:
        began = min(max(float(script[0]["wall"]), start), end)
        return Account(start, end, {"restart": began - start, "productive": end - began})
    marks = [start, *(_reached(journal, mark, end) for mark in ("rendezvous", "restore", "loaded")), end]
    marks = [min(max(mark, start), end) for mark in marks]
    for i in range(1, len(marks)):
        marks[i] = max(marks[i], marks[i - 1])
    restart, rendezvous, restore, training = (b - a for a, b in pairwise(marks))
    buckets = {"restart": restart, "rendezvous": rendezvous, "restore": restore}
    for name, seconds in _split_training(training, journal, list(steps), best_before).items():
        buckets[name] = buckets.get(name, 0.0) + seconds
    return Account(start, end, buckets)


def _reached(journal: Sequence[dict[str, Any]], mark: str, otherwise: float) -> float:
    """When rank 0 entered a section, or all ranks had loaded."""
    for line in journal:
        if line["kind"] == mark or (line["kind"] == "section" and line["name"] == mark):
            return float(line["wall"])
    return otherwise


def _split_training(
    seconds: float, journal: Sequence[dict[str, Any]], steps: list[StepTime], best_before: int
) -> dict[str, float]:
    saving = sum(step.save_s for step in steps) + sum(line["seconds"] for line in journal if line["kind"] == "waited")
    again = sum(step.seconds for step in steps if step.step <= best_before)
    new = sum(step.seconds for step in steps if step.step > best_before)
    measured = saving + again + new
    shrink = min(1.0, seconds / measured) if measured else 0.0  # clocks of two processes: never more than there was
    failed = any(line["kind"] == "failure" for line in journal)
    rest = seconds - measured * shrink
    return {
        "productive": new * shrink,
        "lost_recompute": again * shrink,
        "save_block": saving * shrink,
        "detect" if failed else "restart": rest,
    }
