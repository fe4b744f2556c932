"""Turns a run directory into the summary of its run: how it ended, what it learned, what failed and where the time went."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from msgspec import Struct

from headway.report.costs import FailureCost, costs, kind_of
from headway.report.directory import RunRecords, read_run
from headway.report.events import Event, events
from headway.report.history import GenerationHistory, generations, last
from headway.report.records import LedgerLine
from headway.report.throughput import PlannedStep, Throughput, throughput
from headway.runner.contract import LEDGER_BUCKETS, MetricsLine, RecordError, RunConfig, RunDirectory, from_json
from headway.runner.contract.journal import Claim, Committed, End, Failure, Finished, Refused, Retired

RUNNING = "running"
NOT_STARTED = "not started"
SCRIPT = "script"


class CurvePoint(NamedTuple):
    """One completed optimizer step; `stands` is False where a later generation went back behind it."""

    step: int
    loss: float
    generation: int
    stands: bool


class FailureSummary(Struct, frozen=True):
    """One failure and what it cost. None: not known, or not recovered from.

    `at_step` is the highest step completed before it, `resumed_in` the generation that resumed, `lost_steps` the distance to its
    `resumed_from_step`; `own_steps` are those since the start of a script, whose own count is unknown. `recovered_s` runs from the
    moment it was noticed to the first step completed by a later generation. `wall` in Unix seconds.
    """

    wall: float
    generation: int
    kind: str
    cause: str
    rank: int | None
    host: str | None
    at_step: int | None
    own_steps: int | None
    resumed_in: int | None
    resumed_from_step: int | None
    resumed_from_memory: bool
    lost_steps: int | None
    recovered_s: float | None


class RefusedCheckpoint(Struct, frozen=True):
    """A checkpoint that failed verification in the file `name`. `generation` saved it, `noticed_in` refused it."""

    wall: float
    step: int
    generation: int
    name: str
    reason: str
    noticed_in: int

    @property
    def path(self) -> str:
        """The file's place under the run's checkpoints."""
        return f"step-{self.step:09}.g{self.generation:06}/{self.name}"


class CommitSummary(Struct, frozen=True):
    """A committed checkpoint. `stands` is False where a later generation went back behind it, `resumed` where one loaded it.

    `retired`: deleted, since enough newer ones are kept.
    """

    wall: float
    step: int
    generation: int
    save_s: float
    bytes: int
    files: int | None
    stands: bool
    resumed: bool
    refused: bool
    retired: bool


class TimeSpan(Struct, frozen=True):
    """The ledger of one generation, or of a wait between two attempts (generation 0): seconds by bucket of the `slots` nodes that compute,
    with `spares` idle ones; Unix times."""

    generation: int
    attempt: int
    start: float
    end: float
    buckets: Mapping[str, float]
    slots: int = 1
    spares: int = 0


class RunSummary(Struct, frozen=True):
    """A run as a report shows it.

    `verdict` is `running` or `not started` while the newest attempt has none; `exit_code` is then None. `steps` is the highest
    completed step that is still valid. `wall_s` is the time that the ledger covers, first start to last end, or without a ledger the time
    between submission and the last record; `goodput` is productive seconds over `wall_s`, None without a ledger. `lost_s` is what
    the failures cost, `costs` the same by kind. `tokens_per_s` is over the valid
    steps, `throughput` over those after the warm-up, `planned_step` the planner's estimate, if one was made. Times of day are
    Unix seconds.
    """

    run: str
    job: str
    spec_hash: str
    trainer: str
    slots: int
    procs_per_slot: int
    world_size: int
    hosts: tuple[str, ...]
    submitted_at: float
    last_record_at: float
    verdict: str
    exit_code: int | None
    cause: str
    attempts: int
    generations: int
    steps: int
    planned_steps: int | None
    first_loss: float | None
    last_loss: float | None
    curve: tuple[CurvePoint, ...]
    failures: tuple[FailureSummary, ...]
    refused: tuple[RefusedCheckpoint, ...]
    commits: tuple[CommitSummary, ...]
    spans: tuple[TimeSpan, ...]
    buckets: Mapping[str, float]
    wall_s: float
    goodput: float | None
    lost_s: float | None
    costs: tuple[FailureCost, ...]
    events: tuple[Event, ...]
    tokens_per_s: float | None
    throughput: Throughput | None
    planned_step: PlannedStep | None
    hashes: Mapping[str, str] | None

    @property
    def not_recorded_s(self) -> float:
        """Seconds of `wall_s` that no bucket of the ledger holds."""
        return max(0.0, self.wall_s - sum(self.buckets.values()))

    @property
    def ettr(self) -> float | None:
        """The effective training time ratio: productive seconds over all but those in the queue; `goodput` counts these too."""
        running_s = self.wall_s - self.buckets.get("queue", 0.0)
        return None if self.goodput is None or running_s <= 0 else self.buckets.get("productive", 0.0) / running_s

    @property
    def spare_idle_s(self) -> float:
        """Node-seconds that spares stood by."""
        return sum(span.spares * (span.end - span.start) for span in self.spans)

    @property
    def node_s(self) -> float:
        """Node-seconds of the ledger: of the nodes that compute and of the spares."""
        return sum((span.slots + span.spares) * (span.end - span.start) for span in self.spans)


def summarize(directory: Path, planned: PlannedStep | None = None) -> RunSummary:
    """The summary of the run in `directory`, with the `planned` step to compare it with.

    Raises RunError for a directory that is no run or holds what no runner writes.
    """
    records = read_run(directory)
    history = generations(records)
    handle = records.handle
    standing = _standing_lines(history)
    config = _config(directory, records)
    failures = tuple(_failures(history))
    cost = costs(records.ledger, history, [(failure.kind, failure.recovered_s) for failure in failures])
    ending = _ending(records, history)
    walls = (handle.submitted_at, *_walls(records))
    wall_s = _wall_s(records.ledger, walls)
    buckets = _summed_buckets(records.ledger)
    return RunSummary(
        run=handle.run,
        job=handle.job,
        spec_hash=handle.spec_hash,
        trainer=handle.trainer,
        slots=handle.slots,
        procs_per_slot=handle.procs_per_slot,
        world_size=handle.world_size,
        hosts=_hosts(history),
        submitted_at=handle.submitted_at,
        last_record_at=max(walls),
        verdict=ending.verdict,
        exit_code=ending.exit_code,
        cause=ending.cause,
        attempts=len(set(records.attempts) | {generation.attempt for generation in history}),
        generations=len(history),
        steps=_steps(standing, history),
        planned_steps=records.handle.steps if config is None else config.last_step,
        first_loss=standing[0].loss if standing else None,
        last_loss=standing[-1].loss if standing else None,
        curve=tuple(_curve(history)),
        failures=failures,
        refused=tuple(_refused(history)),
        commits=tuple(_commits(history)),
        spans=tuple(_span(line) for line in records.ledger),
        buckets=buckets,
        wall_s=wall_s,
        goodput=buckets.get("productive", 0.0) / wall_s if records.ledger and wall_s > 0 else None,
        lost_s=_lost_s(cost),
        costs=cost,
        events=tuple(events(history)),
        tokens_per_s=_tokens_per_s(standing),
        throughput=throughput(standing, config),
        planned_step=planned,
        hashes=_hashes(history),
    )


def _span(line: LedgerLine) -> TimeSpan:
    return TimeSpan(line.generation, line.attempt, line.start, line.end, line.buckets, line.slots, line.spares)


def _config(directory: Path, records: RunRecords) -> RunConfig | None:
    """The configuration of the newest attempt; None where it cannot be read."""
    try:
        newest = RunDirectory(directory, max(records.attempts, default=0))
        return from_json(RunConfig, newest.run_json.read_text(encoding="utf-8"))
    except (OSError, RecordError, UnicodeDecodeError):
        return None


class _Ending(NamedTuple):
    verdict: str
    exit_code: int | None
    cause: str


def _ending(records: RunRecords, history: Sequence[GenerationHistory]) -> _Ending:
    """Return the end of the newest attempt: its verdict file, else the end in its journal."""
    newest = max((*records.attempts, *(generation.attempt for generation in history)), default=None)
    if newest is None:
        return _Ending(NOT_STARTED, None, "")
    if newest in records.verdicts:
        verdict = records.verdicts[newest]
        return _Ending(verdict.verdict, verdict.exit_code, verdict.cause)
    told = (entry for entries in records.journal.values() for entry in entries if isinstance(entry, End))
    end = max((entry for entry in told if entry.attempt in (newest, None)), key=lambda entry: entry.wall, default=None)
    if end:
        return _Ending(end.verdict, end.exit_code, end.cause)
    return _Ending(RUNNING if history else NOT_STARTED, None, "")


def _walls(records: RunRecords) -> Iterator[float]:
    yield from (entry.wall for entries in records.journal.values() for entry in entries)
    yield from (line.wall for line in records.metrics)
    yield from (wall for line in records.ledger for wall in (line.start, line.end))


def _wall_s(ledger: Sequence[LedgerLine], walls: Sequence[float]) -> float:
    if ledger:
        return max(line.end for line in ledger) - min(line.start for line in ledger)
    return max(walls) - min(walls)


def _summed_buckets(ledger: Sequence[LedgerLine]) -> dict[str, float]:
    """Seconds by bucket over all generations, in the contract's order; a bucket that the contract does not know comes last."""
    sums: dict[str, float] = {}
    for line in ledger:
        for name, seconds in line.buckets.items():
            sums[name] = sums.get(name, 0.0) + seconds
    order = [*(name for name in LEDGER_BUCKETS if name in sums), *sorted(sums.keys() - set(LEDGER_BUCKETS))]
    return {name: sums[name] for name in order}


def _hosts(history: Sequence[GenerationHistory]) -> tuple[str, ...]:
    """The hosts of the newest gang, in slot order."""
    starts = [generation.start for generation in history if generation.start]
    return (
        tuple(placed.host or f"node {placed.node}" for placed in sorted(starts[-1].nodes, key=lambda each: each.slot))
        if starts
        else ()
    )


def _standing_lines(history: Sequence[GenerationHistory]) -> list[MetricsLine]:
    return [line for generation in history for line in generation.metrics if line.step <= generation.stands_to]


def _steps(standing: Sequence[MetricsLine], history: Sequence[GenerationHistory]) -> int:
    finished = last(Finished, (entry for generation in history for entry in generation.entries))
    return max(standing[-1].step if standing else 0, finished.step if finished else 0)


def _tokens_per_s(standing: Sequence[MetricsLine]) -> float | None:
    seconds = sum(line.step_s for line in standing)
    return sum(line.tokens for line in standing) / seconds if seconds > 0 else None


def _curve(history: Sequence[GenerationHistory]) -> Iterator[CurvePoint]:
    for generation in history:
        for line in generation.metrics:
            yield CurvePoint(line.step, line.loss, generation.number, line.step <= generation.stands_to)


# --- failures ---------------------------------------------------------------------------------------------------------


def _failures(history: Sequence[GenerationHistory]) -> Iterator[FailureSummary]:
    for index, generation in enumerate(history):
        for failure in generation.failures:
            yield _failure(failure, generation, history[index + 1 :])


def _failure(failure: Failure, generation: GenerationHistory, later: Sequence[GenerationHistory]) -> FailureSummary:
    successor = _successor(later)
    at_step, resumed = _at_step(failure, generation), successor.resume_step if successor else None
    return FailureSummary(
        wall=failure.wall,
        generation=generation.number,
        kind=kind_of(failure),
        cause=failure.cause,
        rank=failure.rank,
        host=failure.host,
        at_step=at_step,
        own_steps=failure.step if at_step is None else None,
        resumed_in=successor.number if successor else None,
        resumed_from_step=resumed,
        resumed_from_memory=successor is not None and successor.is_from_memory,
        lost_steps=_lost_steps(generation, at_step, resumed),
        recovered_s=_recovered_s(failure, later),
    )


def _at_step(failure: Failure, generation: GenerationHistory) -> int | None:
    if generation.metrics:
        return max(line.step for line in generation.metrics)
    if generation.is_script or generation.resume_step is None:
        # A script's steps are counted from its start, as its optimizer's.
        return None
    return max(generation.resume_step, failure.step or 0)


def _successor(later: Sequence[GenerationHistory]) -> GenerationHistory | None:
    """The next gang that got its state; while none has, the newest that tries."""
    return next((generation for generation in later if generation.loaded), later[-1] if later else None)


def _lost_steps(generation: GenerationHistory, at_step: int | None, resumed: int | None) -> int | None:
    if at_step is None or resumed is None:
        return None
    # A gang that never got its base lost nothing of its own: the failure before it counts what the older base costs.
    if generation.base_step is not None and not generation.loaded:
        return 0
    return max(0, at_step - resumed)


def _recovered_s(failure: Failure, later: Sequence[GenerationHistory]) -> float | None:
    first = next((line for generation in later for line in generation.metrics), None)
    return max(0.0, first.wall - failure.wall) if first else None


def _lost_s(cost: Sequence[FailureCost]) -> float | None:
    known = [each.seconds for each in cost if each.seconds is not None]
    return sum(known) if len(known) == len(cost) else None


# --- checkpoints ------------------------------------------------------------------------------------------------------


def _refused(history: Sequence[GenerationHistory]) -> Iterator[RefusedCheckpoint]:
    for noticed in history:
        for entry in noticed.entries:
            if isinstance(entry, Refused):
                yield RefusedCheckpoint(entry.wall, entry.step, entry.generation, entry.name, entry.reason, noticed.number)


def _commits(history: Sequence[GenerationHistory]) -> Iterator[CommitSummary]:
    refused = {(checkpoint.step, checkpoint.generation) for checkpoint in _refused(history)}
    resumed, gone = set(_bases(history)), set(_retired(history))
    for generation in history:
        for entry in generation.entries:
            if isinstance(entry, Committed):
                key = (entry.step, generation.number)
                stands = entry.step <= generation.stands_to
                yield CommitSummary(
                    entry.wall, *key, entry.save_s, entry.bytes, entry.files, stands, key in resumed, key in refused, key in gone
                )


def _retired(history: Sequence[GenerationHistory]) -> Iterator[tuple[int, int]]:
    for generation in history:
        for entry in generation.entries:
            if isinstance(entry, Retired):
                yield from ((name.step, name.generation) for name in entry.checkpoints)


def _bases(history: Sequence[GenerationHistory]) -> Iterator[tuple[int, int]]:
    """The checkpoints, by step and generation, that a gang really loaded."""
    for generation in history:
        claim = last(Claim, generation.entries)
        if claim and claim.base and generation.loaded and generation.resume_step == claim.base.step:
            yield claim.base.step, claim.base.generation


def _hashes(history: Sequence[GenerationHistory]) -> Mapping[str, str] | None:
    finished = last(Finished, (entry for generation in history for entry in generation.entries))
    return finished.hashes if finished else None
