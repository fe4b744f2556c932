"""Decides which checkpoints to delete, and deletes them: retired on the chain first, removed afterwards.

A `disk` tier is one directory that all nodes see. Disks that each node has for itself are no tier: who writes the manifest must see every
file, and so must the nodes that take the place of others.
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
    CheckpointId,
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

_NAME = re.compile(r"^(\.tmp-(?:stale-)?)?step-(\d{9,})\.g(\d{6,})(?:-\d+)?$")


class Root(Protocol):
    """Where a tier's checkpoints lie, each under a name of its own. Every method raises OSError."""

    def names(self) -> list[str]:
        """What lies there, checkpoints and else."""
        ...

    def read(self, name: str, file: str) -> bytes:
        """A file of what lies there under `name`."""
        ...

    def delete(self, name: str) -> None:
        """Deletes it with all that is in it; it may be gone already."""
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
        """The manifest goes first: what is half deleted has none."""
        with suppress(FileNotFoundError):
            (self._directory / name / MANIFEST).unlink(missing_ok=True)
            shutil.rmtree(self._directory / name)


@dataclass(frozen=True)
class Retention:
    """`keep`: how many of the newest stay, for each tier. `horizon_steps`: how far back silent corruption may be found. `sound_step`: up to
    there the run is known to be sound."""

    keep: Mapping[str, int]
    horizon_steps: int = 0
    sound_step: int | None = None


@dataclass(frozen=True)
class Retired:
    """What was named on the chain now, for each tier, and in words what could not be done: a later call does it."""

    checkpoints: Mapping[str, tuple[CheckpointId, ...]]
    failures: tuple[str, ...]


# --- what may go ------------------------------------------------------------------------------------------------------


def expired(records: Sequence[Record], retention: Retention) -> dict[str, list[CheckpointId]]:
    """What may go from each tier that `retention.keep` names, oldest first.

    Of what counts there stay: the newest `keep` of the tier; everywhere the newest commit and the newest claim's base; and on one tier
    each, the newest that is known to be sound, the newest that is `horizon_steps` or more older than the newest commit, and the one that
    will follow it there. What was rolled back stays until `keep` that count were committed on the tier at its step or later, as it would
    have stayed had it counted: it may be whole, and what rolled it back a mistake.
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
    """What stays on each tier beyond the number that it keeps."""
    everywhere = {committed.checkpoint for committed in counting[:1]}
    if claim is not None and isinstance(claim.entry, Claim) and claim.entry.base is not None:
        everywhere.add(claim.entry.base.checkpoint)
    stays = {tier: set(everywhere) for tier in retention.keep}
    for committed in (*_around_the_horizon(counting, retention.horizon_steps), *_newest_sound(counting, retention.sound_step)):
        if tiers := [tier for tier in committed.tiers if tier in stays]:
            stays[tiers[-1]].add(committed.checkpoint)
    return stays


def _around_the_horizon(counting: Sequence[Committed], horizon_steps: int) -> Iterator[Committed]:
    """The newest beyond it, and the oldest before it: without the second, none would be there to come beyond it."""
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
    """Commits on the tier that do not count any more, once later generations have committed `keep` there that are as far."""
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


# --- its end ----------------------------------------------------------------------------------------------------------


def retire(
    chain: Chain, roots: Mapping[str, Root], retention: Retention, generation: int, attempt: int, holder: str = "rank 0"
) -> Retired:
    """Names what may go from the tiers in `roots`, then deletes all that was ever named and is still there, and what nobody will finish.

    Only where the tier's newest commit is seen to stand, by a second look: a store that does not show it may show other things wrongly too.

    `retention` speaks of all tiers, `roots` may be one of them: a store that is away delays those who write to it, and nobody else.
    A store that fails costs a line in `failures`. Raises SupersededError and ChainError.
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
        return Retired(checkpoints, (f"retired checkpoints are kept: {error}",))
    failures = [
        f"{tier}: older checkpoints are kept, since the newest could not be confirmed: {why}" for tier, why in unseen.items()
    ]
    for tier, root in roots.items():
        failures += [] if tier in unseen else _sweep(root, tier, records, generation)
    return Retired(checkpoints, tuple(failures))


def _why_unseen(root: Root, tier: str, records: Sequence[Record]) -> str | None:
    """Why the newest commit on the tier does not stand there, as far as can be seen."""
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


def _sweep(root: Root, tier: str, records: Sequence[Record], generation: int) -> list[str]:
    """Deletes what is to be deleted from the tier; says what could not be."""
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
    """Of what lies there: what was retired, and what was begun and never committed by those who will not go on with it.

    These are the generations before this one, which are fenced, and this one before its newest commit on the tier: its steps only grow.
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
