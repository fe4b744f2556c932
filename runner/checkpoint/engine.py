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

from headway.runner.checkpoint.chain import TIERS, ChainError, CheckpointId, SupersededError
from headway.runner.checkpoint.commit import Committer, Written
from headway.runner.checkpoint.keeper.capture import Layout
from headway.runner.checkpoint.keeper.link import Buffer, KeeperError, Link
from headway.runner.checkpoint.keeper.protocol import Done, Failed, Freed, Sealed
from headway.runner.checkpoint.layout import Planner, State
from headway.runner.checkpoint.objects import encode
from headway.runner.checkpoint.ranks import AbsentError, PeerError, Ranks
from headway.runner.checkpoint.staging import Staging
from headway.runner.checkpoint.tensors import local_tensor
from headway.runner.contract import Checkpoint

_PACKED = 1 + 16 + 8
_PATIENCE = timedelta(days=1)  # ranks wait for the slowest upload


@dataclass(frozen=True)
class Outcome:
    """How the save of `step` to `tier` ended, `seconds` after it began. `bytes` is the data of all ranks there, in so many `files` with
    parts and manifest; `error` says why it does not count."""

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
    """One rank's saves. `save` copies and returns; `outcomes` says what has become of them. All ranks call both alike."""

    def __init__(self, committer: Committer, ranks: Ranks, checkpoint: Checkpoint, connect: Callable[[], Link]) -> None:
        """`connect` gives a link to the node's keeper, again after that has died. Collective."""
        self._ranks, self._checkpoint, self._connect, self._committer = ranks, checkpoint, connect, committer
        self._planner = Planner(ranks)
        self._staging = Staging()
        self._link: Link | None = None
        self._layout: Layout | None = None
        self._buffers: list[Buffer] = []
        self._copying: set[int] = set()  # buffers that a device still writes to
        self._news = threading.Condition()
        self._heard: dict[tuple[int, str], Sealed | Done | Failed] = {}
        self._gone: str | None = None  # why the keeper cannot be heard
        self._outcomes: deque[Outcome] = deque()
        self._superseded: SupersededError | None = None
        self._absent: AbsentError | None = None
        self._open = 0  # tiers of saves that have not ended
        self._cleaning = 0  # those that have, and after which something may still be deleted
        self._retired: deque[CheckpointId] = deque()
        self._last_step: int | None = None
        self._lanes = {tier: _Lane(self, tier, ranks.apart(_PATIENCE)) for tier in self._lane_names()}

    def _lane_names(self) -> Iterator[str]:
        """A capture in memory is agreed on whatever else becomes of it: it is what makes room for the next."""
        yield "memory"
        yield from (tier for tier in ("peer", "disk", "remote") if self._checkpoint.has(tier))

    # --- what the trainer calls ---------------------------------------------------------------------------------------

    def prepare(self, state: State) -> None:
        """Makes the buffers, so that the first save takes no longer than the others. Collective."""
        planned = self._planner.plan(state.tensors, self._checkpoint.has("memory") or self._checkpoint.has("peer"))
        if self._link is None or self._gone is not None or planned.layout is not self._layout:
            self.wait_quietly()  # before buffers change hands, what is under way ends
            self._reserve(planned.layout)

    def save(self, step: int, state: State, tiers: Collection[str]) -> None:
        """Copies the state and has it brought to `tiers`. Returns when the copy is made: at once where a buffer is free.

        Raises ObjectError for an object that a checkpoint cannot hold, and for a tensor what torch raises; AbsentError where ranks do not
        come to this save, and at every further one: they cannot be met again. That a newer generation has claimed the run is said by
        `outcomes`, for all ranks to agree on.
        """
        if self._absent is not None:
            raise self._absent
        began = time.monotonic()
        if step == self._last_step:  # again, to other tiers perhaps: two saves under one name must not meet
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
        except BaseException as error:  # whatever it is: the lanes would wait for word of this save for ever
            self._fail(step, wanted, str(error) or type(error).__name__)
            raise
        finally:
            self._put(wanted, _Pending(step, began))

    def abandon(self, step: int, tiers: Collection[str], reason: str) -> None:
        """In place of `save`, on a rank that has nothing to copy: it costs this save, and holds no other rank up."""
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
        """Raises RuntimeError while a CUDA graph is captured."""
        self._staging.refuse_capture()

    def wait_copied(self) -> None:
        """Until the copy of the last save is made."""
        self._staging.wait_copied()

    def outcomes(self) -> list[Outcome]:
        """What has ended since the last call. Raises SupersededError when a newer generation has claimed the run."""
        self._raise_superseded()
        return [self._outcomes.popleft() for _ in range(len(self._outcomes))]

    def retired(self) -> list[CheckpointId]:
        """On the first rank: what was retired since the last call."""
        return [self._retired.popleft() for _ in range(len(self._retired))]

    @property
    def superseded(self) -> bool:
        """Whether `outcomes` would raise: for ranks that are to agree on it before one of them leaves."""
        return self._superseded is not None

    def wait(self) -> None:
        """Until every save so far has ended in every tier. Raises SupersededError."""
        with self._news:
            self._news.wait_for(lambda: self._open == 0)
        self._raise_superseded()

    def close(self) -> None:
        """Ends the threads, after the saves that are under way."""
        self.wait_quietly()
        for lane in self._lanes.values():
            lane.put(None)
        self._staging.close()
        if self._link is not None:
            self._link.close()

    def wait_quietly(self) -> None:
        """Until every save has ended, and what they made superfluous is gone; whoever has claimed the run since."""
        with self._news:
            self._news.wait_for(lambda: self._open == 0 and self._cleaning == 0)

    # --- the copy -----------------------------------------------------------------------------------------------------

    def _reserve(self, layout: Layout) -> None:
        self._layout = None  # if anything fails on the way, the next save begins here again
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
        """A buffer that nobody wants to read any more; waits for one. Raises KeeperError when the keeper is gone."""
        with self._news:
            self._news.wait_for(lambda: self._gone is not None or self._unused())
            if self._gone is not None:
                raise KeeperError(self._gone)
            index = self._unused()[0]
            self._copying.add(index)
            return index

    def _unused(self) -> list[int]:
        return [buffer.index for buffer in self._buffers if buffer.free and buffer.index not in self._copying]

    def _copy(self, buffer: int, state: State) -> None:
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

    # --- what the keeper says -----------------------------------------------------------------------------------------

    def _listen(self, link: Link) -> None:
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
                        pass  # the link has told the buffer
                self._news.notify_all()

    def _fail(self, step: int, tiers: Collection[str], reason: str) -> None:
        with self._news:
            for tier in tiers:
                self._heard.setdefault((step, tier), Failed(step, tier, reason))
            self._news.notify_all()

    def heard(self, step: int, tier: str) -> Sealed | Done | Failed:
        """What the keeper has said of a save in a tier; waits for it."""
        with self._news:
            self._news.wait_for(lambda: (step, tier) in self._heard or self._gone is not None)
            return self._heard.pop((step, tier), None) or Failed(step, tier, self._gone or "")

    def ended(self, outcome: Outcome, superseded: SupersededError | None = None) -> None:
        """A lane is done with one save."""
        with self._news:
            self._superseded = self._superseded or superseded
            self._outcomes.append(outcome)
            self._open -= 1
            self._cleaning += 1
            self._news.notify_all()

    def agreed(self, step: int, tier: str, everyone: list[Written]) -> tuple[int, int]:
        """All ranks have the save in this tier: what follows. Returns bytes and files of all; runs on every rank."""
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
        """Some rank could not write to the tier. Raises SupersededError where the reason is a newer generation, which deletes what this
        one writes; for the first rank."""
        if tier in TIERS:
            with contextlib.suppress(OSError, ChainError):
                self._committer.refuse_superseded()

    def clean(self, tier: str) -> None:
        """After a save has ended, beside whatever follows: what it has made superfluous goes."""
        gone = self._committer.clean(tier) if self._ranks.rank == 0 and tier in TIERS else ()
        with self._news:
            self._retired.extend(gone)
            self._cleaning -= 1
            self._news.notify_all()

    def disagreed(self, step: int, tier: str) -> None:
        """Not all ranks have the save in this tier. A capture that is never confirmed would keep its buffer, and those who wait for one."""
        with self._news:
            link = self._link if self._gone is None else None
        if tier == "memory" and link is not None:
            with contextlib.suppress(KeeperError):
                link.drop(step)

    def _raise_superseded(self) -> None:
        if self._superseded is not None:
            raise self._superseded


class _Lane:
    """One tier of one rank: takes its saves in order, hears what became of each here, and agrees on it with the other ranks."""

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
            except Exception as caught:  # it costs this save and no other; a lane that had died would be waited for for ever
                error = str(caught) or type(caught).__name__
                self._saver.disagreed(pending.step, self._tier)
            seconds = time.monotonic() - pending.began
            self._saver.ended(Outcome(pending.step, self._tier, seconds, *written, error=error), superseded)
            self._saver.clean(self._tier)

    def _agree(self, step: int) -> tuple[int, int]:
        """Collective. Raises OSError where it failed and PeerError elsewhere."""
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
