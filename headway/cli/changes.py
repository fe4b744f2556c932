"""Compares a job's edited document with one of its runs: lists the changes that the next attempt takes up."""

import json
import math
from collections import Counter
from collections.abc import Iterator, Sequence, Set
from pathlib import Path as FilePath
from typing import Any

from headway.compile import Problems
from headway.compile.problems import located
from headway.jobspec.change import How, as_written
from headway.jobspec.check.run import RunSoFar, changes_since, check_run, new_entries
from headway.jobspec.document import Path
from headway.jobspec.parse import Parsed
from headway.jobspec.problem import Problem, printable
from headway.jobspec.spec.history import takes_effect_at
from headway.jobspec.spec.job import TrainingJob
from headway.jobspec.spec.section import API_VERSION
from headway.report.directory import RunError, RunRecords, find_run, read_run
from headway.report.history import base_step, last
from headway.runner.contract import RunDirectory
from headway.runner.contract.journal import Claim, Committed, Retired

_SECRET = "HW215"


def run_so_far(name: str, folders: Sequence[FilePath]) -> RunSoFar:
    """The run of that name, or in that directory. Raises RunError when there is none, or when it kept no spec."""
    directory = find_run(name, folders)
    records = read_run(directory)
    kept = {attempt: RunDirectory(directory, attempt).spec for attempt in reversed(records.attempts)}
    attempt = next((attempt for attempt, file in kept.items() if file.is_file()), None)
    if attempt is None:
        raise RunError(f"run `{records.handle.run}` has no recorded spec to compare with: an older headway started it")
    spec = _spec(kept[attempt])
    # A coordinator that claimed has gone back as the history of its attempt demands.
    claimed = {entry.attempt for entries in records.journal.values() for entry in entries if isinstance(entry, Claim)}
    carried_out = _gone_back_by(spec) if attempt in claimed else 0
    return RunSoFar(records.handle.run, attempt, spec, _committed_step(records), _standing(records), carried_out)


def judge(job: Parsed[TrainingJob], run: RunSoFar, known: Problems) -> tuple[list[str], list[Problem]]:
    """Lines about what the run's next attempt takes up, and problems of what it cannot; `known` are the problems of the documents."""
    # Both sides of a difference are shown, and a secret must not be.
    if not job.complete or any(problem.code == _SECRET for problem in known):
        return [f"not compared with run `{run.name}`: the job has errors"], []
    problems = located(check_run(job, run), job)
    refused = {problem.path for problem in problems}
    taken = [*_anytime(job, run), *_said(job.spec, run, refused)]
    where = f"run `{run.name}`, step {run.committed_step}"
    if not taken:
        return [] if refused else [f"{where}: nothing has changed since its attempt {run.attempt}"], problems
    return [f"{where}, what has changed since its attempt {run.attempt}:", *(f"  {printable(line)}" for line in taken)], problems


def _spec(file: FilePath) -> dict[str, Any]:
    try:
        spec = json.loads(file.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise RunError(f"{file}: not the spec of an attempt: {error}") from None
    version = spec.get("apiVersion") if isinstance(spec, dict) else None
    if not isinstance(spec, dict) or version != API_VERSION:
        raise RunError(f"{file}: unknown apiVersion `{version}` of a spec; expected `{API_VERSION}`")
    return spec


def _committed_step(records: RunRecords) -> int:
    """The newest committed step of the newest generation, else the one that it started from; 0 before any."""
    for _, entries in sorted(records.journal.items(), reverse=True):
        committed = [entry.step for entry in entries if isinstance(entry, Committed)]
        if committed or any(isinstance(entry, Claim) for entry in entries):
            return max(committed, default=base_step(entries) or 0)
    return 0


def _gone_back_by(spec: dict[str, Any]) -> int:
    """Return how many entries of the history a claim by this spec implements: those up to the last that goes back."""
    entries = enumerate(spec.get("history") or [], 1)
    return max((number for number, entry in entries if entry["rollback_to"] is not None), default=0)


def _standing(records: RunRecords) -> tuple[int, ...]:
    """The steps of the checkpoints that the newest generation can go back to: along its base, and not deleted from every tier. Empty where
    the journal does not show it."""
    journal = records.journal
    saved = Counter((entry.step, number) for number in journal for entry in journal[number] if isinstance(entry, Committed))
    retired = (entry.checkpoints for entries in journal.values() for entry in entries if isinstance(entry, Retired))
    saved.subtract((each.step, each.generation) for checkpoints in retired for each in checkpoints)
    found, number, until = set[int](), max(journal, default=0), math.inf
    while number in journal:
        found |= {step for (step, of), left in saved.items() if of == number and step <= until and left > 0}
        claim = last(Claim, journal[number])
        if claim is None:
            # Lost: its base is unknown, and so is everything before.
            return ()
        if claim.base is None or claim.base.generation >= number:
            break
        number, until = claim.base.generation, claim.base.step
    return tuple(sorted(found))


def _anytime(job: Parsed[TrainingJob], run: RunSoFar) -> Iterator[str]:
    """Yield the fields that may change at any time; `history` is reported entry by entry."""
    for change in changes_since(run, job):
        if change.how is How.ANYTIME and change.path != ("history",):
            old, new = as_written(change.path, change.old), as_written(change.path, change.new)
            yield f"{change.name}: {old} -> {new} at the next attempt ({change.reason})"


def _said(job: TrainingJob, run: RunSoFar, refused: Set[Path]) -> Iterator[str]:
    """The new entries of `history` that nothing was found against."""
    for index in new_entries(run, job):
        if any(path[:2] == ("history", index) for path in refused):
            continue
        entry = job.history[index]
        values = [f"{name}: {as_written((), value)}" for name, value in entry.set.items()]
        skipped = [f"{entry.skip_samples} samples skipped"] if entry.skip_samples else []
        back = [] if entry.rollback_to is None else [f"back to step {entry.rollback_to}{_undone(job, index)}"]
        yield f"history[{index}]: from step {entry.from_step} on: {', '.join([*back, *skipped, *values]) or 'nothing'}"


def _undone(job: TrainingJob, index: int) -> str:
    """The entries before, in words, that going back makes not to have been."""
    back = job.history[index].rollback_to
    undone = [
        f"history[{number}]" for number in range(index) if back is not None and takes_effect_at(job.history[number]) >= back
    ]
    return f", which undoes {', '.join(undone)}" if undone else ""
