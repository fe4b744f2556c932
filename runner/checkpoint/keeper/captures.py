"""Manages the buffers of a node's ranks and the captures in them, for as long as each is needed."""

import threading
from collections.abc import Callable, Collection
from dataclasses import dataclass

from headway.runner.checkpoint.keeper.capture import Capture
from headway.runner.checkpoint.keeper.memory import KeeperMemory, NoMemoryError, Region, pages
from headway.runner.checkpoint.keeper.protocol import Holding
from headway.runner.contract import CheckpointId


class BufferTakenError(Exception):
    """A worker names a buffer that it was not given, or one whose content is still needed."""


@dataclass(frozen=True)
class SealedCapture:
    """A sealed capture: its checkpoint, and its part in memory (record_bytes) with that part's hash."""

    run: str
    checkpoint: CheckpointId
    capture: Capture
    part: bytes
    part_xxh3_128: str

    @property
    def holding(self) -> Holding:
        place = self.checkpoint
        return Holding(self.capture.rank, place.step, place.generation, self.part_xxh3_128, self.capture.layout.bytes)


@dataclass
class CaptureBuffer:
    """One of a rank's buffers. `readers` counts the users of its content: hashing, tiers, a partner."""

    rank: int
    # None: outgrown; it is freed with its capture.
    index: int | None
    region: Region
    sealed: SealedCapture | None = None
    wanted: bool = False
    readers: int = 0
    # The newest generation that has fetched this capture.
    fetched_by: int = 0

    @property
    def free(self) -> bool:
        return self.sealed is None and self.readers == 0


class Captures:
    """Tracks buffers: each is free, read, or holds a sealed capture. A half-written one is never listed: it has not
    been sealed.

    `freed` is called with rank and index of each buffer that has become free. Nothing changes while `lock` is held.
    """

    def __init__(self, memory: KeeperMemory, freed: Callable[[int, int], None]) -> None:
        self._memory, self._freed = memory, freed
        self._buffers: dict[int, list[CaptureBuffer]] = {}
        # The generation of each rank that its buffers were last reserved for.
        self._generations: dict[int, int] = {}
        # Generation and step of the newest confirmation of each rank.
        self._newest_said: dict[int, tuple[int, int]] = {}
        # The confirmed capture of each rank.
        self._confirmed: dict[int, CheckpointId] = {}
        self.lock = threading.RLock()

    # --- a worker's buffers -------------------------------------------------------------------------------------------

    def reserve(self, rank: int, generation: int, size: int, count: int) -> list[CaptureBuffer]:
        """Return the rank's `count` buffers of at least `size` bytes: the existing ones, if they fit. Raises
        NoMemoryError.

        In a new generation at least one of them is free: of the earlier captures, the fetched one is kept, or else the
        newest confirmed.
        """
        with self.lock:
            self._outgrow(rank, pages(size), count)
            try:
                self._fill(rank, size, count)
            except NoMemoryError:
                self._forget_before(rank, generation)
                self._fill(rank, size, count)
            own = self._own(rank)
            if generation > self._generations.get(rank, 0) and not any(buffer.free for buffer in own):
                self._keep_base(rank, generation)
            self._generations[rank] = generation
            return own

    def begin(self, rank: int, index: int) -> CaptureBuffer:
        """Return the buffer, protected until `release`. Raises BufferTakenError when the rank may not fill it."""
        with self.lock:
            for buffer in self._own(rank):
                if buffer.index == index and buffer.free:
                    buffer.readers += 1
                    return buffer
            raise BufferTakenError(f"buffer {index} of rank {rank} was not handed out, or is not free")

    def keep(self, buffer: CaptureBuffer, sealed: SealedCapture) -> None:
        """Record that the buffer holds `sealed`, in place of what the rank sealed under the same name before."""
        with self.lock:
            for other in self._of(buffer.rank):
                if other.sealed is not None and other.sealed.checkpoint == sealed.checkpoint:
                    self._unwant(other)
            buffer.sealed, buffer.wanted = sealed, True

    def read(self, buffer: CaptureBuffer) -> None:
        """Add a reader, until `release`."""
        with self.lock:
            buffer.readers += 1

    def release(self, buffer: CaptureBuffer) -> None:
        with self.lock:
            buffer.readers -= 1
            self._settle(buffer)

    # --- what is needed -----------------------------------------------------------------------------------------------

    def confirm(self, rank: int, step: int, generation: int) -> None:
        """Record that all ranks have sealed `step` in `generation`, or start from it: only that capture and newer ones
        are needed.

        Ignored for a generation that another has followed, and for a step older than the last confirmed one.
        """
        with self.lock:
            if (generation, step) < max((self._generations.get(rank, 0), 0), self._newest_said.get(rank, (0, 0))):
                return
            self._newest_said[rank] = generation, step
            known = [buffer.sealed.checkpoint for buffer in self._of(rank) if buffer.sealed is not None]
            same = [checkpoint for checkpoint in known if checkpoint.step == step and checkpoint.generation <= generation]
            confirmed = max(same, key=lambda checkpoint: checkpoint.generation, default=CheckpointId(step, generation))
            self._confirmed[rank] = confirmed
            for buffer in self._of(rank):
                found = buffer.sealed.checkpoint if buffer.sealed is not None else None
                newer = found is not None and found.generation == generation and found.step > step
                if found != confirmed and not newer:
                    self._unwant(buffer)

    def drop(self, rank: int, checkpoint: CheckpointId) -> None:
        """Release a capture that not all ranks have; one that was confirmed stays."""
        with self.lock:
            for buffer in self._of(rank):
                known = buffer.sealed.checkpoint if buffer.sealed is not None else None
                if known == checkpoint and known != self._confirmed.get(rank):
                    self._unwant(buffer)

    def forget_ranks(self, staying: Collection[int], generation: int) -> None:
        """Release what ranks that are no longer on this node have left here before `generation`."""
        with self.lock:
            for rank in [rank for rank in self._buffers if rank not in staying]:
                self._forget_before(rank, generation)
                self._outgrow(rank, 0, 0)

    def is_full(self, rank: int) -> bool:
        """Return whether each buffer of the rank is taken."""
        with self.lock:
            return not any(buffer.free for buffer in self._own(rank))

    def fetched(self, rank: int, checkpoint: CheckpointId, generation: int) -> None:
        """Record that `generation` starts from this capture."""
        with self.lock:
            for buffer in self._of(rank):
                if buffer.sealed is not None and buffer.sealed.checkpoint == checkpoint:
                    buffer.fetched_by = generation

    # --- what is held -------------------------------------------------------------------------------------------------

    def holdings(self) -> list[Holding]:
        with self.lock:
            every = [buffer for rank in self._buffers for buffer in self._of(rank)]
            return [buffer.sealed.holding for buffer in every if buffer.sealed is not None]

    def find(self, rank: int, checkpoint: CheckpointId) -> CaptureBuffer | None:
        """Return the buffer with this capture, protected until `release`."""
        with self.lock:
            for buffer in self._of(rank):
                if buffer.sealed is not None and buffer.sealed.checkpoint == checkpoint:
                    buffer.readers += 1
                    return buffer
            return None

    def _of(self, rank: int) -> list[CaptureBuffer]:
        return list(self._buffers.get(rank, ()))

    def _own(self, rank: int) -> list[CaptureBuffer]:
        return [buffer for buffer in self._of(rank) if buffer.index is not None]

    def _outgrow(self, rank: int, size: int, count: int) -> None:
        """Take from the rank the buffers that are not of `size` bytes, or are too many."""
        fitting = [buffer for buffer in self._own(rank) if buffer.region.bytes == size][:count]
        for buffer in self._own(rank):
            buffer.index = fitting.index(buffer) if buffer in fitting else None
            self._settle(buffer)

    def _fill(self, rank: int, size: int, count: int) -> None:
        """Allocate the buffers that the rank does not have yet."""
        buffers = self._buffers.setdefault(rank, [])
        for index in range(len(self._own(rank)), count):
            buffers.append(CaptureBuffer(rank, index, self._memory.region(size)))

    def _keep_base(self, rank: int, generation: int) -> None:
        """Keep the one capture of a full set that `generation` can have started from."""

        def value(buffer: CaptureBuffer) -> tuple[bool, bool, int, int]:
            checkpoint = buffer.sealed.checkpoint if buffer.sealed is not None else CheckpointId(0, 0)
            confirmed = checkpoint == self._confirmed.get(rank)
            return buffer.fetched_by == generation, confirmed, checkpoint.generation, checkpoint.step

        for buffer in sorted(self._of(rank), key=value)[:-1]:
            self._unwant(buffer)

    def _forget_before(self, rank: int, generation: int) -> None:
        for buffer in self._of(rank):
            if buffer.sealed is not None and buffer.sealed.checkpoint.generation < generation:
                self._unwant(buffer)

    def _unwant(self, buffer: CaptureBuffer) -> None:
        buffer.wanted = False
        self._settle(buffer)

    def _settle(self, buffer: CaptureBuffer) -> None:
        """Free the buffer when it is neither needed nor read; release it if it was outgrown."""
        if buffer.wanted or buffer.readers:
            return
        was_free, buffer.sealed = buffer.free, None
        if buffer.index is not None:
            if not was_free:
                self._freed(buffer.rank, buffer.index)
        elif buffer in self._buffers[buffer.rank]:
            self._buffers[buffer.rank].remove(buffer)
            self._memory.give_back(buffer.region)
