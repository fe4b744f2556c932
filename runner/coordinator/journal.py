"""Writes a coordinator's records: journal, ledger and verdict. Calls may wait for the store; one thread makes them, in order."""

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from headway.runner.checkpoint.chain import Chain, ChainError, End, SupersededError
from headway.runner.contract import Exit, RunConfig, RunDirectory, Verdict, read_verdict, to_json
from headway.runner.contract.journal import Hang, line_of
from headway.runner.coordinator.causes import Cause
from headway.runner.coordinator.events import Finish, Note
from headway.runner.coordinator.strikes import strike
from headway.runner.goodput.ledger import Account, Book, StepTime
from headway.runner.lines import append_line, cut_torn_line, read_last, read_lines
from headway.runner.posix import create_exclusive
from headway.runner.rundir import write_exclude
from headway.runner.suspects import file_of, record

_log = logging.getLogger(__name__)

LEDGER_SCHEMA = "headway.ledger/1"
EVIDENCE_NAMED = 64  # files
# Of the list of a script's saves on a host: some 5,000 saves.
SAVED_BYTES = 1 << 20


class Journal:
    """Of one attempt. Only the verdict decides anything: what else a disk does not take costs that line, never the run."""

    def __init__(self, config: RunConfig, directory: RunDirectory) -> None:
        for path in (directory.ledger, *directory.journal_files().values()):
            cut_torn_line(path)
        self._config, self._directory = config, directory
        # Lines of the newest generation's journal.
        self._known: set[str] = set()
        self._journal = -1
        # The newest generation whose ledger is closed.
        self._accounted = 0
        self._metrics_read = 0
        self.seconds: dict[str, float] = {}  # by bucket, of this attempt
        self._book = Book(0.0, script=config.trainer.kind == "script")
        self._book.until = self._open_ledger()

    # --- the journal --------------------------------------------------------------------------------------------------

    def line(self, note: Note, wall: float) -> dict[str, Any]:
        """Return the journal's line for `note`; that of a hang names its evidence."""
        entry = note.entry
        if isinstance(entry, Hang):
            entry = replace(entry, evidence=tuple(self.evidence(entry.ranks)))
        line: dict[str, Any] = json.loads(
            json.dumps(line_of(entry, wall, note.generation, self._directory.attempt), default=vars)
        )
        return line

    def note(self, generation: int, line: Mapping[str, Any]) -> None:
        """Append the line unless the journal has it: after each connection an agent repeats what may not have arrived."""
        path = self._directory.journal(generation)
        try:
            if self._journal != generation:
                self._journal, self._known = generation, {_without_wall(known) for known, _ in read_lines(path)}
            if (text := _without_wall(line)) not in self._known:
                append_line(path, line)
                self._known.add(text)
        except OSError as error:
            _complain(path, error)

    def excuse(self, why: str) -> None:
        """Record for the batch script that the attempt counts as no failed start."""
        try:
            create_exclusive(self._directory.excused, f"{why}\n".encode())
        except OSError as error:
            _complain(self._directory.excused, error)

    def strike(self, cause: Cause, wall: float) -> None:
        """Record a strike against the host of the failure, which outlives this run."""
        assert self._config.run is not None  # noqa: S101  set when the run directory was made
        against = strike(cause, self._config.run, wall)
        if against is None or self._config.cluster is None:
            return
        path = file_of(self._directory.root.parent, self._config.cluster)
        try:
            record(path, against)
        except OSError as error:
            _complain(path, error)

    def evidence(self, ranks: Sequence[int] = ()) -> list[str]:
        """Files below the run directory that show what processes did before they were ended, those of `ranks` first."""
        folder = self._directory.evidence
        try:
            found = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
        except OSError:
            return []
        first = [name for rank in ranks if (name := self._directory.stacks(rank).name) in found]
        names = [*first, *(name for name in found if name not in first)]
        return [str((folder / name).relative_to(self._directory.root)) for name in names[:EVIDENCE_NAMED]]

    # --- the verdict --------------------------------------------------------------------------------------------------

    def decide(self, finish: Finish, generation: int, chain: Chain) -> Verdict:
        """Write and return the attempt's verdict; if it has one already, return that."""
        verdict = self._verdict(finish, generation)
        # Before the verdict, which a batch script reads as soon as it is there. A record that is damaged must not cost the verdict.
        try:
            write_exclude(self._directory, verdict)
        except (OSError, ValueError, KeyError) as error:
            _complain(self._directory.exclude, error)
        try:
            if not create_exclusive(self._directory.verdict, to_json(verdict, indent=2).encode() + b"\n"):
                return read_verdict(self._directory) or verdict
        except OSError as error:  # the agents get the code all the same
            _complain(self._directory.verdict, error)
        if finish.exit_code is Exit.COMPLETED:
            try:
                chain.append(End(verdict.verdict), generation, self._directory.attempt, "coordinator")
            except (ChainError, SupersededError, OSError) as error:
                _log.error("the end of the run could not be recorded: %s", error)
        return verdict

    def _verdict(self, finish: Finish, generation: int) -> Verdict:
        failure = finish.failure
        assert self._config.run is not None  # noqa: S101  set when the run directory was made
        return Verdict(
            run=self._config.run,
            attempt=self._directory.attempt,
            generation=generation,
            verdict=finish.exit_code.name.lower(),
            cause=finish.cause,
            exit_code=int(finish.exit_code),
            rank=failure.rank if failure else None,
            node=failure.node if failure else None,
            suspects=finish.suspects,
            step=finish.step,
            committed_step=finish.committed_step,
            evidence=() if failure is None else tuple(self.evidence(() if failure.rank is None else (failure.rank,))),
        )

    # --- the ledger ---------------------------------------------------------------------------------------------------

    def account(self, generation: int, end: float, seen: Sequence[tuple[int, float]], slots: int, spares: int) -> None:
        """Closes the ledger of the generation that has ended at `end` (Unix seconds)."""
        if generation <= self._accounted:
            return
        self._accounted = generation
        try:
            steps = list(self._new_steps(generation))
            journal = [line for line, _ in read_lines(self._directory.journal(generation))]
        except OSError as error:
            # Its seconds then stand in the next generation's account.
            _log.error("generation %s is missing in the ledger: %s", generation, error)
            return
        closed = self._book.close(end, journal, steps, seen, saves=self._saves(), slots=slots, spares=spares)
        self._write_account(generation, closed)

    def _saves(self) -> list[float]:
        """When (Unix seconds) the run's script has saved something, by the host that has done so last: all do it at once, or one does."""
        files = [file for file in self._directory.saved.glob("*.jsonl") if file.exists()]
        newest = max(files, key=lambda file: file.stat().st_mtime_ns, default=None)
        return [] if newest is None else [line["wall"] for line in read_last(newest, SAVED_BYTES)]

    def _write_account(self, generation: int, closed: Account) -> None:
        for bucket, seconds in closed.buckets.items():
            self.seconds[bucket] = self.seconds.get(bucket, 0.0) + seconds
        line = {"schema": LEDGER_SCHEMA, "attempt": self._directory.attempt, "generation": generation, **asdict(closed)}
        try:
            append_line(self._directory.ledger, line)
        except OSError as error:
            _complain(self._directory.ledger, error)

    def _open_ledger(self) -> float:
        """Where this coordinator's accounting begins; the time between two attempts was spent in the queue."""
        lines = [line for line, _ in read_lines(self._directory.ledger)]
        if lines and lines[-1]["attempt"] == self._directory.attempt:
            self._accounted = lines[-1]["generation"]
            return float(lines[-1]["end"])
        began = self._directory.run_json.stat().st_mtime
        if lines:
            before = min(float(lines[-1]["end"]), began)
            self._write_account(0, Account(before, began, {"queue": began - before}))
        return began

    def _new_steps(self, generation: int) -> Iterator[StepTime]:
        """Steps written to metrics.jsonl since the last call, of this generation only."""
        for line, read in read_lines(self._directory.metrics, self._metrics_read):
            self._metrics_read = read
            if line["generation"] == generation:
                yield StepTime(line["step"], line["step_s"], line["save_s"], line["wall"])
            else:
                self._book.best = max(self._book.best, line["step"])


def _without_wall(line: Mapping[str, Any]) -> str:
    return json.dumps({key: value for key, value in line.items() if key != "wall"}, sort_keys=True)


def _complain(path: Path, error: Exception) -> None:
    _log.error("%s: %s", path, error)
