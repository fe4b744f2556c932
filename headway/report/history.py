"""Turns the records of a run into its generations: where each resumed, how far it came, and which of its steps are still valid."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

from msgspec import Struct

from headway.report.directory import RunRecords
from headway.runner.contract import MetricsLine
from headway.runner.contract.journal import Claim, Entry, Failure, Loaded, Start

E = TypeVar("E", bound=Entry)


class GenerationHistory(Struct, frozen=True):
    """One gang start.

    `resume_step` is the step that it resumed from, None if unknown (a script that finds its own checkpoints).
    `stands_to` is the highest of its steps that no later generation discarded; infinite if none did.
    """

    number: int
    attempt: int
    entries: tuple[Entry, ...]
    metrics: tuple[MetricsLine, ...]
    resume_step: int | None
    stands_to: float
    is_script: bool

    @property
    def loaded(self) -> bool:
        """Return whether it got its state: by its journal or its steps; True if unknown (a script's own checkpoints)."""
        return self.resume_step is None or bool(self.metrics) or last(Loaded, self.entries) is not None

    @property
    def is_from_memory(self) -> bool:
        """Return whether it resumed from the nodes' memory."""
        claim = last(Claim, self.entries)
        return claim is not None and claim.base is not None and claim.base.tier == "memory"

    @property
    def base_step(self) -> int | None:
        return base_step(self.entries)

    @property
    def start(self) -> Start | None:
        return last(Start, self.entries)

    @property
    def failures(self) -> tuple[Failure, ...]:
        return tuple(entry for entry in self.entries if isinstance(entry, Failure))


def generations(records: RunRecords) -> tuple[GenerationHistory, ...]:
    """Return the generations that have a journal or steps, in order. Number 0 is none: it holds the time before a claim."""
    lines = _by_generation(records.metrics)
    found: list[GenerationHistory] = []
    stands_to = math.inf
    for number in sorted((records.journal.keys() | lines.keys()) - {0}, reverse=True):
        entries, metrics = records.journal.get(number, ()), lines.get(number, ())
        attempt = _attempt(entries, metrics)
        resume = _resume_step(entries, metrics, records.handle.trainer)
        found.append(GenerationHistory(number, attempt, entries, metrics, resume, stands_to, records.handle.trainer == "script"))
        stands_to = stands_to if resume is None else min(stands_to, resume)
    return tuple(reversed(found))


def last(kind: type[E], entries: Iterable[Entry]) -> E | None:
    """The last entry of that kind."""
    return next((entry for entry in reversed(tuple(entries)) if isinstance(entry, kind)), None)


def base_step(entries: Sequence[Entry]) -> int | None:
    claim = last(Claim, entries)
    return claim.base.step if claim and claim.base else None


def _by_generation(lines: Iterable[MetricsLine]) -> Mapping[int, tuple[MetricsLine, ...]]:
    found: dict[int, list[MetricsLine]] = {}
    for line in lines:
        found.setdefault(line.generation, []).append(line)
    return {number: tuple(of_number) for number, of_number in found.items()}


def _attempt(entries: Sequence[Entry], metrics: Sequence[MetricsLine]) -> int:
    named = (entry.attempt for entry in entries if entry.attempt is not None)
    return next(named, metrics[0].attempt if metrics else 0)


def _resume_step(entries: Sequence[Entry], metrics: Sequence[MetricsLine], trainer: str) -> int | None:
    loaded, base = last(Loaded, entries), base_step(entries)
    if loaded:
        return loaded.step
    if base is not None:
        return base
    if metrics:
        return metrics[0].step - 1
    return 0 if trainer == "builtin" else None
