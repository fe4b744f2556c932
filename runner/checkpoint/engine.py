"""Saves asynchronously: training blocks only while its state is copied to shared memory; keepers and threads do the rest.

    save: copy -> keeper: hash (memory) -> peer, disk, remote -> all ranks agree -> the first rank commits on the chain

A tier of a save counts when every rank has it. One that fails costs that save there and nothing else.
"""

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from datetime import timedelta
from queue import SimpleQueue
from typing import Any

from headway.runner.checkpoint.chain import TIERS, ChainError, SupersededError
from headway.runner.checkpoint.commit import Committer, Written
from headway.runner.checkpoint.keeper.capture import BufferLayout
from headway.runner.checkpoint.keeper.link import KeeperError, KeeperLink, SharedBuffer
from headway.runner.checkpoint.keeper.protocol import Done, Failed, Freed, Sealed
from headway.runner.checkpoint.layout import Planner, RankState
from headway.runner.checkpoint.objects import encode
from headway.runner.checkpoint.ranks import AbsentError, PeerError, Ranks
from headway.runner.checkpoint.staging import Staging
from headway.runner.checkpoint.tensors import local_tensor
from headway.runner.contract import Checkpoint, CheckpointId

_PACKED = 1 + 16 + 8
# Ranks wait for the slowest upload.
_PATIENCE = timedelta(days=1)


@dataclass(frozen=True)
class SaveOutcome:
    """The result of the save of `step` to `tier`, `seconds` after it began.

    `bytes` is the data of all ranks there, in `files` files with parts and manifest; `error` is why the save does not
    count.
    """

    step: int
    tier: str
    seconds: float
    bytes: int = 0
    files: int = 0
    error: str | None = None


@dataclass(frozen=True)
class _Pending:
    step: int
    began: float


class Saver:
    """One rank's saves. `save` copies and returns; `outcomes` reports results. All ranks call both in the same order."""

    def __init__(self, committer: Committer, ranks: Ranks, checkpoint: Checkpoint, connect: Callable[[], KeeperLink]) -> None:
        """Connect to the keeper. `connect` returns a new link, also after the keeper has died. Collective."""
        self._ranks, self._checkpoint, self._connect, self._committer = ranks, checkpoint, connect, committer
        self._planner = Planner(ranks)
        self._staging = Staging()
        self._link: KeeperLink | None = None
        self._layout: BufferLayout | None = None
        self._buffers: list[SharedBuffer] = []
        # Buffers that a device still writes to.
        self._copying: set[int] = set()
        self._news = threading.Condition()
        self._heard: dict[tuple[int, str], Sealed | Done | Failed] = {}
        # Why the keeper is unavailable.
        self._gone: str | None = None
        self._outcomes: deque[SaveOutcome] = deque()
        self._superseded: SupersededError | None = None
        self._absent: AbsentError | None = None
        # Tiers of saves that have not ended.
        self._open = 0
        # Ended saves after which superseded files may still be deleted.
        self._cleaning = 0
        self._retired: deque[CheckpointId] = deque()
        self._last_step: int | None = None
        self._lanes = {tier: _Lane(self, tier, ranks.apart(_PATIENCE)) for tier in self._lane_names()}

    def _lane_names(self) -> Iterator[str]:
        """Yield the lanes' names. Ranks agree on each in-memory capture whatever happens to its other tiers: that frees
        room for the next."""
        yield "memory"
        yield from (tier for tier in ("peer", "disk", "remote") if self._checkpoint.has(tier))

    # --- what the trainer calls ---------------------------------------------------------------------------------------

    def prepare(self, state: RankState) -> None:
        """Allocate the buffers, so that the first save takes no longer than the others. Collective."""
        planned = self._planner.plan(state.tensors, self._checkpoint.has("memory") or self._checkpoint.has("peer"))
        if self._link is None or self._gone is not None or planned.layout is not self._layout:
            # Saves in progress must end before buffers are replaced.
            self.wait_quietly()
            self._reserve(planned.layout)

    def save(self, step: int, state: RankState, tiers: Collection[str]) -> None:
        """Copy the state and bring it to `tiers`. Returns when the copy is made: at once if a buffer is free.

        Raises ObjectError for an object that a checkpoint cannot hold, and torch's error for a tensor. Raises
        AbsentError where ranks do not come to this save, and at every later one: no collective with them is possible
        any more. `outcomes` reports a newer generation's claim, so that all ranks can agree on it.
        """
        if self._absent is not None:
            raise self._absent
        began = time.monotonic()
        # The same step again, perhaps to other tiers: two saves of one name must not overlap.
        if step == self._last_step:
            self.wait_quietly()
        self._last_step = step
        wanted = [tier for tier in self._lanes if tier == "memory" or tier in tiers]
        try:
            self.prepare(state)
            objects = {name: encode(value, name) for name, value in state.objects.items()}
            buffer = self._free_buffer()
            self._copy(buffer, state)
            self._staging.then(lambda: self._seal(buffer, step, tuple(wanted), objects))
        except AbsentError as error:
            self._absent, wanted = AbsentError(f"step {step} is not saved: {error}"), []
            raise self._absent from None
        except (KeeperError, OSError, PeerError) as error:
            self._fail(step, wanted, str(error))
        except BaseException as error:
            # For any error: the lanes would otherwise wait for this save forever.
            self._fail(step, wanted, str(error) or type(error).__name__)
            raise
        finally:
            self._put(wanted, _Pending(step, began))

    def abandon(self, step: int, tiers: Collection[str], reason: str) -> None:
        """Take part in `save` on a rank that has nothing to copy: this save fails, and no other rank is delayed."""
        wanted = [tier for tier in self._lanes if tier == "memory" or tier in tiers]
        self._planner.absent()
        self._fail(step, wanted, reason)
        self._put(wanted, _Pending(step, time.monotonic()))

    def _put(self, tiers: Collection[str], pending: "_Pending") -> None:
        with self._news:
            self._open += len(tiers)
        for tier in tiers:
            self._lanes[tier].put(pending)

    def refuse_capture(self) -> None:
        """Raise RuntimeError while a CUDA graph is captured."""
        self._staging.refuse_capture()

    def wait_copied(self) -> None:
        """Wait until the copy of the last save is complete."""
        self._staging.wait_copied()

    def outcomes(self) -> list[SaveOutcome]:
        """Return the results since the last call. Raises SupersededError when a newer generation has claimed the run."""
        self._raise_superseded()
        return [self._outcomes.popleft() for _ in range(len(self._outcomes))]

    def retired(self) -> list[CheckpointId]:
        """Return the checkpoints retired since the last call; on the first rank only."""
        return [self._retired.popleft() for _ in range(len(self._retired))]

    @property
    def superseded(self) -> bool:
        """Return whether `outcomes` would raise: ranks agree on it before one of them leaves."""
        return self._superseded is not None

    def wait(self) -> None:
        """Wait until every save so far has ended in every tier. Raises SupersededError."""
        with self._news:
            self._news.wait_for(lambda: self._open == 0)
        self._raise_superseded()

    def close(self) -> None:
        """End the threads, after the saves in progress."""
        self.wait_quietly()
        for lane in self._lanes.values():
            lane.put(None)
        self._staging.close()
        if self._link is not None:
            self._link.close()

    def wait_quietly(self) -> None:
        """Wait until every save has ended and superseded checkpoints are deleted, whichever generation owns the run."""
        with self._news:
            self._news.wait_for(lambda: self._open == 0 and self._cleaning == 0)

    # --- the copy -----------------------------------------------------------------------------------------------------

    def _reserve(self, layout: BufferLayout) -> None:
        # If anything below fails, the next save starts from here again.
        self._layout = None
        self._staging.release()
        if self._link is None or self._gone is not None:
            if self._link is not None:
                self._link.close()
            link = self._connect()
            with self._news:
                self._link, self._gone = link, None
            threading.Thread(target=self._listen, args=(link,), daemon=True).start()
        assert self._link is not None  # noqa: S101
        self._buffers = self._link.reserve(layout.bytes, self._checkpoint.buffers)
        self._link.describe(layout)
        self._copying = set()
        self._staging.use(layout, {buffer.index: buffer.view for buffer in self._buffers})
        self._layout = layout

    def _free_buffer(self) -> int:
        """Return a buffer without readers; waits for one. Raises KeeperError when the keeper is gone."""
        with self._news:
            self._news.wait_for(lambda: self._gone is not None or self._unused())
            if self._gone is not None:
                raise KeeperError(self._gone)
            index = self._unused()[0]
            self._copying.add(index)
            return index

    def _unused(self) -> list[int]:
        return [buffer.index for buffer in self._buffers if buffer.free and buffer.index not in self._copying]

    def _copy(self, buffer: int, state: RankState) -> None:
        try:
            self._staging.copy(buffer, {name: local_tensor(tensor) for name, tensor in state.tensors.items()}, state.stepped)
        except BaseException:
            with self._news:
                self._copying.discard(buffer)
            raise

    def _seal(self, buffer: int, step: int, tiers: tuple[str, ...], objects: dict[str, Any]) -> None:
        assert self._link is not None  # noqa: S101
        try:
            self._link.seal(buffer, step, tiers, objects)
        except KeeperError as error:
            self._fail(step, tiers, str(error))
        with self._news:
            self._copying.discard(buffer)

    # --- what the keeper reports --------------------------------------------------------------------------------------

    def _listen(self, link: KeeperLink) -> None:
        while True:
            try:
                event = link.event(None)
            except KeeperError as error:
                with self._news:
                    if link is self._link:
                        self._gone = str(error)
                    self._news.notify_all()
                return
            with self._news:
                match event:
                    case Sealed(step):
                        self._heard[step, "memory"] = event
                    case Done(step, tier) | Failed(step, tier):
                        self._heard[step, tier] = event
                    case Freed():
                        # The link has already updated the buffer.
                        pass
                self._news.notify_all()

    def _fail(self, step: int, tiers: Collection[str], reason: str) -> None:
        with self._news:
            for tier in tiers:
                self._heard.setdefault((step, tier), Failed(step, tier, reason))
            self._news.notify_all()

    def heard(self, step: int, tier: str) -> Sealed | Done | Failed:
        """Wait for the keeper's report on a save in a tier, and return it."""
        with self._news:
            self._news.wait_for(lambda: (step, tier) in self._heard or self._gone is not None)
            return self._heard.pop((step, tier), None) or Failed(step, tier, self._gone or "")

    def ended(self, outcome: SaveOutcome, superseded: SupersededError | None = None) -> None:
        """Record that a lane has finished one save."""
        with self._news:
            self._superseded = self._superseded or superseded
            self._outcomes.append(outcome)
            self._open -= 1
            self._cleaning += 1
            self._news.notify_all()

    def agreed(self, step: int, tier: str, everyone: list[Written]) -> tuple[int, int]:
        """Act on all ranks having the save in this tier. Returns bytes and files of all; runs on every rank."""
        if tier == "memory":
            if self._link is not None and self._gone is None:
                self._link.confirm(step)
            return 0, 0
        if tier == "peer":
            return 0, 0
        if self._ranks.rank == 0:
            self._committer.commit(step, tier, everyone)
        return self._committer.bytes_of(everyone), self._committer.files_of(everyone)

    def refuse_superseded(self, tier: str) -> None:
        """Raise SupersededError if a rank's failed write is due to a newer generation, which deletes what this one
        writes; first rank only."""
        if tier in TIERS:
            with contextlib.suppress(OSError, ChainError):
                self._committer.refuse_superseded()

    def clean(self, tier: str) -> None:
        """Delete what a finished save has superseded, in parallel with what follows."""
        gone = self._committer.clean(tier) if self._ranks.rank == 0 and tier in TIERS else ()
        with self._news:
            self._retired.extend(gone)
            self._cleaning -= 1
            self._news.notify_all()

    def disagreed(self, step: int, tier: str) -> None:
        """Drop the capture when not all ranks have it: an unconfirmed capture would keep its buffer, and block later saves."""
        with self._news:
            link = self._link if self._gone is None else None
        if tier == "memory" and link is not None:
            with contextlib.suppress(KeeperError):
                link.drop(step)

    def _raise_superseded(self) -> None:
        if self._superseded is not None:
            raise self._superseded


class _Lane:
    """One tier of one rank: takes its saves in order, gets the local result of each, and agrees on it with the other ranks."""

    def __init__(self, saver: Saver, tier: str, ranks: Ranks) -> None:
        self._saver, self._tier, self._ranks = saver, tier, ranks
        self._queue: SimpleQueue[_Pending | None] = SimpleQueue()
        threading.Thread(target=self._run, name=f"checkpoint-{tier}", daemon=True).start()

    def put(self, pending: _Pending | None) -> None:
        self._queue.put(pending)

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
                self._saver.disagreed(pending.step, self._tier)
            seconds = time.monotonic() - pending.began
            self._saver.ended(SaveOutcome(pending.step, self._tier, seconds, *written, error=error), superseded)
            self._saver.clean(self._tier)

    def _agree(self, step: int) -> tuple[int, int]:
        """Agree with all ranks on `step`. Collective. Raises OSError where it failed and PeerError elsewhere."""
        heard = self._saver.heard(step, self._tier)
        everyone = [_unpack(raw) for raw in self._ranks.gather(_pack(heard))]
        if None in everyone:
            self._ranks.together(lambda: self._saver.refuse_superseded(self._tier), only=0)
        if isinstance(heard, Failed):
            raise OSError(heard.reason)
        if None in everyone:
            raise PeerError(f"rank {everyone.index(None)} could not save it")
        written = [found for found in everyone if found is not None]
        found: list[tuple[int, int]] = []
        self._ranks.together(lambda: found.append(self._saver.agreed(step, self._tier, written)))
        return found[0]


def _pack(heard: Sealed | Done | Failed) -> bytes:
    match heard:
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
