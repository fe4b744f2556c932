"""The chain: one gapless sequence of claims and commits that decides who is in charge of a run and what is saved (CONTRACTS).

The only operation it needs of a store is "create this name, fail if it exists". No lock, lease or clock decides anything.
"""

import dataclasses
import json
import re
import secrets
import time
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import xxhash

from headway.runner.checkpoint.posix import create_exclusive, fsync_directory

SCHEMA = "headway.chain/1"
_NAME = re.compile(r"^(\d{9})\.json$")


class ChainError(Exception):
    """The chain has a gap, a broken link or a foreign record: nobody may append, a person looks (exit code 84)."""


class SupersededError(Exception):
    """A newer generation has claimed the run: whoever sees this stops (exit code 85)."""


class MovedError(Exception):
    """A commit, or the base's retirement, came after the base of a claim had been chosen: read the chain and choose again."""


@dataclass(frozen=True, order=True)
class CheckpointId:
    """Names one checkpoint of a run: the optimizer steps in it, and the generation that wrote it."""

    step: int
    generation: int

    @property
    def directory(self) -> str:
        return f"step-{self.step:09d}.g{self.generation:06d}"


@dataclass(frozen=True)
class Base:
    """What a generation starts from: a checkpoint with the hash of its manifest."""

    step: int
    generation: int
    manifest_xxh3_128: str
    tier: str = "disk"

    @property
    def checkpoint(self) -> CheckpointId:
        return CheckpointId(self.step, self.generation)


@dataclass(frozen=True)
class Claim:
    """Generation `Record.generation` is in charge and starts from `base` (None: from scratch)."""

    base: Base | None


@dataclass(frozen=True)
class Commit:
    """A checkpoint of `Record.generation` whose manifest is durable."""

    step: int
    manifest_xxh3_128: str
    tiers: tuple[str, ...] = ("disk",)


@dataclass(frozen=True)
class Retire:
    """Checkpoints that may be deleted from now on."""

    checkpoints: tuple[CheckpointId, ...]


@dataclass(frozen=True)
class End:
    """The run has ended with this verdict."""

    verdict: str


Entry = Claim | Commit | Retire | End


@dataclass(frozen=True)
class Record:
    run: str
    seq: int
    prev_xxh3_128: str
    generation: int
    attempt: int
    holder: str
    nonce: str
    made_at: float
    entry: Entry

    @property
    def kind(self) -> str:
        return type(self.entry).__name__.lower()

    def to_bytes(self) -> bytes:
        data = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name != "entry"}
        flat = {"schema": SCHEMA, "kind": self.kind, **data, **dataclasses.asdict(self.entry)}
        return json.dumps(flat, sort_keys=True).encode() + b"\n"


def _entry(data: dict[str, Any]) -> Entry:
    match data["kind"]:
        case "claim":
            return Claim(Base(**data["base"]) if data["base"] else None)
        case "commit":
            return Commit(data["step"], data["manifest_xxh3_128"], tuple(data["tiers"]))
        case "retire":
            return Retire(tuple(CheckpointId(**c) for c in data["checkpoints"]))
        case "end":
            return End(data["verdict"])
        case kind:
            raise ValueError(f"unknown kind {kind!r}")


def _record(raw: bytes) -> Record:
    data = json.loads(raw)
    if data["schema"] != SCHEMA:
        raise ValueError(f"schema {data['schema']!r} is not known here; expected {SCHEMA!r}")
    common = {f.name: data[f.name] for f in dataclasses.fields(Record) if f.name != "entry"}
    return Record(**common, entry=_entry(data))


# --- what the records mean --------------------------------------------------------------------------------------------


def newest_claim(records: Sequence[Record]) -> Record | None:
    return next((r for r in reversed(records) if isinstance(r.entry, Claim)), None)


def retired(records: Sequence[Record]) -> set[CheckpointId]:
    return {c for r in records if isinstance(r.entry, Retire) for c in r.entry.checkpoints}


def lineage(records: Sequence[Record]) -> list[Base]:
    """The checkpoints that count, newest first: along base pointers from the newest claim, so what was rolled back stays so."""
    claims = {r.generation: r.entry for r in records if isinstance(r.entry, Claim)}
    newest = newest_claim(records)
    generation, limit, found = (newest.generation if newest else 0), None, list[Base]()
    while generation in claims:
        own = [r.entry for r in records if r.generation == generation and isinstance(r.entry, Commit)]
        kept = [c for c in own if limit is None or c.step <= limit]
        found += [Base(c.step, generation, c.manifest_xxh3_128) for c in sorted(kept, key=lambda c: -c.step)]
        base = claims[generation].base
        if base is None:
            break
        generation, limit = base.generation, base.step
    return found


def newest_base(records: Sequence[Record], refused: AbstractSet[CheckpointId] = frozenset()) -> Base | None:
    """The newest checkpoint along the lineage that is neither retired nor refused; None if there is none."""
    gone = retired(records) | refused
    return next((base for base in lineage(records) if base.checkpoint not in gone), None)


def claims_without_commit(records: Sequence[Record]) -> int:
    """How many generations in a row, counted from the newest, have saved nothing: the crash-loop guard that outlives an attempt."""
    count = 0
    for record in reversed(records):
        if isinstance(record.entry, Commit):
            break
        count += isinstance(record.entry, Claim)
    return count


# --- reading and appending --------------------------------------------------------------------------------------------


class Chain:
    """The chain of `run` in a directory. Records never change, so what was read once is kept."""

    def __init__(self, directory: Path, run: str) -> None:
        self._directory = directory
        self._run = run
        self._records: list[Record] = []
        self._last = b""

    def read(self) -> list[Record]:
        """All records to the end. Raises ChainError at a gap, a broken link, or a record that is not this run's."""
        highest = self._highest()  # listed first: what others append while we read is no gap
        while (raw := self._bytes(len(self._records) + 1)) is not None:
            self._accept(raw)
        if len(self._records) < highest:
            raise ChainError(f"{self._path(len(self._records) + 1)} is missing, and {self._path(highest).name} exists")
        return list(self._records)

    def append(self, entry: Commit | Retire | End, generation: int, attempt: int, holder: str) -> Record:
        """Appends under `generation`. Raises SupersededError when a newer claim stands on the chain."""
        while True:
            newest = newest_claim(self.read())
            if newest is None or newest.generation != generation:
                raise SupersededError(f"generation {generation} was superseded by {newest.generation if newest else 'nothing'}")
            record = self._next(entry, generation, attempt, holder)
            if self._create(record):
                return record

    def claim(self, base: Base | None, attempt: int, holder: str) -> Record:
        """Claims the generation after the newest that the last `read` returned; `base` was chosen from that same reading.

        Raises SupersededError when somebody else has claimed since, MovedError when something was committed since, which a claim with
        this base would roll back, or when the base itself was retired.
        """
        newest = newest_claim(self._records)
        generation = newest.generation if newest else 0
        while True:
            known, record = len(self._records), self._next(Claim(base), generation + 1, attempt, holder)
            if self._create(record):
                return record
            since = self.read()[known:]
            if (other := newest_claim(since)) is not None:
                raise SupersededError(f"{other.holder} claimed generation {other.generation} first")
            if any(isinstance(r.entry, Commit) for r in since) or (base and base.checkpoint in retired(since)):
                raise MovedError(
                    f"generation {generation + 1} was to start from what counted at record {known}, and more was written"
                )

    def _next(self, entry: Entry, generation: int, attempt: int, holder: str) -> Record:
        previous = xxhash.xxh3_128_hexdigest(self._last)
        seq, nonce = len(self._records) + 1, secrets.token_hex(16)
        return Record(self._run, seq, previous, generation, attempt, holder, nonce, time.time(), entry)

    def _create(self, record: Record) -> bool:
        """True if the record stands on the chain. After a refusal or an unknown outcome it is ours only if the nonce is.

        Over NFS a link() whose first answer was lost is sent again and answered EEXIST, although the name is ours (nfs(5), link(2)).
        """
        try:
            created = create_exclusive(self._path(record.seq), record.to_bytes())
        except OSError:
            if self._bytes(record.seq) is None:
                raise
            created = False
        if not created:
            if self._bytes(record.seq) != record.to_bytes():
                return False
            fsync_directory(self._directory)
        self._accept(record.to_bytes())
        return True

    def _accept(self, raw: bytes) -> None:
        seq = len(self._records) + 1
        try:
            record = _record(raw)
        except (ValueError, KeyError, TypeError) as error:
            raise ChainError(f"{self._path(seq)} is not a chain record: {error}") from None
        if (record.run, record.seq) != (self._run, seq):
            raise ChainError(f"{self._path(seq)} says record {record.seq} of run {record.run!r}; expected {seq} of {self._run!r}")
        if record.prev_xxh3_128 != xxhash.xxh3_128_hexdigest(self._last):
            raise ChainError(f"{self._path(seq)} does not follow the record before it: prev_xxh3_128 differs")
        self._records.append(record)
        self._last = raw

    def _path(self, seq: int) -> Path:
        return self._directory / f"{seq:09d}.json"

    def _bytes(self, seq: int) -> bytes | None:
        try:
            return self._path(seq).read_bytes()
        except FileNotFoundError:
            return None

    def _highest(self) -> int:
        return max((int(m[1]) for m in map(_NAME.match, (p.name for p in self._directory.iterdir())) if m), default=0)
