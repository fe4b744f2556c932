"""Saves asynchronously: training blocks only while its state is copied to shared memory; keepers and threads do the rest.

    save: copy -> keeper: hash (memory) -> peer, shared, remote -> all ranks agree -> the first rank commits on the chain

A tier of a save counts when every rank has it. One that fails costs that save there and nothing else. The copy is in
`capture_buffers.py` and `staging.py`, everything after it in `lane.py`, and `save_reports.py` is what they share.
"""

import time
from collections.abc import Callable, Collection, Iterator
from datetime import timedelta

from headway.runner.checkpoint.capture_buffers import CaptureBuffers
from headway.runner.checkpoint.commit import Committer
from headway.runner.checkpoint.keeper.capture import BufferLayout
from headway.runner.checkpoint.keeper.link import KeeperError, KeeperLink
from headway.runner.checkpoint.lane import Lane, MemoryTier, PeerTier, PendingSave, StoredTier, TierActions
from headway.runner.checkpoint.layout import Planner, RankState
from headway.runner.checkpoint.objects import encode
from headway.runner.checkpoint.ranks import AbsentError, PeerError, Ranks
from headway.runner.checkpoint.save_reports import SaveOutcome, SaveReports
from headway.runner.checkpoint.staging import Staging
from headway.runner.checkpoint.tensors import local_tensor
from headway.runner.contract import STORED_TIERS, Checkpoint, CheckpointId

# Ranks wait for the slowest upload.
_PATIENCE = timedelta(days=1)


class Saver:
    """One rank's saves. `save` copies and returns; `outcomes` reports results. All ranks call both in the same order."""

    def __init__(self, committer: Committer, ranks: Ranks, checkpoint: Checkpoint, connect: Callable[[], KeeperLink]) -> None:
        """Connect to the keeper. `connect` returns a new link, also after the keeper has died. Collective."""
        self._checkpoint = checkpoint
        self._planner = Planner(ranks)
        self._staging = Staging()
        self._reports = SaveReports()
        self._buffers = CaptureBuffers(connect, self._reports)
        self._layout: BufferLayout | None = None
        self._absent: AbsentError | None = None
        self._last_step: int | None = None
        tiers = dict(self._tiers(committer, first=ranks.rank == 0))
        self._lanes = {name: Lane(name, tier, ranks.apart(_PATIENCE), self._reports) for name, tier in tiers.items()}

    def _tiers(self, committer: Committer, *, first: bool) -> Iterator[tuple[str, TierActions]]:
        """Yield the tiers by name. Ranks agree on each in-memory capture whatever happens to its other tiers: that frees
        room for the next."""
        yield "memory", MemoryTier(self._buffers)
        if self._checkpoint.has("peer"):
            yield "peer", PeerTier()
        for name in STORED_TIERS:
            if self._checkpoint.has(name):
                yield name, StoredTier(name, committer, first=first)

    # --- saving -------------------------------------------------------------------------------------------------------

    def prepare(self, state: RankState) -> None:
        """Allocate the buffers, so that the first save takes no longer than the others. Collective."""
        planned = self._planner.plan(state.tensors, self._checkpoint.has("memory") or self._checkpoint.has("peer"))
        if not self._buffers.connected or planned.layout is not self._layout:
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
        wanted = self._wanted(tiers)
        try:
            self.prepare(state)
            objects = {name: encode(value, name) for name, value in state.objects.items()}
            buffer = self._buffers.take()
            self._copy(buffer, state)
            self._staging.then(lambda: self._buffers.seal(buffer, step, tuple(wanted), objects))
        except AbsentError as error:
            self._absent, wanted = AbsentError(f"step {step} is not saved: {error}"), []
            raise self._absent from None
        except (KeeperError, OSError, PeerError) as error:
            self._reports.fail(step, wanted, str(error))
        except BaseException as error:
            # For any error: the lanes would otherwise wait for this save forever.
            self._reports.fail(step, wanted, str(error) or type(error).__name__)
            raise
        finally:
            self._put(wanted, PendingSave(step, began))

    def abandon(self, step: int, tiers: Collection[str], reason: str) -> None:
        """Take part in `save` on a rank that has nothing to copy: this save fails, and no other rank is delayed."""
        wanted = self._wanted(tiers)
        self._planner.absent()
        self._reports.fail(step, wanted, reason)
        self._put(wanted, PendingSave(step, time.monotonic()))

    def _wanted(self, tiers: Collection[str]) -> list[str]:
        return [name for name in self._lanes if name == "memory" or name in tiers]

    def _reserve(self, layout: BufferLayout) -> None:
        # If anything below fails, the next save starts from here again.
        self._layout = None
        self._staging.release()
        self._staging.use(layout, self._buffers.reserve(layout, self._checkpoint.buffers))
        self._layout = layout

    def _copy(self, buffer: int, state: RankState) -> None:
        try:
            self._staging.copy(buffer, {name: local_tensor(tensor) for name, tensor in state.tensors.items()}, state.stepped)
        except BaseException:
            self._buffers.give_back(buffer)
            raise

    def _put(self, tiers: Collection[str], pending: PendingSave) -> None:
        self._reports.begin(len(tiers))
        for name in tiers:
            self._lanes[name].put(pending)

    # --- the copy -----------------------------------------------------------------------------------------------------

    def refuse_capture(self) -> None:
        """Raise RuntimeError while a CUDA graph is captured."""
        self._staging.refuse_capture()

    def wait_copied(self) -> None:
        """Wait until the copy of the last save is complete."""
        self._staging.wait_copied()

    # --- results ------------------------------------------------------------------------------------------------------

    def outcomes(self) -> list[SaveOutcome]:
        """Return the results since the last call. Raises SupersededError when a newer generation has claimed the run."""
        self._raise_superseded()
        return self._reports.take_outcomes()

    def retired(self) -> list[CheckpointId]:
        """Return the checkpoints retired since the last call; on the first rank only."""
        return self._reports.take_retired()

    @property
    def superseded(self) -> bool:
        """Return whether `outcomes` would raise: ranks agree on it before one of them leaves."""
        return self._reports.superseded is not None

    def wait(self) -> None:
        """Wait until every save so far has ended in every tier. Raises SupersededError."""
        self._reports.wait(cleaned=False)
        self._raise_superseded()

    def wait_quietly(self) -> None:
        """Wait until every save has ended and superseded checkpoints are deleted, whichever generation owns the run."""
        self._reports.wait(cleaned=True)

    def close(self) -> None:
        """End the threads, after the saves in progress."""
        self.wait_quietly()
        for lane in self._lanes.values():
            lane.close()
        self._staging.close()
        self._buffers.close()

    def forsake(self) -> None:
        """Give up the saves in progress: ranks that take part in them are gone. `outcomes` still reports on them as they end."""
        for lane in self._lanes.values():
            lane.close()
        self._buffers.close()

    def _raise_superseded(self) -> None:
        if self._reports.superseded is not None:
            raise self._reports.superseded
