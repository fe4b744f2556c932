"""Takes the saves of one tier in order: waits for this rank's report on each, agrees with the other ranks, and acts on the result."""

import contextlib
import threading
import time
from collections.abc import Collection
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Protocol

from headway.runner.checkpoint.capture_buffers import CaptureBuffers
from headway.runner.checkpoint.chain import ChainError, SupersededError
from headway.runner.checkpoint.commit import Committer, Written
from headway.runner.checkpoint.keeper.protocol import Done, Failed, Sealed
from headway.runner.checkpoint.ranks import PeerError, Ranks
from headway.runner.checkpoint.save_reports import SaveOutcome, SaveReports
from headway.runner.contract import CheckpointId

_PACKED = 1 + 16 + 8


class TierActions(Protocol):
    """The actions of a lane once the ranks have agreed."""

    def count(self, step: int, everyone: list[Written]) -> tuple[int, int]:
        """Make the save count, which all ranks have; runs on every rank. Return bytes and files of all ranks."""

    def drop(self, step: int) -> None:
        """Give the save up, which not all ranks have."""

    def refuse_superseded(self) -> None:
        """Raise SupersededError if a failed write is due to a newer generation; runs on the first rank only."""

    def clean(self) -> Collection[CheckpointId]:
        """Delete what a save that ended has superseded. Return the retired checkpoints."""


class MemoryTier:
    """Captures in the keepers' memory."""

    def __init__(self, buffers: CaptureBuffers) -> None:
        self._buffers = buffers

    def count(self, step: int, everyone: list[Written]) -> tuple[int, int]:
        self._buffers.confirm(step)
        return 0, 0

    def drop(self, step: int) -> None:
        self._buffers.drop(step)

    def refuse_superseded(self) -> None:
        """No newer generation deletes captures."""

    def clean(self) -> Collection[CheckpointId]:
        return ()


class PeerTier:
    """Copies of captures on other nodes, which their keepers look after."""

    def count(self, step: int, everyone: list[Written]) -> tuple[int, int]:
        return 0, 0

    def drop(self, step: int) -> None:
        """A keeper drops copies of captures that were not confirmed."""

    def refuse_superseded(self) -> None:
        """No newer generation deletes copies."""

    def clean(self) -> Collection[CheckpointId]:
        return ()


class StoredTier:
    """Checkpoints on a disk or in an object store, which count by a commit on the chain."""

    def __init__(self, name: str, committer: Committer, *, first: bool) -> None:
        """`first`: this is the first rank, which commits and deletes for all."""
        self._name, self._committer, self._first = name, committer, first

    def count(self, step: int, everyone: list[Written]) -> tuple[int, int]:
        if self._first:
            self._committer.commit(step, self._name, everyone)
        return self._committer.bytes_of(everyone), self._committer.files_of(everyone)

    def drop(self, step: int) -> None:
        """Retention deletes files of saves that were never committed."""

    def refuse_superseded(self) -> None:
        with contextlib.suppress(OSError, ChainError):
            self._committer.refuse_superseded()

    def clean(self) -> Collection[CheckpointId]:
        return self._committer.clean(self._name) if self._first else ()


@dataclass(frozen=True)
class PendingSave:
    """A save that has begun; `began` is monotonic."""

    step: int
    began: float


class Lane:
    """One tier of one rank, with a thread of its own."""

    def __init__(self, name: str, tier: TierActions, ranks: Ranks, reports: SaveReports) -> None:
        self._name, self._tier, self._ranks, self._reports = name, tier, ranks, reports
        self._queue: SimpleQueue[PendingSave | None] = SimpleQueue()
        threading.Thread(target=self._run, name=f"checkpoint-{name}", daemon=True).start()

    def put(self, pending: PendingSave) -> None:
        self._queue.put(pending)

    def close(self) -> None:
        """End the thread after the saves in the queue."""
        self._queue.put(None)

    def _run(self) -> None:
        while (pending := self._queue.get()) is not None:
            superseded = None
            written, error = (0, 0), None
            try:
                written = self._agree(pending.step)
            except SupersededError as caught:
                superseded, error = caught, str(caught)
            except Exception as caught:
                # It costs this save and no other: the other ranks would wait for a dead lane forever.
                error = str(caught) or type(caught).__name__
                self._tier.drop(pending.step)
            seconds = time.monotonic() - pending.began
            self._reports.end(SaveOutcome(pending.step, self._name, seconds, *written, error=error), superseded)
            # The trainer does not wait for this.
            self._reports.cleaned(self._tier.clean())

    def _agree(self, step: int) -> tuple[int, int]:
        """Agree with all ranks on `step`. Collective. Raises OSError if it failed here and PeerError if it failed elsewhere."""
        report = self._reports.wait_for(step, self._name)
        everyone = [_unpack(raw) for raw in self._ranks.gather(_pack(report))]
        if None in everyone:
            self._ranks.together(self._tier.refuse_superseded, only=0)
        if isinstance(report, Failed):
            raise OSError(report.reason)
        if None in everyone:
            raise PeerError(f"rank {everyone.index(None)} could not save it")
        written = [found for found in everyone if found is not None]
        found: list[tuple[int, int]] = []
        self._ranks.together(lambda: found.append(self._tier.count(step, written)))
        return found[0]


def _pack(report: Sealed | Done | Failed) -> bytes:
    match report:
        case Failed():
            return b"\0" * _PACKED
        case Sealed(_, part):
            return b"\1" + bytes.fromhex(part) + bytes(8)
        case Done(_, _, None):
            return b"\1" + bytes(24)
        case Done(_, _, stored):
            assert stored is not None  # noqa: S101  the case above took None
            return b"\1" + bytes.fromhex(stored.part_xxh3_128) + stored.file_bytes.to_bytes(8, "big")


def _unpack(packed: bytes) -> Written | None:
    if packed[0] == 0:
        return None
    return Written(packed[1:17].hex(), int.from_bytes(packed[17:], "big"))
