"""Implements the few collectives that a checkpoint needs: gather bytes, pass them along ranks, and fail together."""

import ctypes
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.constants import default_pg_timeout
from torch.distributed.distributed_c10d import PrefixStore, _get_default_group, _get_default_store

from headway.runner.checkpoint.chain import SupersededError
from headway.runner.checkpoint.format import UnfitError

_OK, _FAILED, _SUPERSEDED, _UNFIT = b"\0", b"\1", b"\2", b"\3"


class PeerError(Exception):
    """Another rank failed in a collective step; its own log has the reason."""


class AbsentError(PeerError):
    """Ranks did not come to a collective step; the message names them."""


class RankGroups:
    """The process group of some ranks, and how to make another one of them: torch.distributed's default group where `group` is None.

    Each of `copies` groups of consecutive ranks has device meshes of its own, and all of them hold the same.
    """

    def __init__(self, group: Any = None, store: Any = None, copies: int = 1) -> None:
        """`store` is one that only these ranks share; the default store when omitted."""
        self.group, self.store, self.copies = group, store, copies

    def wait(self, work: Any) -> None:
        """Return when a gather that has begun is complete."""
        work.wait()

    def make(self, store: Any, rank: int, world_size: int, patience: timedelta) -> Any:
        """Return a gloo group of the ranks that share `store`."""
        return gloo_group(store, rank, world_size, patience)

    def with_group(self, group: Any, store: Any) -> "RankGroups":
        """Return the same for another group of these ranks."""
        return RankGroups(group)


class Ranks:
    """This rank among all of them, over one CPU process group. One rank needs no group."""

    def __init__(self, rank: int = 0, world_size: int = 1, groups: "RankGroups | None" = None) -> None:
        """Use the process group of `groups`; torch.distributed's default group when omitted."""
        self.rank, self.world_size = rank, world_size
        self._groups = groups or RankGroups()
        self._name = "default"
        # Meetings, and groups made of this one.
        self._met, self._apart = 0, 0

    @property
    def _group(self) -> Any:
        return self._groups.group or _get_default_group()

    @property
    def _store(self) -> Any:
        return self._groups.store or _get_default_store()

    @classmethod
    def of_default_group(cls) -> "Ranks":
        """Return all ranks of torch.distributed, or this one alone where it is not initialized."""
        if not dist.is_initialized():
            return cls()
        return cls(dist.get_rank(), dist.get_world_size())

    def apart(self, patience: timedelta | None = None) -> "Ranks":
        """Return the same ranks over a separate gloo group, so that another thread may use it, also next to NCCL;
        collective.

        `patience`: how long a rank may wait for the others; torch's default when omitted. A rank that is gone ends it
        at once.
        """
        if self.world_size == 1:
            return Ranks()
        patience = patience or default_pg_timeout
        self._apart += 1
        # Ranks of which some came later have made other numbers of groups before.
        name = str(len(_kept)) if self._groups.store is None else str(self._apart)
        store = PrefixStore(f"headway/{name}", self._store)
        group = self._groups.make(store, self.rank, self.world_size, patience)
        ranks = Ranks(self.rank, self.world_size, self._groups.with_group(group, store))
        ranks._name = name
        return ranks

    def holders(self, sharers: Sequence[int]) -> tuple[int, ...]:
        """Return the ranks that hold what the ranks `sharers` of one mesh hold."""
        size = self.world_size // self._groups.copies
        return tuple(copy * size + rank for copy in range(self._groups.copies) for rank in sharers)

    def gather(self, data: bytes) -> list[bytes]:
        """Return every rank's `data`, in rank order. All must have the same length."""
        if self.world_size == 1:
            return [data]
        mine = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        found = [torch.empty_like(mine) for _ in range(self.world_size)]
        self._groups.wait(self._group.allgather([found], [mine]))
        return [bytes(t.numpy()) for t in found]

    def gather_any(self, data: bytes) -> list[bytes]:
        """Return every rank's `data`, in rank order, of any lengths."""
        lengths = [int.from_bytes(raw, "big") for raw in self.gather(len(data).to_bytes(8, "big"))]
        padded = self.gather(data.ljust(max(1, *lengths), b"\0"))
        return [raw[:length] for raw, length in zip(padded, lengths, strict=True)]

    def meet(self, data: bytes) -> list[bytes]:
        """Gather like `gather`, for a step that some rank may skip.

        Raises AbsentError, by name, for ranks that have not come when the group's timeout is over; no collective with
        these ranks is possible any more.
        """
        self._met += 1
        if self.world_size == 1:
            return [data]
        store = PrefixStore(f"headway/met/{self._name}", self._store)
        store.set(str(self.rank), str(self._met))
        try:
            return self.gather(data)
        except RuntimeError as error:
            raise AbsentError(f"{self._missing(store)}: {error}".splitlines()[0]) from None

    def _missing(self, store: Any) -> str:
        came = {rank: int(store.get(str(rank))) for rank in range(self.world_size) if store.check([str(rank)])}
        missing = [rank for rank in range(self.world_size) if came.get(rank, 0) < self._met]
        if not missing:
            return "ranks are gone"
        return f"rank {missing[0]} has not joined" if len(missing) == 1 else f"ranks {missing} have not joined"

    def relay(self, along: Sequence[int], data: torch.Tensor) -> None:
        """Pass the bytes of the first of `along`, in `data`, to the others of it, from one to the next.

        Ranks that relay several must use one order that is the same for all, to avoid a deadlock.
        """
        at = along.index(self.rank)
        if at > 0:
            self._group.recv([data], along[at - 1], 0).wait()
        if at + 1 < len(along):
            self._group.send([data], along[at + 1], 0).wait()

    def together(self, step: Callable[[], None], only: int | None = None) -> None:
        """Run `step` on every rank, or only on rank `only`, and raise on all ranks if it raised on any.

        The rank that failed raises its own error, the others PeerError; where any rank raised SupersededError, or else
        UnfitError, all do.
        """
        error: Exception | None = None
        if only is None or only == self.rank:
            try:
                step()
            except Exception as caught:
                error = caught
        outcomes = self.gather(_outcome(error))
        if _SUPERSEDED in outcomes and not isinstance(error, SupersededError):
            raise SupersededError("a newer generation has claimed the run") from error
        if _SUPERSEDED not in outcomes and _UNFIT in outcomes and not isinstance(error, UnfitError):
            raise UnfitError(f"the checkpoint does not fit the state of rank {outcomes.index(_UNFIT)}; see its log") from error
        if error is not None:
            raise error
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


# Never destroyed: its destructor joins threads, of which one now and then misses that it is to end (torch 2.13).
_kept: list[Any] = []


def gloo_group(store: Any, rank: int, world_size: int, patience: timedelta) -> Any:
    """Return a gloo group of the ranks that share `store`, over existing devices. Raises RuntimeError when they do not meet.

    torch's `new_group` makes a device for each group, and the thread of a device wakes up a hundred times a second,
    idle or not: 0.2 % of a core each.
    """
    gloo: Any = dist.ProcessGroupGloo
    if devices := _devices():
        options = gloo._Options()
        options._devices, options._timeout = devices, patience
        group = gloo(store, rank, world_size, options)
    else:
        group = gloo(store, rank, world_size, timeout=patience)
    _kept.append(group)
    # Not at the end of the interpreter either.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(group))
    return group


def _devices() -> list[Any]:
    """Return the devices of the default group, if it has gloo, or else of the first one made here."""
    try:
        backend: Any = _get_default_group()._get_backend(torch.device("cpu"))
        found: list[Any] = backend.options._devices
    except (RuntimeError, AttributeError):
        # NCCL alone, or a wrapper for debugging.
        found = _kept[0].options._devices if _kept else []
    return found
