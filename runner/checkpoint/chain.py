"""Keeps the chain: one gapless sequence of claims and commits that decides who owns a run and what is saved (docs/records.md).

The only operation it needs of a store is "create this name, fail if it exists". No lock, lease or clock decides anything.
"""

import dataclasses
import errno
import json
import re
import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import xxhash

from headway.runner.checkpoint.stores import Store
from headway.runner.contract import STORED_TIERS, Base, CheckpointId

SCHEMA = "headway.chain/2"
# Concurrent requests, and records per batch, when a long chain is read for the first time.
READERS, BATCH = 32, 1024
# Waits for a store that lists a record and does not return it yet.
STALE_WAITS_S = (0.05, 0.1, 0.2, 0.4, 0.8, 1.6)
_NAME = re.compile(r"^(\d{9})\.json$")


class ChainError(Exception):
    """The chain has a gap, a broken link or a foreign record: nothing may be appended until a person has looked (exit
    code 84)."""


class SupersededError(Exception):
    """A newer generation has claimed the run: this process must stop (exit code 85)."""


class MovedError(Exception):
    """A commit, or the retirement of the base, came after the base of a claim was chosen: read the chain and choose again."""


class CommittedError(Exception):
    """The step was already committed in this generation, as another checkpoint, and that one counts."""


@dataclass(frozen=True)
class Committed:
    """A checkpoint that counts. `tiers` are those that hold it (committed there and not retired), the preferred one first."""

    step: int
    generation: int
    manifest_xxh3_128: str
    tiers: tuple[str, ...]

    @property
    def checkpoint(self) -> CheckpointId:
        return CheckpointId(self.step, self.generation)

    def on(self, tier: str) -> Base:
        return Base(self.step, self.generation, self.manifest_xxh3_128, tier)


@dataclass(frozen=True)
class Claim:
    """Generation `Record.generation` is in charge and starts from `base` (None: from scratch).

    `groups` has a counter per replica group. A further claim of the same generation raises one of them when that group
    restarts. `history_entries` is the number of entries of the spec's history that the generation has applied.
    `rolled_back`: the base is older than the newest commit because of the history, not because of damage.
    """

    base: Base | None
    groups: tuple[int, ...] = (0,)
    history_entries: int = 0
    rolled_back: bool = False


@dataclass(frozen=True)
class Commit:
    """A checkpoint of `Record.generation` whose manifest is durable on `tiers`, written by replica group `group` under
    `counter`.

    A step of a generation is one checkpoint, whichever group commits it; a further commit of it with the same manifest
    adds tiers.
    """

    step: int
    manifest_xxh3_128: str
    tiers: tuple[str, ...] = ("shared",)
    group: int = 0
    counter: int = 0


@dataclass(frozen=True)
class Retire:
    """Checkpoints that may be deleted from `tiers` from now on."""

    checkpoints: tuple[CheckpointId, ...]
    tiers: tuple[str, ...] = ("shared",)


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


def _entry(data: Mapping[str, Any]) -> Entry:
    match data["kind"]:
        case "claim":
            base = Base(**data["base"]) if data["base"] else None
            return Claim(base, tuple(data["groups"]), data["history_entries"], data["rolled_back"])
        case "commit":
            return Commit(data["step"], data["manifest_xxh3_128"], tuple(data["tiers"]), data["group"], data["counter"])
        case "retire":
            return Retire(tuple(CheckpointId(**c) for c in data["checkpoints"]), tuple(data["tiers"]))
        case "end":
            return End(data["verdict"])
        case kind:
            raise ValueError(f"unknown kind {kind!r}")


def _record(raw: bytes) -> Record:
    data = json.loads(raw)
    if data["schema"] != SCHEMA:
        raise ValueError(f"unknown schema {data['schema']!r}; expected {SCHEMA!r}")
    common = {f.name: data[f.name] for f in dataclasses.fields(Record) if f.name != "entry"}
    return Record(**common, entry=_entry(data))


# --- what the records mean --------------------------------------------------------------------------------------------


def newest_claim(records: Sequence[Record]) -> Record | None:
    return next((r for r in reversed(records) if isinstance(r.entry, Claim)), None)


def retired(records: Iterable[Record]) -> set[tuple[CheckpointId, str]]:
    """Return which checkpoints may be deleted from which tier. A retirement is final, whatever is committed later."""
    return {(c, t) for r in records if isinstance(r.entry, Retire) for c in r.entry.checkpoints for t in r.entry.tiers}


def lineage(records: Sequence[Record]) -> list[Committed]:
    """Return the checkpoints that count, newest first: along base pointers from the newest claim, so rolled-back ones
    stay out.

    A checkpoint that was retired everywhere stays in the list, without tiers.
    """
    commits, gone = _commits(records), retired(records)
    found = []
    for generation, last in _path(records):
        for step, manifest, tiers in commits.get(generation, []):
            if last is None or step <= last:
                left = {tier for tier in tiers if (CheckpointId(step, generation), tier) not in gone}
                found.append(Committed(step, generation, manifest, tuple(sorted(left, key=_preference))))
    return found


def newest_base(
    records: Sequence[Record], refused: AbstractSet[tuple[CheckpointId, str]] = frozenset(), at_most_step: int | None = None
) -> Base | None:
    """Return the newest checkpoint of the lineage, up to `at_most_step`, on its best tier that is neither retired nor refused."""
    for committed in lineage(records):
        if at_most_step is None or committed.step <= at_most_step:
            for tier in committed.tiers:
                if (committed.checkpoint, tier) not in refused:
                    return committed.on(tier)
    return None


def newest_held_base(
    records: Sequence[Record], holdings: Mapping[CheckpointId, str], refused: AbstractSet[tuple[CheckpointId, str]] = frozenset()
) -> Base | None:
    """Return the newest capture in the nodes' memory that counts: neither its own generation nor a later one rolled it
    back.

    `holdings`: the captures that all ranks have, with the hash of the manifest that follows from their parts.
    """
    path = dict(_path(records))
    counting = [c for c in holdings if _counts(path, c) and (c, "memory") not in refused]
    newest = max(counting, default=None)
    return Base(newest.step, newest.generation, holdings[newest], "memory") if newest else None


def claims_without_commit(records: Sequence[Record]) -> int:
    """Return how many claims in a row, counted from the newest, have saved nothing: the crash-loop guard across
    attempts.

    A claim that starts from an in-memory capture of the previous generation counts as proof of that save.
    """
    count = 0
    for record in reversed(records):
        if isinstance(record.entry, Commit):
            break
        if isinstance(record.entry, Claim):
            count += 1
            if (base := record.entry.base) is not None and base.tier == "memory" and base.generation == record.generation - 1:
                break
    return count


def adoption(
    records: Sequence[Record], found: Iterable[Committed], newest_generation: int = 0
) -> list[tuple[int, Claim | Commit]]:
    """Return the claims and commits that rebuild a chain from the checkpoints `found`, then a claim above everything
    seen.

    `records` are the readable records of the old chain, from its beginning; their rollbacks and retirements remain in
    force. After them, each generation is assumed to start from the newest checkpoint before its own first one.
    `newest_generation` is the highest one in any other source. Each entry comes with its generation.
    """
    gone, path = retired(records), dict(_path(records))
    known = {r.generation for r in records if isinstance(r.entry, Claim)}
    counting = [c for c in found if c.generation not in known or _counts(path, c.checkpoint)]
    left = [dataclasses.replace(c, tiers=tuple(t for t in c.tiers if (c.checkpoint, t) not in gone)) for c in counting]
    wanted = [c for c in left if c.tiers]
    return _founding(wanted, max([newest_generation, *known, *(c.generation for c in wanted)]), history_entries(records))


def _founding(found: Sequence[Committed], newest: int, history_entries: int) -> list[tuple[int, Claim | Commit]]:
    entries: list[tuple[int, Claim | Commit]] = []
    standing: list[Committed] = []
    for generation, group in groupby(sorted(found, key=lambda c: (c.generation, c.step)), key=lambda c: c.generation):
        own = list(group)
        standing = [c for c in standing if c.step < own[0].step]
        entries.append((generation, Claim(_last_base(standing))))
        entries += [(generation, Commit(c.step, c.manifest_xxh3_128, c.tiers)) for c in own]
        standing += own
    return [*entries, (newest + 1, Claim(_last_base(standing), history_entries=history_entries))]


def _last_base(standing: Sequence[Committed]) -> Base | None:
    return standing[-1].on(min(standing[-1].tiers, key=_preference)) if standing else None


def history_entries(records: Sequence[Record]) -> int:
    """Return how many entries of the spec's history the claims have applied."""
    return max((r.entry.history_entries for r in records if isinstance(r.entry, Claim)), default=0)


def _commits(records: Iterable[Record]) -> dict[int, list[tuple[int, str, set[str]]]]:
    """Return generation -> (step, manifest hash, tiers) of each of its checkpoints, the newest first."""
    merged: dict[CheckpointId, tuple[str, set[str]]] = {}
    for record in records:
        if isinstance(commit := record.entry, Commit):
            _, tiers = merged.setdefault(CheckpointId(commit.step, record.generation), (commit.manifest_xxh3_128, set()))
            tiers.update(commit.tiers)
    found: dict[int, list[tuple[int, str, set[str]]]] = {}
    for at in sorted(merged, reverse=True):
        found.setdefault(at.generation, []).append((at.step, *merged[at]))
    return found


def _path(records: Sequence[Record]) -> list[tuple[int, int | None]]:
    """Return the generations along base pointers from the newest claim, each with its last step that counts (None:
    every step)."""
    bases: dict[int, Base | None] = {}
    for record in records:
        if isinstance(record.entry, Claim):
            bases.setdefault(record.generation, record.entry.base)
    generation, last, path = max(bases, default=0), None, list[tuple[int, int | None]]()
    while generation in bases:
        path.append((generation, last))
        if (base := bases[generation]) is None:
            break
        generation, last = base.generation, base.step
    return path


def _counts(path: Mapping[int, int | None], checkpoint: CheckpointId) -> bool:
    if checkpoint.generation not in path:
        return False
    last = path[checkpoint.generation]
    return last is None or checkpoint.step <= last


def _preference(tier: str) -> tuple[int, str]:
    return (STORED_TIERS.index(tier) if tier in STORED_TIERS else len(STORED_TIERS), tier)


# --- reading and appending --------------------------------------------------------------------------------------------


class Chain:
    """The chain of `run` in a store. Records never change, so each is read once and kept.

    Every method raises ChainError when the chain is damaged, and OSError when the store cannot be used or does not
    return a record that it lists. After an OSError a record may exist, or appear later: read again before you conclude
    anything.
    """

    def __init__(self, store: Store, run: str, wait: Callable[[float], None] = time.sleep) -> None:
        self._store = store
        self._run = run
        self._wait = wait
        self._records: list[Record] = []
        self._last = b""
        # The newest claim.
        self._newest: Record | None = None
        self._manifests: dict[CheckpointId, str] = {}

    def read(self) -> list[Record]:
        """Return all records to the end."""
        if not self._records:
            self._read_listed()
        while (raw := self._store.read(_name(len(self._records) + 1))) is not None:
            self._accept(raw)
        return list(self._records)

    def append(self, entry: Commit | Retire | End, generation: int, attempt: int, holder: str) -> Record:
        """Append under `generation`. A commit that is already on the chain is not appended again: its record is
        returned.

        Raises SupersededError when the chain has a newer claim (or the replica group was restarted), CommittedError
        when the step was committed as another checkpoint, ValueError when a checkpoint to be retired is still needed.
        """
        group, counter = (entry.group, entry.counter) if isinstance(entry, Commit) else (0, 0)
        while True:
            self._refuse_superseded(self._read_since(generation, group, counter), generation)
            if isinstance(entry, Commit):
                self._refuse_restarted(entry)
                if (standing := self._standing(entry, generation)) is not None:
                    return standing
            if isinstance(entry, Retire):
                self._refuse_needed(entry)
            record = self._next(entry, generation, attempt, holder)
            if self._create(record):
                return record

    def claim(
        self,
        base: Base | None,
        attempt: int,
        holder: str,
        *,
        groups: int = 1,
        history_entries: int = 0,
        rolled_back: bool = False,
    ) -> Record:
        """Claim the generation after the newest that the last `read` returned; `base` must be chosen from that same
        reading.

        Raises SupersededError when another process has claimed since; MovedError when a commit has followed that this
        base would roll back, or the base was retired; ValueError when the base does not count, or is None although
        checkpoints count and the history does not roll back to step 0.
        """
        self._refuse_base(base, rolled_back)
        known, generation = len(self._records), self._newest.generation if self._newest else 0
        entry = Claim(base, (0,) * groups, history_entries, rolled_back)
        while True:
            record = self._next(entry, generation + 1, attempt, holder)
            if self._create(record):
                return record
            self._refuse_moved(base, generation, known)

    def restart(self, group: int, counter: int, generation: int, attempt: int, holder: str) -> Record:
        """Claim the generation again with the counter of `group` raised: pending commits of the group are refused from
        then on.

        Raises SupersededError when a newer generation has claimed, or when the counter is no longer `counter`: another
        process has restarted the group.
        """
        while True:
            newest = self._read_since(generation, group, counter)
            self._refuse_superseded(newest, generation)
            claim = _claim_of(newest)
            if claim.groups[group] != counter:
                raise SupersededError(f"{newest.holder} restarted group {group} of generation {generation} first")
            again = dataclasses.replace(claim, groups=_raised(claim.groups, group))
            record = self._next(again, generation, attempt, holder)
            if self._create(record):
                return record

    def begin(self, entries: Iterable[tuple[int, Claim | Commit]], attempt: int, holder: str) -> list[Record]:
        """Write the first records of an empty chain (see `adoption`). Raises ChainError when it is not empty."""
        if self.read():
            raise ChainError(f"{self._store} already holds a chain")
        for generation, entry in entries:
            record = self._next(entry, generation, attempt, holder)
            if not self._create(record):
                raise ChainError(f"{self._store} is being written by another process")
        return list(self._records)

    # --- what may be appended -----------------------------------------------------------------------------------------

    def _read_since(self, generation: int, group: int, counter: int) -> Record:
        """Return the claim in charge, once the store shows a claim as new as the caller's."""
        for wait_s in (*STALE_WAITS_S, None):
            self.read()
            if (newest := self._newest) is not None and _is_since(newest, generation, group, counter):
                return newest
            if wait_s is not None:
                self._wait(wait_s)
        raise OSError(errno.ESTALE, f"{self._store} does not show the claim of generation {generation}")

    def _refuse_superseded(self, newest: Record, generation: int) -> None:
        if newest.generation != generation:
            raise SupersededError(f"generation {generation} was superseded by {newest.generation}")

    def _refuse_restarted(self, commit: Commit) -> None:
        if self._newest and (counter := _claim_of(self._newest).groups[commit.group]) != commit.counter:
            generation = self._newest.generation
            raise SupersededError(
                f"group {commit.group} of generation {generation} was restarted: its counter is {counter}, not {commit.counter}"
            )

    def _standing(self, commit: Commit, generation: int) -> Record | None:
        """Return the existing record that equals `commit`, if any."""
        at = CheckpointId(commit.step, generation)
        if (known := self._manifests.get(at)) is None:
            return None
        if known != commit.manifest_xxh3_128:
            raise CommittedError(f"{at.directory} is committed with manifest {known}, not {commit.manifest_xxh3_128}")
        return next((r for r in reversed(self._records) if r.generation == generation and _says(r.entry, commit)), None)

    def _refuse_needed(self, entry: Retire) -> None:
        counting, base = lineage(self._records), _claim_of(self._newest).base if self._newest else None
        if base is not None and base.checkpoint in entry.checkpoints:
            raise ValueError(f"{base.checkpoint.directory} is the base of the newest claim and must be kept")
        if counting and counting[0].checkpoint in entry.checkpoints:
            raise ValueError(f"{counting[0].checkpoint.directory} is the newest commit and must be kept")

    def _refuse_base(self, base: Base | None, rolled_back: bool) -> None:
        if base is None and not rolled_back and (counting := lineage(self._records)):
            raise ValueError(
                f"{counting[0].checkpoint.directory} is valid: only a history that rolls back to step 0 starts from scratch"
            )
        if base is not None and not _counts(dict(_path(self._records)), base.checkpoint):
            raise ValueError(f"{base.checkpoint.directory} is not valid: it was rolled back, or its generation never claimed")

    def _refuse_moved(self, base: Base | None, generation: int, known: int) -> None:
        since = self.read()[known:]
        if (other := newest_claim(since)) is not None and other.generation > generation:
            raise SupersededError(f"{other.holder} claimed generation {other.generation} first")
        lost_base = base is not None and (base.checkpoint, base.tier) in retired(since)
        if lost_base or any(isinstance(r.entry, Commit | Claim) for r in since):
            raise MovedError(f"generation {generation + 1} was to start from the state at record {known}, but more was written")

    # --- records ------------------------------------------------------------------------------------------------------

    def _next(self, entry: Entry, generation: int, attempt: int, holder: str) -> Record:
        previous = xxhash.xxh3_128_hexdigest(self._last)
        seq, nonce = len(self._records) + 1, secrets.token_hex(16)
        return Record(self._run, seq, previous, generation, attempt, holder, nonce, time.time(), entry)

    def _create(self, record: Record) -> bool:
        """Create the record. Returns False if another record took its place, which is then read.

        After a refusal or an unknown outcome it is ours only if the nonce is: over NFS a link() whose first answer was
        lost is sent again and answered EEXIST, although the name is ours (nfs(5), link(2)); a request to an object
        store is sent again as well.
        """
        name, raw = _name(record.seq), record.to_bytes()
        try:
            created = self._store.create(name, raw)
        except OSError:
            if self._store.read(name) is None:
                raise
            # The name is taken: this call makes sure that it is durable.
            created = self._store.create(name, raw)
        standing = raw if created else self._read_taken(name)
        self._accept(standing)
        return standing == raw

    def _read_taken(self, name: str) -> bytes:
        """Return the content of a name that is known to be taken. A client that has looked before may not see it yet
        (nfs(5), lookupcache)."""
        for wait_s in (*STALE_WAITS_S, None):
            if (raw := self._store.read(name)) is not None:
                return raw
            if wait_s is not None:
                self._wait(wait_s)
        raise OSError(errno.ESTALE, f"{self._store}/{name} exists and cannot be read")

    def _read_listed(self) -> None:
        """Read what the store lists, which alone shows a gap; then read records one by one until one is missing."""
        for wait_s in (*STALE_WAITS_S, None):
            listed = {int(match[1]) for match in map(_NAME.match, self._store.names()) if match}
            highest = max(listed, default=0)
            self._read_to(highest)
            if (missing := len(self._records) + 1) > highest:
                return
            if wait_s is not None:
                self._wait(wait_s)
        if missing in listed:
            raise OSError(errno.ESTALE, f"{self._store}/{_name(missing)} exists and cannot be read")
        raise ChainError(f"{self._store}/{_name(missing)} is missing, but {_name(highest)} exists")

    def _read_to(self, highest: int) -> None:
        """Read up to record `highest`, or to the first that is missing."""
        while len(self._records) < highest:
            first = len(self._records) + 1
            for raw in self._read_many(range(first, min(first + BATCH, highest + 1))):
                if raw is None:
                    return
                self._accept(raw)

    def _read_many(self, seqs: range) -> list[bytes | None]:
        names = [_name(seq) for seq in seqs]
        if len(names) < READERS:
            return [self._store.read(name) for name in names]
        with ThreadPoolExecutor(READERS) as pool:
            return list(pool.map(self._store.read, names))

    def _accept(self, raw: bytes) -> None:
        seq = len(self._records) + 1
        try:
            record = _record(raw)
            wrong = self._what_is_wrong(record)
        except (ValueError, KeyError, TypeError, IndexError) as error:
            raise ChainError(f"{self._store}/{_name(seq)} is not a chain record: {error}") from None
        if wrong is not None:
            raise ChainError(f"{self._store}/{_name(seq)} {wrong}")
        match record.entry:
            case Claim():
                self._newest = record
            case Commit(step, manifest):
                self._manifests[CheckpointId(step, record.generation)] = manifest
        self._records.append(record)
        self._last = raw

    def _what_is_wrong(self, record: Record) -> str | None:
        """Return why no correct process can have written the record here; None if one can."""
        seq, newest = len(self._records) + 1, self._newest
        if (record.run, record.seq) != (self._run, seq):
            return f"is record {record.seq} of run {record.run!r}; expected {seq} of {self._run!r}"
        if record.prev_xxh3_128 != xxhash.xxh3_128_hexdigest(self._last):
            return "does not follow the previous record: prev_xxh3_128 differs"
        if isinstance(record.entry, Claim):
            return _why_not_claimed(record, newest)
        if newest is None or record.generation != newest.generation:
            return f"is of generation {record.generation}, and {newest.generation if newest else 'nobody'} was in charge"
        if isinstance(commit := record.entry, Commit):
            return self._why_not_committed(commit, newest)
        return None

    def _why_not_committed(self, commit: Commit, newest: Record) -> str | None:
        if _claim_of(newest).groups[commit.group] != commit.counter:
            return f"is of group {commit.group} as counted {commit.counter}, which is not its counter"
        known = self._manifests.get(CheckpointId(commit.step, newest.generation), commit.manifest_xxh3_128)
        if known != commit.manifest_xxh3_128:
            return f"commits step {commit.step} again, as another checkpoint"
        return None


def _why_not_claimed(record: Record, newest: Record | None) -> str | None:
    claim, before = _claim_of(record), newest.generation if newest else 0
    if claim.base is not None and claim.base.generation >= record.generation:
        return f"starts generation {record.generation} from a checkpoint of generation {claim.base.generation}"
    if record.generation > before:
        return None
    if newest is None or record.generation < before:
        return f"claims generation {record.generation} after {before}"
    groups = _claim_of(newest).groups
    if not any(claim.groups == _raised(groups, group) for group in range(len(groups))):
        return f"claims generation {record.generation} again without restarting a replica group"
    return None


def _is_since(claim: Record, generation: int, group: int, counter: int) -> bool:
    if claim.generation != generation:
        return claim.generation > generation
    return _claim_of(claim).groups[group] >= counter


def _raised(groups: tuple[int, ...], group: int) -> tuple[int, ...]:
    return tuple(counter + (at == group) for at, counter in enumerate(groups))


def _says(entry: Entry, commit: Commit) -> bool:
    return isinstance(entry, Commit) and entry.step == commit.step and {*commit.tiers} <= {*entry.tiers}


def _claim_of(record: Record) -> Claim:
    if not isinstance(record.entry, Claim):
        raise TypeError(f"record {record.seq} is a {record.kind}, not a claim")
    return record.entry


def _name(seq: int) -> str:
    return f"{seq:09d}.json"
