"""Runs several ranks in one process: DTensors of each rank's view, and collectives between threads, so that `save` works as in a job."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from queue import SimpleQueue
from typing import TypeVar

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Placement, Shard
from torch.testing._internal.distributed.fake_pg import FakeStore

from headway.runner.checkpoint.ranks import Ranks

T = TypeVar("T")


@contextmanager
def mesh_of(rank: int, shape: tuple[int, ...]) -> Iterator[DeviceMesh]:
    """The device mesh as `rank` sees it. It has no process group, so nothing may be sent."""
    names = ("outer", "inner")[-len(shape) :]
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=torch.Size(shape).numel())
    try:
        yield init_device_mesh("cpu", shape, mesh_dim_names=names)
    finally:
        dist.destroy_process_group()


def shard(full: torch.Tensor, mesh: DeviceMesh, placements: Sequence[Placement]) -> DTensor:
    """This rank's shard of `full`, split as by torch (chunks of equal size, the last ones short or empty)."""
    local, place = full, mesh.get_coordinate()
    assert place is not None
    for axis, placement in enumerate(placements):
        if isinstance(placement, Shard):
            pieces = local.chunk(mesh.size(axis), placement.dim)
            at = place[axis]
            local = pieces[at] if at < len(pieces) else local.narrow(placement.dim, 0, 0)
    return DTensor.from_local(local.clone(), mesh, placements, run_check=False, shape=full.shape, stride=full.stride())


def views(
    full: dict[str, torch.Tensor], shape: tuple[int, ...], placements: Sequence[Placement]
) -> list[dict[str, torch.Tensor]]:
    """The shards of the tensors in `full` on each rank of a mesh of `shape`."""
    found: list[dict[str, torch.Tensor]] = []
    for rank in range(torch.Size(shape).numel()):
        with mesh_of(rank, shape) as mesh:
            found.append({name: shard(tensor, mesh, placements) for name, tensor in full.items()})
    return found


class Board:
    """Holds the objects that the threads of one job gather."""

    def __init__(self, ranks: int) -> None:
        self.barrier, self.laid = threading.Barrier(ranks), [b""] * ranks
        self.boards: dict[int, Board] = {}
        self.mail = {(a, b): SimpleQueue[torch.Tensor]() for a in range(ranks) for b in range(ranks)}


class ThreadRanks(Ranks):
    """Ranks that are threads of this process."""

    def __init__(self, rank: int, board: Board) -> None:
        super().__init__(rank, len(board.laid))
        self._board, self._made = board, 0

    def gather(self, data: bytes) -> list[bytes]:
        self._board.laid[self.rank] = data
        self._board.barrier.wait(30)
        found = list(self._board.laid)
        self._board.barrier.wait(30)
        return found

    def meet(self, data: bytes) -> list[bytes]:
        return self.gather(data)

    def apart(self, patience: timedelta | None = None) -> "ThreadRanks":
        """Share a new board: the first thread to arrive makes it."""
        boards = self._board.boards
        made = boards.setdefault(self._made, Board(self.world_size))
        self._made += 1
        return ThreadRanks(self.rank, made)

    def relay(self, along: Sequence[int], data: torch.Tensor) -> None:
        at = along.index(self.rank)
        if at > 0:
            data.copy_(self._board.mail[along[at - 1], self.rank].get(timeout=30))
        if at + 1 < len(along):
            self._board.mail[self.rank, along[at + 1]].put(data.clone())


def on_all_ranks(world_size: int, work: Callable[[Ranks], T]) -> list[T | Exception]:
    """Run `work` on every rank at once; return what each returned or raised, in rank order."""
    board, results = Board(world_size), dict[int, T | Exception]()

    def run(rank: int) -> None:
        try:
            results[rank] = work(ThreadRanks(rank, board))
        except Exception as error:
            results[rank] = error

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(world_size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return [results[rank] for rank in range(world_size)]
