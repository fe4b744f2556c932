"""Decides which checkpoints to delete, and deletes them: retired on the chain first, removed afterwards.

A `shared` tier is one directory that all nodes see. Node-local disks cannot be a tier: the writer of the manifest must
see every file, and so must replacement nodes.
"""

import re
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import xxhash

from headway.runner.checkpoint.chain import (
    Chain,
    Claim,
    Commit,
    Committed,
    Record,
    Retire,
    lineage,
    newest_claim,
    retired,
)
from headway.runner.checkpoint.format import MANIFEST
from headway.runner.contract import CheckpointId

_NAME = re.compile(r"^(\.tmp-(?:stale-)?)?step-(\d{9,})\.g(\d{6,})(?:-\d+)?$")


class RetentionRoot(Protocol):
    """The checkpoints of a tier, by name. Every method raises OSError."""

    def names(self) -> list[str]:
        """Return all names, of checkpoints and other entries."""
        ...

    def read(self, name: str, file: str) -> bytes:
        """Return a file of the entry `name`."""
        ...

    def delete(self, name: str) -> None:
        """Delete it with all its content; it may be gone already."""
        ...


class DirectoryRoot:
    """The directory of a run's checkpoints."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def names(self) -> list[str]:
        return [path.name for path in self._directory.iterdir()]

    def read(self, name: str, file: str) -> bytes:
        return (self._directory / name / file).read_bytes()

    def delete(self, name: str) -> None:
        """Delete the manifest first: a half-deleted checkpoint has none."""
        with suppress(FileNotFoundError):
            (self._directory / name / MANIFEST).unlink(missing_ok=True)
            shutil.rmtree(self._directory / name)


@dataclass(frozen=True)
class Retention:
    """How many checkpoints to keep.

    `keep`: the number of newest ones, by tier. `horizon_steps`: how far back silent corruption may be found.
    `sound_step`: the run is known to be sound up to this step.
    """

    keep: Mapping[str, int]
    horizon_steps: int = 0
    sound_step: int | None = None


@dataclass(frozen=True)
class RetiredCheckpoint:
    """The checkpoints retired on the chain now, by tier, and as text what failed: a later call retries it."""

    checkpoints: Mapping[str, tuple[CheckpointId, ...]]
    failures: tuple[str, ...]


# --- what may be deleted ----------------------------------------------------------------------------------------------


def expired(records: Sequence[Record], retention: Retention) -> dict[str, list[CheckpointId]]:
    """Return the checkpoints that may be deleted from each tier of `retention.keep`, oldest first.

    Of those that count, these stay: the newest `keep` of the tier; everywhere the newest commit and the newest claim's
    base; and on one tier each, the newest that is known to be sound, the newest that is `horizon_steps` or more older
    than the newest commit, and the one that will follow it there.

    A rolled-back checkpoint stays until `keep` that count were committed on the tier at its step or later, as if it had
    counted: it may be intact, and the rollback a mistake.
    """
    counting = lineage(records)
    stays = _staying(counting, newest_claim(records), retention)
    gone: dict[str, list[CheckpointId]] = {}
    for tier, keep in retention.keep.items():
        here = [c.checkpoint for c in counting if tier in c.tiers]
        old = [checkpoint for checkpoint in here[keep:] if checkpoint not in stays[tier]]
        gone[tier] = sorted([*old, *_rolled_back(records, counting, tier, keep)])
    return gone


def _staying(counting: Sequence[Committed], claim: Record | None, retention: Retention) -> Mapping[str, set[CheckpointId]]:
    """Return what stays on each tier beyond the number that it keeps."""
    everywhere = {committed.checkpoint for committed in counting[:1]}
    if claim is not None and isinstance(claim.entry, Claim) and claim.entry.base is not None:
        everywhere.add(claim.entry.base.checkpoint)
    stays = {tier: set(everywhere) for tier in retention.keep}
    for committed in (*_around_the_horizon(counting, retention.horizon_steps), *_newest_sound(counting, retention.sound_step)):
        if tiers := [tier for tier in committed.tiers if tier in stays]:
            stays[tiers[-1]].add(committed.checkpoint)
    return stays


def _around_the_horizon(counting: Sequence[Committed], horizon_steps: int) -> Iterator[Committed]:
    """Yield the newest beyond the horizon, and the oldest within it: it will be the next one to pass the horizon."""
    stored = [committed for committed in counting if committed.tiers]
    newest = max((committed.step for committed in stored), default=0)
    beyond = [committed for committed in stored if committed.step <= newest - horizon_steps]
    before = [committed for committed in stored if committed.step > newest - horizon_steps]
    yield from beyond[:1]
    yield from before[-1:]


def _newest_sound(counting: Sequence[Committed], sound_step: int | None) -> Sequence[Committed]:
    known = [committed for committed in counting if committed.tiers and sound_step is not None and committed.step <= sound_step]
    return known[:1]


def _rolled_back(records: Sequence[Record], counting: Sequence[Committed], tier: str, keep: int) -> Iterator[CheckpointId]:
    """Yield commits on the tier that no longer count, once later generations have committed `keep` there that are as far."""
    known, gone = {committed.checkpoint for committed in counting}, retired(records)
    there = [committed.checkpoint for committed in counting if tier in committed.tiers]
    for checkpoint in _committed(records, tier):
        standing = checkpoint not in known and (checkpoint, tier) not in gone
        later = [each for each in there if each.generation > checkpoint.generation and each.step >= checkpoint.step]
        if standing and len(later) >= keep:
            yield checkpoint


def _committed(records: Iterable[Record], tier: str) -> set[CheckpointId]:
    return {
        CheckpointId(record.entry.step, record.generation)
        for record in records
        if isinstance(record.entry, Commit) and tier in record.entry.tiers
    }


# --- deletion ---------------------------------------------------------------------------------------------------------


def retire(
    chain: Chain, roots: Mapping[str, RetentionRoot], retention: Retention, generation: int, attempt: int, holder: str = "rank 0"
) -> RetiredCheckpoint:
    """Retire what may be deleted from the tiers in `roots`, then delete everything retired that still exists, and
    abandoned saves.

    A tier is skipped unless a second read confirms its newest commit: a store that does not return it may be wrong
    about other files too.

    `retention` covers all tiers; `roots` may be one of them, so that an unavailable store delays only those who write
    to it. A store that fails adds a line to `failures`. Raises SupersededError and ChainError.
    """
    checkpoints: dict[str, tuple[CheckpointId, ...]] = {}
    try:
        records = chain.read()
        unseen = {tier: why for tier, root in roots.items() if (why := _why_unseen(root, tier, records)) is not None}
        for tier, old in expired(records, retention).items():
            if old and tier in roots and tier not in unseen:
                chain.append(Retire(tuple(old), (tier,)), generation, attempt, holder)
                checkpoints[tier] = tuple(old)
        records = chain.read()
    except OSError as error:
        return RetiredCheckpoint(checkpoints, (f"retired checkpoints are kept: {error}",))
    failures = [
        f"{tier}: older checkpoints are kept, since the newest could not be confirmed: {why}" for tier, why in unseen.items()
    ]
    for tier, root in roots.items():
        failures += [] if tier in unseen else _sweep(root, tier, records, generation)
    return RetiredCheckpoint(checkpoints, tuple(failures))


def _why_unseen(root: RetentionRoot, tier: str, records: Sequence[Record]) -> str | None:
    """Return why the newest commit on the tier cannot be confirmed there; None if it is confirmed."""
    newest = next((committed for committed in lineage(records) if tier in committed.tiers), None)
    if newest is None:
        return None
    name = newest.checkpoint.directory
    try:
        raw = root.read(name, MANIFEST)
    except OSError as error:
        return str(error)
    is_whole = xxhash.xxh3_128_hexdigest(raw) == newest.manifest_xxh3_128
    return None if is_whole else f"{name}/{MANIFEST} differs from what was committed"


def _sweep(root: RetentionRoot, tier: str, records: Sequence[Record], generation: int) -> list[str]:
    """Delete the tier's superfluous directories; return the failures."""
    try:
        names = _superfluous(root.names(), tier, records, generation)
    except OSError as error:
        return [f"{tier}: {error}"]
    failures = []
    for name in names:
        try:
            root.delete(name)
        except OSError as error:
            failures.append(f"{tier}: {name} stays: {error}")
    return failures


def _superfluous(names: Iterable[str], tier: str, records: Sequence[Record], generation: int) -> list[str]:
    """Return the names to delete: retired checkpoints, and abandoned uncommitted saves.

    Saves are abandoned if they are of earlier generations, which are fenced, or of this one before its newest commit on
    the tier: its steps only grow.
    """
    named, committed = retired(records), _committed(records, tier)
    own = max((checkpoint.step for checkpoint in committed if checkpoint.generation == generation), default=0)
    found = []
    for name in sorted(names):
        if (match := _NAME.match(name)) is None:
            continue
        checkpoint = CheckpointId(int(match[2]), int(match[3]))
        given_up = checkpoint.generation < generation or (checkpoint.generation == generation and checkpoint.step < own)
        unfinished = match[1] is not None or checkpoint not in committed
        if (match[1] is None and (checkpoint, tier) in named) or (unfinished and given_up):
            found.append(name)
    return found
