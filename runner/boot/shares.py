"""Verifies saved files before the script's first line with all ranks of a generation: each reads a share, rank 0 decides.

Rank 0 cuts the newest checkpoint of each family into shares of about the same size and sends them through the
generation's store. Each rank verifies its share and reports problems to rank 0, which refuses what is damaged and
continues with the previous checkpoint.

Ranks communicate through the store without a process group: the script creates its own. A node verifies its own saves
that rank 0 does not see.
"""

import dataclasses
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from headway.runner.boot import saved
from headway.runner.boot.limitations import suppress_errors
from headway.runner.boot.records import OWN, Identity, differ, registry_of, shorten
from headway.runner.boot.saved import SavedState, SavedVerdict, Unit
from headway.runner.checkpoint.format import RefusedError
from headway.runner.worker import Worker, client_store, meet_store

# A smaller share is not worth a message and a reply.
SHARE_BYTES = 64 << 20
# Keys in the store.
_SHARES, _GOOD, _VERIFIED = "headway/shares", "headway/good", "headway/verified"


class TooLongError(Exception):
    """Saves could not be verified in time. Not an OSError, which would concern a single checkpoint."""


@dataclass(frozen=True)
class VerificationShare:
    """Blocks of a file, or parts of a directory in headway's format, from `first` up to `end`, of the checkpoint
    `number`.

    A rank compares `mark` to find out whether it sees rank 0's file: nodes may have different files of that name.
    `blocks` are the hashes of a file's blocks.
    """

    number: int
    kind: str
    path: str
    mark: tuple[int, ...]
    first: int
    end: int
    blocks: tuple[str, ...] = ()

    def cut(self, first: int, end: int) -> "VerificationShare":
        return dataclasses.replace(self, first=first, end=end, blocks=self.blocks[first - self.first : end - self.first])


@dataclass(frozen=True)
class ShareProblem:
    """A rank's finding about the checkpoint `number`, and the reason; without `state`, rank 0 must verify it."""

    number: int
    state: str = ""
    why: str = ""


def verify_first(worker: Worker, store: Any, verify_s: float) -> None:
    """Verify before the script: all ranks wait for the decision, or they would find different checkpoints.

    With `store` None, a client is created. Checkpoints that all ranks can read have `verify_s`, and those that only
    another node sees as long again; files that are loaded later are compared then. Without a store, and after twice as
    long, a rank continues alone.
    """
    patience = timedelta(seconds=2 * verify_s)
    if worker.local_rank == 0:
        suppress_errors(_shorten, worker)
    try:
        store = store or client_store(patience)
        if worker.rank == 0:
            _lead(worker, store, verify_s)
        else:
            _follow(worker, store, patience)
    except RuntimeError as error:
        print(f"headway: rank {worker.rank} continues alone from {_SHARES}: {error}".splitlines()[0], file=sys.stderr)
        return
    here = int(os.environ.get("LOCAL_WORLD_SIZE", worker.world_size))
    # Without a shared store, another node may have a registry.
    if worker.world_size > here:
        if worker.local_rank == 0 and worker.rank != 0 and suppress_errors(_has_registry, worker):
            worker.section("restore")
            suppress_errors(_verify_own, worker, store, verify_s)
        meet_store(worker, store, _VERIFIED, patience)


def _shorten(worker: Worker) -> None:
    if registry_of(worker).exists():
        shorten(worker)


def _has_registry(worker: Worker) -> bool:
    return registry_of(worker).exists()


# --- the first rank ---------------------------------------------------------------------------------------------------


def _lead(worker: Worker, store: Any, verify_s: float) -> None:
    lead = _Lead(store, worker.world_size, verify_s)
    good: list[Unit] = []
    try:
        if suppress_errors(_has_registry, worker):
            worker.section("restore")
            good = suppress_errors(_verify_all, worker, lead) or []
    finally:
        lead.dismiss(good)


def _verify_all(worker: Worker, lead: "_Lead") -> list[Unit]:
    with at_most(lead.left_s()):
        found = saved.units(registry_of(worker), None)
    return saved.verify_newest(found, lead.judged)


class _Lead:
    """Gives the other ranks their shares, and receives their findings."""

    def __init__(self, store: Any, ranks: int, verify_s: float) -> None:
        self._store, self._until_s = store, time.monotonic() + verify_s
        # Shares that each rank was given.
        self._asked = [0] * ranks

    def judged(self, units: Sequence[Unit]) -> list[SavedVerdict]:
        """Return a verdict on each of these checkpoints, verified by all ranks; unknown when time runs out: loads are
        compared again."""
        pieces, verdicts = list[tuple[VerificationShare, int]](), dict[int, SavedVerdict]()
        for number, unit in enumerate(units):
            try:
                if (verdict := saved.cut_off(unit)) is not None:
                    verdicts[number] = verdict
                    continue
                pieces += pieces_of(number, unit)
            except (OSError, RefusedError):
                verdicts[number] = self._verdict(unit)
        given = shares(pieces, len(self._asked), SHARE_BYTES)
        others = [rank for rank in range(1, len(given)) if given[rank]]
        self._tell({rank: given[rank] for rank in others})
        answers = [suppress_errors(_verify_in_time, given[0], self.left_s()), *map(self._answer, others)]
        problems = [problem for answer in answers for problem in answer or []]
        # Damage first: one share of a checkpoint may be damaged and another unreadable.
        for problem in sorted(problems, key=lambda problem: (problem.state != SavedState.DAMAGED, problem.state)):
            if problem.number not in verdicts:
                seen = (
                    SavedVerdict(SavedState(problem.state), problem.why)
                    if problem.state
                    else self._verdict(units[problem.number])
                )
                verdicts[problem.number] = seen
        read = {piece.number for piece, _ in pieces} if None not in answers else set[int]()
        rest = [SavedVerdict(SavedState.GOOD if number in read else SavedState.UNKNOWN) for number in range(len(units))]
        return [verdicts.get(number, verdict) for number, verdict in enumerate(rest)]

    def _tell(self, words: Mapping[int, list[VerificationShare] | None]) -> None:
        """Send each rank its share, with the seconds that are left for it; None: there is no more."""
        keys = [f"{_SHARES}/{rank}/{self._asked[rank]}" for rank in words]
        if keys:
            self._store.multi_set(
                keys,
                [
                    json.dumps(share and [self.left_s(), [dataclasses.astuple(piece) for piece in share]])
                    for share in words.values()
                ],
            )

    def left_s(self) -> float:
        return max(self._until_s - time.monotonic(), 0.001)

    def _verdict(self, unit: Unit) -> SavedVerdict:
        with at_most(self.left_s()):
            return saved.judge(unit)

    def _answer(self, rank: int) -> list[ShareProblem] | None:
        """Return a rank's findings; None if it has not finished in time."""
        key = f"{_SHARES}/{rank}/{self._asked[rank]}/found"
        self._asked[rank] += 1
        try:
            self._store.wait([key], timedelta(seconds=self.left_s()))
        except RuntimeError:
            print(f"headway: rank {rank} did not verify its share of the checkpoint in time", file=sys.stderr)
            return None
        found = json.loads(self._store.get(key))
        return None if found is None else [ShareProblem(*each) for each in found]

    def dismiss(self, good: Sequence[Unit]) -> None:
        """Let the other ranks continue; `good` checkpoints need no further verification."""
        if len(self._asked) > 1:
            marks = {str(unit.path): mark for unit in good if (mark := _mark(unit.path)) is not None}
            self._store.set(_GOOD, json.dumps(marks))
            self._tell(dict.fromkeys(range(1, len(self._asked))))


def pieces_of(number: int, unit: Unit) -> Iterator[tuple[VerificationShare, int]]:
    """Yield the pieces of a checkpoint to verify, with their bytes. Raises OSError, RefusedError."""
    if unit.kind == OWN:
        from headway.runner.boot.dcp import opened  # noqa: PLC0415  imports torch

        if (reader := opened(unit.path)) is not None and (mark := _mark(unit.path)) is not None:
            manifest = reader.manifest
            yield VerificationShare(number, OWN, str(unit.path), mark, 0, manifest.world_size), sum(manifest.files.values())
        return
    for file in saved.files_of(unit):
        if (mark := _mark(file)) is not None and (record := saved.here().of(mark)) is not None and record.blocks:
            yield VerificationShare(number, unit.kind, str(file), mark, 0, len(record.blocks), record.blocks), mark.bytes


def shares(pieces: Sequence[tuple[VerificationShare, int]], ranks: int, least: int) -> list[list[VerificationShare]]:
    """Divide the pieces so that each rank has about the same bytes, and where there are few, the first ranks `least` each."""
    room = each = max(sum(length for _, length in pieces) / ranks, least)
    given: list[list[VerificationShare]] = [[] for _ in range(ranks)]
    rank = 0
    for piece, length in pieces:
        one, first = max(length, 1) / (piece.end - piece.first), piece.first
        while first < piece.end:
            if room < one / 2 and rank < ranks - 1:
                rank, room = rank + 1, room + each
            fit = piece.end - first if rank == ranks - 1 else max(1, round(room / one))
            end = min(first + fit, piece.end)
            given[rank].append(piece.cut(first, end))
            room, first = room - (end - first) * one, end
    return given


# --- every rank -------------------------------------------------------------------------------------------------------


def _follow(worker: Worker, store: Any, patience: timedelta) -> None:
    number = 0
    while True:
        key = f"{_SHARES}/{worker.rank}/{number}"
        store.wait([key], patience)
        if (word := json.loads(store.get(key))) is None:
            return
        left_s, share = word
        worker.section("restore")
        found = suppress_errors(_verify_in_time, [VerificationShare(*each) for each in share], left_s)
        store.set(f"{key}/found", json.dumps(found if found is None else [dataclasses.astuple(problem) for problem in found]))
        number += 1


def _verify_in_time(share: Sequence[VerificationShare], seconds: float) -> list[ShareProblem]:
    with at_most(seconds):
        return verify_share(share)


def verify_share(share: Sequence[VerificationShare]) -> list[ShareProblem]:
    """Return what is damaged or unreadable in the share."""
    found = []
    for piece in share:
        try:
            problem = _problem(piece)
        except FileNotFoundError:
            problem = ShareProblem(piece.number)
        except OSError as error:
            verdict = saved.unread(error)
            problem = ShareProblem(piece.number, verdict.state, verdict.why)
        if problem is not None:
            found.append(problem)
    return found


def _problem(piece: VerificationShare) -> ShareProblem | None:
    """Verify one piece. Raises OSError."""
    path = Path(piece.path)
    if _mark(path) != tuple(piece.mark):
        return ShareProblem(piece.number)
    if piece.kind == OWN:
        from headway.runner.boot.dcp import damage_of_parts  # noqa: PLC0415  imports torch

        damage = damage_of_parts(path, range(piece.first, piece.end))
        return None if damage is None else ShareProblem(piece.number, SavedState.DAMAGED, damage)
    return ShareProblem(piece.number) if differ(path, Identity(*piece.mark).bytes, piece.blocks, piece.first) else None


def _mark(path: Path) -> Identity | None:
    try:
        return Identity.of(path.stat())
    except OSError:
        return None


def _verify_own(worker: Worker, store: Any, verify_s: float) -> None:
    """Verify what was saved on this node and rank 0 has not seen or not found good."""
    store.wait([_GOOD], timedelta(seconds=2 * verify_s))
    good = json.loads(store.get(_GOOD))
    found = saved.units(registry_of(worker), socket.gethostname())
    known = {unit.family for unit in found if (mark := _mark(unit.path)) is not None and good.get(str(unit.path)) == list(mark)}
    with at_most(verify_s):
        saved.verify_newest(unit for unit in found if unit.family not in known)


@contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """Raise TooLongError in the block, which must run in the main thread, after `seconds`."""

    def ring(*_: Any) -> None:
        raise TooLongError(f"not done after {seconds:.0f} s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
