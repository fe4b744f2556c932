"""Delivers captures that all ranks of a node have sealed to the requested tiers."""

import threading
from collections.abc import Callable, Mapping
from functools import partial

from headway.runner.checkpoint.keeper.capture import CaptureStorage, NodeCapture, Stored
from headway.runner.checkpoint.keeper.captures import Captures
from headway.runner.checkpoint.keeper.gathering import Gathered
from headway.runner.checkpoint.keeper.protocol import Done, Failed
from headway.runner.checkpoint.keeper.tiers import KeeperTier, Report, Upload

# A tier that falls behind stores the newest capture and skips those before it. A disk does not: every requested save is
# written.
_NEWEST_ONLY = frozenset({"peer", "remote"})


class Delivery:
    """Queues captures to tiers. `open_storage` returns the storage of a tier at a location; `idle` is called each time
    that no work is pending."""

    def __init__(self, captures: Captures, open_storage: Callable[[str, str], CaptureStorage], idle: Callable[[], None]) -> None:
        self._captures, self._open, self._idle = captures, open_storage, idle
        self._tiers: dict[str, KeeperTier] = {}
        self._storages: dict[tuple[str, str], CaptureStorage] = {}
        self._jobs = 0
        self._lock = threading.Lock()

    @property
    def jobs(self) -> int:
        """Return the number of pending jobs."""
        return self._jobs

    def bring(self, gathered: Gathered, slot: int, places: Mapping[str, str], report: Report) -> None:
        """Queue the captures for every tier. Each tier reads the buffers until it has finished."""
        buffers = tuple(buffer for _, buffer in sorted(gathered.buffers.items()))
        sealed = [buffer.sealed for buffer in buffers if buffer.sealed is not None]
        checkpoint, captures = gathered.checkpoint, tuple(one.capture for one in sealed)
        node = NodeCapture(sealed[0].run, slot, checkpoint.step, checkpoint.generation, captures)
        for name in gathered.tiers:
            for buffer in buffers:
                self._captures.read(buffer)
            self._tier(name).put(Upload(node, partial(self._storage, name, places.get(name)), buffers, report))

    def make_room(self, rank: int, step: int) -> None:
        """End the jobs of captures older than `step` that only wait for a slow tier: the rank has no free buffer left.

        A tier with one capture in progress and another waiting would otherwise keep the rank from saving until the
        first is stored.
        """
        with self._lock:
            behind = [tier for name, tier in self._tiers.items() if name in _NEWEST_ONLY]
        for tier in behind:
            tier.give_up(partial(_is_in_the_way, rank), f"superseded in memory by step {step} while it waited")

    def _tier(self, name: str) -> KeeperTier:
        with self._lock:
            self._jobs += 1
            if name not in self._tiers:
                self._tiers[name] = KeeperTier(name, self._ended, newest_only=name in _NEWEST_ONLY)
            return self._tiers[name]

    def _storage(self, name: str, place: str | None) -> CaptureStorage:
        if place is None:
            raise LookupError(f"the location of tier `{name}` was never set")
        # Only the tier's own thread requests its storages.
        if (name, place) not in self._storages:
            self._storages[name, place] = self._open(name, place)
        return self._storages[name, place]

    def _ended(self, name: str, job: Upload, outcome: list[Stored] | str) -> None:
        step, stored = job.node.step, {}
        if not isinstance(outcome, str):
            stored = {one.rank: one for one in outcome}
        for capture in job.node.ranks:
            failed = Failed(step, name, outcome) if isinstance(outcome, str) else None
            job.report(capture.rank, failed or Done(step, name, stored.get(capture.rank)))
        for buffer in job.buffers:
            self._captures.release(buffer)
        with self._lock:
            self._jobs -= 1
            idle = self._jobs == 0
        if idle:
            self._idle()


def _is_in_the_way(rank: int, job: Upload) -> bool:
    """Return whether the rank's buffer is taken for this job alone: no restart would use its content any more."""
    return any(buffer.rank == rank and not buffer.wanted for buffer in job.buffers)
