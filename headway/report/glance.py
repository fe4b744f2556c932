"""Reads the few facts of a run that a list of runs shows, without its whole history."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from msgspec import Struct
from pydantic import TypeAdapter, ValidationError

from headway.report.records import Handle, LedgerLine
from headway.runner.contract import MetricsLine, RecordError, RunConfig, RunDirectory, Verdict, from_json, read_verdict
from headway.runner.contract.journal import Entry, Failure, Finished, Hang, Start, read_entry

_METRICS_LINE = TypeAdapter(MetricsLine)
_TAIL_BYTES = 64 * 1024
# The rate is over the newest steps of the newest generation.
_RATE_STEPS = 20


class Glance(Struct, frozen=True):
    """A run at a moment. None: not known, or not yet.

    `step` is the newest completed step of `steps`; `steps_per_s` the rate of the newest ones; `goodput` the productive share of the time
    that the ledger covers, without the generation that runs. `attempt` is the newest one, and `verdict` its. `failure` is the newest
    failure of all attempts, and `hosts` are those of the newest start, by slot. `recorded_at` in Unix seconds.
    """

    run: str
    job: str
    trainer: str
    world_size: int | None
    procs_per_slot: int | None
    submitted_at: float
    recorded_at: float
    attempt: int | None
    verdict: Verdict | None
    step: int | None
    steps: int | None
    steps_per_s: float | None
    loss: float | None
    goodput: float | None
    hosts: tuple[str, ...]
    failure: Failure | None

    @property
    def cause(self) -> str:
        """Return the last cause in a line: of the verdict, else of the newest failure; empty without either."""
        if self.verdict is not None and self.verdict.exit_code:
            return self.verdict.cause
        if self.failure is None:
            return ""
        rank = "" if self.failure.rank is None else f", rank {self.failure.rank}"
        host = f" on {self.failure.host}" if self.failure.host else ""
        return f"{self.failure.cause}{rank}{host}"


def glance(directory: RunDirectory) -> Glance | None:
    """Return the facts; None for a run that no attempt has begun. A record that cannot be read counts as missing."""
    attempts = directory.attempt_numbers()
    if (handle := _handle(directory) or _handle_of_script(directory, attempts)) is None:
        return None
    newest = directory.at(attempts[-1]) if attempts else directory
    entries = list(_entries(directory))
    metrics = list(_metrics(directory.metrics))
    finished = [entry.step for entry in entries if isinstance(entry, Finished)]
    failures = [entry for entry in entries if isinstance(entry, Failure)]
    starts = [entry for entry in entries if isinstance(entry, Start)]
    verdict = read_verdict(newest) if attempts else None
    ledger = list(_ledger(directory.ledger))
    walls = [handle.submitted_at, *(entry.wall for entry in entries[-1:]), *(line.wall for line in metrics[-1:])]
    return Glance(
        run=handle.run,
        job=handle.job,
        trainer=handle.trainer,
        world_size=handle.world_size or None,
        procs_per_slot=handle.procs_per_slot or None,
        submitted_at=handle.submitted_at,
        recorded_at=max(walls),
        attempt=attempts[-1] if attempts else None,
        verdict=verdict,
        step=max([*(line.step for line in metrics[-1:]), *finished[-1:]], default=None),
        steps=_planned(newest, handle),
        steps_per_s=_rate(metrics),
        loss=metrics[-1].loss if metrics else None,
        goodput=_goodput(ledger),
        hosts=tuple(each.host or f"node {each.node}" for each in sorted(starts[-1].nodes, key=lambda each: each.slot))
        if starts
        else (),
        failure=max(failures, key=lambda entry: entry.wall, default=None),
    )


def newest_hang(directory: RunDirectory) -> Hang | None:
    """Return the newest hang of the run's newest generations."""
    return next((entry for entry in reversed(list(_entries(directory))) if isinstance(entry, Hang)), None)


def _handle(directory: RunDirectory) -> Handle | None:
    try:
        return Handle.model_validate_json(directory.handle.read_bytes())
    except (OSError, ValidationError):
        return None


def _handle_of_script(directory: RunDirectory, attempts: tuple[int, ...]) -> Handle | None:
    """Return what is known of a run whose attempts a batch script has opened, and whose runner has not started yet; None without any."""
    if not attempts:
        return None
    name = directory.root.name
    opened_at = directory.at(attempts[0]).attempt_directory.stat().st_mtime
    return Handle(
        run=name,
        job=name.rsplit("-", 2)[0],
        spec_hash="",
        slots=0,
        procs_per_slot=0,
        world_size=0,
        steps=None,
        trainer="",
        submitted_at=opened_at,
    )


def _planned(newest: RunDirectory, handle: Handle) -> int | None:
    try:
        return from_json(RunConfig, newest.run_json.read_text(encoding="utf-8")).last_step
    except (OSError, RecordError, UnicodeDecodeError):
        return handle.steps


def _rate(metrics: list[MetricsLine]) -> float | None:
    newest = [line for line in metrics if line.generation == metrics[-1].generation][-_RATE_STEPS:]
    seconds = sum(line.step_s + line.save_s for line in newest)
    return len(newest) / seconds if seconds > 0 else None


def _goodput(ledger: list[LedgerLine]) -> float | None:
    if not ledger:
        return None
    wall_s = max(line.end for line in ledger) - min(line.start for line in ledger)
    return sum(line.buckets.get("productive", 0.0) for line in ledger) / wall_s if wall_s > 0 else None


def _metrics(path: Path) -> Iterator[MetricsLine]:
    for line in _tail(path):
        try:
            yield _METRICS_LINE.validate_json(line, strict=True)
        except ValidationError:
            continue


def _ledger(path: Path) -> Iterator[LedgerLine]:
    for line in _lines(path):
        try:
            yield LedgerLine.model_validate_json(line)
        except ValidationError:
            continue


def _entries(directory: RunDirectory) -> Iterator[Entry]:
    for path in directory.journal_files().values():
        for line in _lines(path):
            if (data := _object(line)) is None:
                continue
            try:
                yield read_entry(data)
            except RecordError:
                continue


def _object(line: bytes) -> dict[str, Any] | None:
    try:
        data = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return data if isinstance(data, dict) else None


def _lines(path: Path) -> list[bytes]:
    """The complete lines of the file; none without one."""
    try:
        return path.read_bytes().split(b"\n")[:-1]
    except OSError:
        return []


def _tail(path: Path) -> list[bytes]:
    """The complete lines at the end of the file."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - _TAIL_BYTES))
            lines = file.read().split(b"\n")[:-1]
    except OSError:
        return []
    return lines if size <= _TAIL_BYTES else lines[1:]
