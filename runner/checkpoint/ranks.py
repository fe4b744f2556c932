"""The few collectives that a checkpoint needs: bytes gathered from all ranks, passed along some of them, and failing together."""

from collections.abc import Callable, Sequence
from datetime import timedelta

import torch
import torch.distributed as dist

from headway.runner.checkpoint.chain import SupersededError
from headway.runner.checkpoint.format import UnfitError

_OK, _FAILED, _SUPERSEDED, _UNFIT = b"\0", b"\1", b"\2", b"\3"


class PeerError(Exception):
    """Another rank failed in a step that all ranks take together; its own log says why."""


class Ranks:
    """This rank among all of them, over one CPU process group. One rank needs no group."""

    def __init__(self, rank: int = 0, world_size: int = 1, group: dist.ProcessGroup | None = None) -> None:
        self.rank, self.world_size, self._group = rank, world_size, group

    @classmethod
    def of_default_group(cls) -> "Ranks":
        """All ranks of torch.distributed, or this one alone where it is not initialized."""
        if not dist.is_initialized():
            return cls()
        return cls(dist.get_rank(), dist.get_world_size())

    def apart(self, patience: timedelta | None = None) -> "Ranks":
        """The same ranks over a gloo group of its own, so that another thread may use it, also beside NCCL; collective.

        `patience`: how long a rank may wait for the others; torch's default when left out. A rank that is gone ends it at once.
        """
        if self.world_size == 1:
            return Ranks()
        return Ranks(self.rank, self.world_size, dist.new_group(backend="gloo", timeout=patience))

    def gather(self, data: bytes) -> list[bytes]:
        """Every rank's `data`, in rank order. All must have the same length."""
        if self.world_size == 1:
            return [data]
        mine = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        found = [torch.empty_like(mine) for _ in range(self.world_size)]
        dist.all_gather(found, mine, group=self._group)
        return [bytes(t.numpy()) for t in found]

    def gather_any(self, data: bytes) -> list[bytes]:
        """Every rank's `data`, in rank order, of any lengths."""
        lengths = [int.from_bytes(raw, "big") for raw in self.gather(len(data).to_bytes(8, "big"))]
        padded = self.gather(data.ljust(max(1, *lengths), b"\0"))
        return [raw[:length] for raw, length in zip(padded, lengths, strict=True)]

    def relay(self, along: Sequence[int], data: torch.Tensor) -> None:
        """Passes the bytes that the first of `along` has in `data` to the others of it, from one to the next.

        Ranks that relay several must do so in one order that is the same for all: then nobody waits in a circle.
        """
        at = along.index(self.rank)
        if at > 0:
            dist.recv(data, src=along[at - 1], group=self._group)
        if at + 1 < len(along):
            dist.send(data, dst=along[at + 1], group=self._group)

    def together(self, step: Callable[[], None], only: int | None = None) -> None:
        """Runs `step` on every rank, or only on rank `only`, and raises on all ranks if it raised on any.

        The rank that failed raises its own error, the others PeerError; SupersededError and UnfitError are raised as such everywhere.
        """
        error: Exception | None = None
        if only is None or only == self.rank:
            try:
                step()
            except Exception as caught:
                error = caught
        outcomes = self.gather(_outcome(error))
        if error is not None:
            raise error
        if _SUPERSEDED in outcomes:
            raise SupersededError("a newer generation has claimed the run")
        if _UNFIT in outcomes:
            raise UnfitError(f"the checkpoint does not fit the state of rank {outcomes.index(_UNFIT)}, whose log says more")
        if _FAILED in outcomes:
            raise PeerError(f"rank {outcomes.index(_FAILED)} failed")


def _outcome(error: Exception | None) -> bytes:
    match error:
        case None:
            return _OK
        case SupersededError():
            return _SUPERSEDED
        case UnfitError():
            return _UNFIT
    return _FAILED
