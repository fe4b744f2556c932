"""The few collectives that a checkpoint needs: fixed-size bytes gathered from all ranks, and failing together."""

from collections.abc import Callable

import torch
import torch.distributed as dist

from headway.runner.checkpoint.chain import SupersededError

_OK, _FAILED, _SUPERSEDED = b"\0", b"\1", b"\2"


class PeerError(Exception):
    """Another rank failed in a step that all ranks take together; its own log says why."""


class Ranks:
    """This rank among all of them, over a CPU process group of its own so that it works beside NCCL. One rank needs no group."""

    def __init__(self, rank: int = 0, world_size: int = 1, group: dist.ProcessGroup | None = None) -> None:
        self.rank, self.world_size, self._group = rank, world_size, group

    def gather(self, data: bytes) -> list[bytes]:
        """Every rank's `data`, in rank order. All must have the same length."""
        if self.world_size == 1:
            return [data]
        mine = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        found = [torch.empty_like(mine) for _ in range(self.world_size)]
        dist.all_gather(found, mine, group=self._group)
        return [bytes(t.numpy()) for t in found]

    def together(self, step: Callable[[], None], only: int | None = None) -> None:
        """Runs `step` on every rank, or only on rank `only`, and raises on all ranks if it raised on any.

        The rank that failed raises its own error, the others PeerError; SupersededError is raised as such everywhere.
        """
        error: Exception | None = None
        if only is None or only == self.rank:
            try:
                step()
            except Exception as caught:
                error = caught
        outcome = _OK if error is None else _SUPERSEDED if isinstance(error, SupersededError) else _FAILED
        outcomes = self.gather(outcome)
        if error is not None:
            raise error
        if _SUPERSEDED in outcomes:
            raise SupersededError("a newer generation has claimed the run")
        if _FAILED in outcomes:
            raise PeerError(f"rank {outcomes.index(_FAILED)} failed")
