"""Holds copies of other nodes' captures in this node's memory."""

import threading
from dataclasses import dataclass

from headway.runner.checkpoint.keeper.memory import KeeperMemory, NoMemoryError, Region
from headway.runner.checkpoint.keeper.protocol import Holding
from headway.runner.contract import CheckpointId

# Copies of each rank: some nodes may not have copied the newest yet.
KEPT = 2


@dataclass
class Copy:
    """A verified copy of a capture of `size` bytes; `part` is the capture's part in memory, `readers` counts the users
    of the region."""

    rank: int
    checkpoint: CheckpointId
    size: int
    part: bytes
    part_xxh3_128: str
    region: Region
    readers: int = 0
    wanted: bool = True

    @property
    def age(self) -> tuple[int, int]:
        """Return the sort key. A newer generation's capture is newer, whatever its step."""
        return self.checkpoint.generation, self.checkpoint.step

    @property
    def holding(self) -> Holding:
        return Holding(self.rank, self.checkpoint.step, self.checkpoint.generation, self.part_xxh3_128, self.size)


class Copies:
    """The newest KEPT copies of each rank. `region` makes room, `keep` lists what was received into it."""

    def __init__(self, memory: KeeperMemory) -> None:
        self._memory = memory
        self._copies: list[Copy] = []
        self._lock = threading.RLock()

    def region(self, rank: int, generation: int, size: int) -> Region:
        """Return memory for one more copy of `rank`, in place of its oldest. Raises NoMemoryError."""
        with self._lock:
            for copy in self._of(rank)[: 1 - KEPT]:
                self._drop(copy)
            try:
                return self._memory.region(size)
            except NoMemoryError:
                self._drop_others(rank, generation)
                return self._memory.region(size)

    def give_back(self, region: Region) -> None:
        """Release a region whose content is not kept."""
        self._memory.give_back(region)

    def keep(self, copy: Copy) -> None:
        with self._lock:
            for other in self._of(copy.rank):
                if other.checkpoint == copy.checkpoint:
                    self._drop(other)
            self._copies.append(copy)
            mine = self._of(copy.rank)
            for old in mine[:-KEPT]:
                self._drop(old)
            if all(one.checkpoint.generation == copy.checkpoint.generation for one in mine) and len(mine) == KEPT:
                self._drop_others(copy.rank, copy.checkpoint.generation)

    def find(self, rank: int, checkpoint: CheckpointId) -> Copy | None:
        """Return the copy, and protect it until `release`."""
        with self._lock:
            for copy in self._of(rank):
                if copy.checkpoint == checkpoint:
                    copy.readers += 1
                    return copy
            return None

    def release(self, copy: Copy) -> None:
        with self._lock:
            copy.readers -= 1
            self._settle(copy)

    def holdings(self) -> list[Holding]:
        with self._lock:
            return [copy.holding for copy in self._copies]

    def _of(self, rank: int) -> list[Copy]:
        """Return the copies from the oldest to the newest."""
        return sorted((copy for copy in self._copies if copy.rank == rank), key=lambda copy: copy.age)

    def _drop_others(self, rank: int, generation: int) -> None:
        """Drop copies of ranks that were copied here before `generation` began, and are not any more."""
        current = {copy.rank for copy in self._copies if copy.checkpoint.generation >= generation} | {rank}
        for copy in [copy for copy in self._copies if copy.rank not in current]:
            self._drop(copy)

    def _drop(self, copy: Copy) -> None:
        self._copies.remove(copy)
        copy.wanted = False
        self._settle(copy)

    def _settle(self, copy: Copy) -> None:
        if not copy.wanted and copy.readers == 0:
            self._memory.give_back(copy.region)
