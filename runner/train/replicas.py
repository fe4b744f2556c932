"""Connects replica groups so that the others survive the loss of one: members, sums of gradients, and the state for one that returns.

Every group has process groups of its own, which no other group's loss can break. Between the groups there are only the collectives
of this module. They can fail on some ranks and complete on others, so each is followed by an agreement within the group: all ranks of a
group continue, or all raise `ReplicaChangeError` and form a new group with those that are left.

A step is applied after two collectives, the sum of the gradients and the exchange of results. A group that has completed the second knows
that all have completed the first; one that fails in the second gets from a group that has applied the step that it must, too.
"""

import math
import os
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import astuple, dataclass, replace
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore

from headway.runner.boot.heartbeat import current
from headway.runner.checkpoint.ranks import RankGroups, Ranks, gloo_group
from headway.runner.contract import Members, RunConfig
from headway.runner.train.job import Job
from headway.runner.train.parallel import RankMesh, make_mesh
from headway.runner.worker import JOINS, Worker, client_store

T = TypeVar("T")

# From a collective that failed to the coordinator's new members, which take a few round trips, or as long as it takes to give a node up.
_ORDER_S = 30.0
# For groups to connect, once all ranks are known to be there.
_CONNECT = timedelta(seconds=30)
_LOOK_S, _POLL = 0.005, timedelta(seconds=0.05)
# Of a sum of gradients and of the state that is sent: the memory that either takes in addition.
_BUCKET_BYTES = 32 * 1024 * 1024


class ReplicaChangeError(Exception):
    """A collective between replica groups was not completed by all ranks of this group: another group is gone."""


@dataclass(frozen=True)
class ReplicaState:
    """Where a rank is when the members change.

    `level` is twice its step, one more if it has the sum of the next step's gradients, and -1 without a state. `loss`, `norm` and `flags`
    are those of the last applied step, `position` and `digest` those of all samples up to there. `due` are tiers to save to, by bits;
    `stop`: the run is to stop.
    """

    level: int
    loss: float = 0.0
    norm: float = 0.0
    flags: int = 0
    position: int = 0
    digest: int = 0
    due: int = 0
    stop: bool = False

    def pack(self) -> bytes:
        return _PACKED.pack(*astuple(self))

    @classmethod
    def unpack(cls, raw: bytes) -> "ReplicaState":
        return cls(*_PACKED.unpack(raw))


_PACKED = struct.Struct("<qddQQQQ?")


class ReplicaLink:
    """This rank's group among the others.

    `begin`, `follow`, `sum`, `exchange`, `send_state` and `agree` are collective over the members, `join_own` and `own_mesh` over it.
    """

    def __init__(self, worker: Worker, config: RunConfig) -> None:
        self._worker = worker
        self.count = config.mesh.dp_replicate
        self.size = config.mesh.world_size // self.count
        self.replica, self.inner = divmod(worker.rank, self.size)
        # The number of this group's start after a loss; 0: it began with the generation.
        self.start = int(os.environ.get(JOINS, "0"))
        self.order_s = _ORDER_S + config.timeout_s("agent")
        self._patience = timedelta(seconds=config.timeouts["collective"].floor_s)
        self._store = client_store(self._patience)
        self._axis: Any = None
        self.members = Members.everyone(self.count)
        self.own = Ranks(self.inner, self.size)
        # All ranks, while no group is missing.
        self.everyone: Ranks | None = None

    def join_own(self, backend: str) -> None:
        """Make the default process group: the ranks of this group."""
        store = PrefixStore(f"replica/{self.replica}/{self.start}", self._store)
        dist.init_process_group(backend, store=store, rank=self.inner, world_size=self.size, timeout=self._patience)

    def own_mesh(self, device: str, job: Job) -> RankMesh:
        """Return the mesh of this group, whose shares of a batch are those of the whole job."""
        mesh = make_mesh(device, replace(job.config.mesh, dp_replicate=1), job.execution, self.inner)
        return replace(mesh, degrees=job.config.mesh, at={**mesh.at, "dp_replicate": self.replica})

    # --- members ------------------------------------------------------------------------------------------------------

    @property
    def is_full(self) -> bool:
        return len(self.members.replicas) == self.count

    @property
    def is_first(self) -> bool:
        """Whether this rank is the first of those that train."""
        return self.inner == 0 and self.replica == self.members.replicas[0]

    @property
    def is_overtaken(self) -> bool:
        """Whether the coordinator has other members than those that train together now; seen by this rank alone."""
        return self.of_now().epoch > self.members.epoch

    def of_now(self) -> Members:
        """Return the members as the coordinator has decided."""
        return Members.of_word(self._worker.members_word(), self.count)

    def begin(self) -> None:
        """Connect all groups of a new generation. Raises RuntimeError if they do not come."""
        if not self._form(Members.everyone(self.count), self._patience):
            raise RuntimeError(f"the replica groups have not met within {self._patience.total_seconds():.0f} s")

    def follow(self, patience_s: float) -> None:
        """Connect with the members that the coordinator has decided. Raises ReplicaChangeError if there are newer ones by then, and
        ConnectionResetError if it decides nothing: then something else than a lost group has ended the collective."""
        members = self._await_members(patience_s)
        if not self._form(members, _CONNECT):
            raise ReplicaChangeError

    def _await_members(self, patience_s: float) -> Members:
        """Return newer members with this group among them, the same on all ranks of the group."""
        until = time.monotonic() + patience_s
        if self.inner == 0 and math.isfinite(patience_s):
            self._worker.say("parted", epoch=self.members.epoch)
        with _waiting():
            while True:
                late = time.monotonic() > until
                words = [_SEEN.unpack(raw) for raw in self.own.gather(_SEEN.pack(self.of_now().word, late))]
                newest = Members.of_word(max(word for word, _ in words), self.count)
                if newest.epoch > self.members.epoch and self.replica in newest.replicas:
                    return newest
                if any(late for _, late in words):
                    raise ConnectionResetError("a collective between replica groups failed, and none of them is lost")
                time.sleep(_LOOK_S)

    def _form(self, members: Members, connect: timedelta) -> bool:
        """Connect the members' ranks, which takes no longer than `connect` once all have come. Returns False on all ranks of the group when
        there are newer members, or the connection fails."""
        self.members, self._axis, self.everyone = members, None, None
        store = PrefixStore(f"members/{members.epoch}", self._store)
        if not self._meet(store):
            return False
        at = members.replicas.index(self.replica)
        made: list[Any] = []

        def make() -> None:
            made.append(
                self.group(PrefixStore(f"axis/{self.inner}/group", store), at, len(members.replicas), self._patience, connect)
            )
            if self.is_full:
                world = PrefixStore("everyone", store), self._worker.rank, self._worker.world_size
                made.append(self.group(*world, self._patience, connect))

        if not self._all_own(succeeds(make)):
            return False
        self._axis = made[0]
        if self.is_full:
            groups = _Watched(self, made[1], PrefixStore("ranks", store))
            self.everyone = Ranks(self._worker.rank, self._worker.world_size, groups)
        return True

    def _meet(self, store: Any) -> bool:
        """Wait until all ranks of the members have come. Returns False, on all of them, when there are newer members or it takes too long.

        The first group that sees either decides for all: one that connects would wait for one that does not.
        """
        came = self._all_own(self._await_counterparts(PrefixStore(f"axis/{self.inner}", store)))
        decided: bytes = store.compare_set("come", "", "yes" if came else "no")
        return decided == b"yes"

    def _await_counterparts(self, store: Any) -> bool:
        """Wait until this rank's counterparts in all groups have come. Returns False when there are newer members, or it takes too long."""
        until = time.monotonic() + self._patience.total_seconds()
        store.set(str(self.replica), b"1")
        names = [str(replica) for replica in self.members.replicas]
        with _waiting():
            while not store.check(names):
                if self.is_overtaken or time.monotonic() > until:
                    return False
                time.sleep(_LOOK_S)
        return True

    def group(self, store: Any, rank: int, size: int, patience: timedelta, connect: timedelta = _CONNECT) -> Any:
        """Return a gloo group, connected within `connect`. Raises ConnectionResetError if it is not, or a member is lost.

        Another thread connects: gloo waits for a rank that has died as long as for one that is slow.
        """
        epoch = self.members.epoch
        if size == 1:
            return None
        made: list[Any] = []
        # A store's client does one thing at a time: a thread that waits with this rank's own would keep it from following the others.
        own = store.clone()
        thread = threading.Thread(
            target=lambda: made.append(succeeded(lambda: gloo_group(own, rank, size, connect))), daemon=True
        )
        thread.start()
        with _waiting():
            while thread.is_alive():
                thread.join(_LOOK_S)
                self.raise_lost(epoch)
        if (group := made[0]) is None:
            raise ConnectionResetError("the replica groups could not connect")
        group._set_default_timeout(patience)
        return group

    # --- collectives --------------------------------------------------------------------------------------------------

    def sum(self, tensors: Sequence[torch.Tensor]) -> None:
        """Add up the tensors of all groups in place, in fp32. Raises ReplicaChangeError; the tensors are useless then."""
        done = True
        for bucket in _buckets(tensors, 4):
            flat = torch.cat([each.reshape(-1).float() for each in bucket])
            done = done and self._complete("allreduce", [flat])
            if done:
                _scatter(flat, bucket)
        self._agree(done)

    def exchange(self, data: bytes) -> list[bytes]:
        """Return the data of all ranks of the members, in order, of one length. Raises ReplicaChangeError."""
        mine = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        found = [torch.empty_like(mine) for _ in self.members.replicas]
        if self._axis is None:
            found = [mine]
        done = self._complete("allgather", [found], [mine])
        heard = self.own.gather(bytes([done]) + b"".join(bytes(each.numpy()) for each in found))
        if not all(each[0] for each in heard):
            raise ReplicaChangeError
        size = len(data)
        return [each[1 + at * size : 1 + (at + 1) * size] for at in range(len(self.members.replicas)) for each in heard]

    def send_state(self, tensors: Sequence[torch.Tensor], sender: int, receivers: Sequence[int]) -> None:
        """Fill the tensors of the receiving groups with those of the sending one, rank by rank. Raises ReplicaChangeError."""
        done = True
        options = dist.BroadcastOptions()
        options.rootRank = self.members.replicas.index(sender)
        for bucket in _buckets(tensors, 1):
            if self.replica == sender:
                flat = torch.cat([_bytes_of(each) for each in bucket])
            else:
                flat = torch.empty(sum(each.nbytes for each in bucket), dtype=torch.uint8)
            # Also to groups that have it: gloo can give up no send to a single rank without closing all connections.
            done = done and self._complete("broadcast", [flat], options)
            if done and self.replica in receivers:
                _scatter_bytes(flat, bucket)
        self._agree(done)

    def agree(self, ok: bool) -> bool:
        """Return whether it is so on all ranks of all members. Raises ReplicaChangeError."""
        return all(raw == b"\1" for raw in self.exchange(bytes([ok])))

    def _agree(self, done: bool) -> None:
        if not self._all_own(done):
            raise ReplicaChangeError

    def _all_own(self, ok: bool) -> bool:
        return all(raw == b"\1" for raw in self.own.gather(bytes([ok])))

    def _complete(self, collective: str, *arguments: Any) -> bool:
        """Run a collective between the groups. Returns False if it fails, or a group is lost meanwhile."""
        axis, epoch = self._axis, self.members.epoch
        return axis is None or succeeds(lambda: self.wait(getattr(axis, collective)(*arguments), epoch))

    def wait(self, work: Any, epoch: int) -> None:
        """Wait for a collective of the members of `epoch`. Raises ConnectionResetError once one is lost.

        gloo reports that only to the ranks that exchange something with the lost one.
        """
        with _waiting():
            while not work.is_completed():
                with suppress(RuntimeError):
                    _WAIT(work, _POLL)
                self.raise_lost(epoch)
            try:
                _WAIT(work)
            except RuntimeError as error:
                raise ConnectionResetError(str(error)) from None

    def raise_lost(self, epoch: int) -> None:
        """Raise ConnectionResetError if the coordinator has lost a member of `epoch`."""
        now, is_over = self.of_now(), epoch != self.members.epoch
        if is_over or (now.epoch > epoch and not set(self.members.replicas) <= set(now.replicas)):
            raise ConnectionResetError("a replica group is lost")

    # --- shares -------------------------------------------------------------------------------------------------------

    def rounds(self, each: int) -> Iterator[tuple[int, list[int]]]:
        """Yield the groups whose shares of a batch this one computes, its own first, and which of their `each` rounds: those of missing
        groups are dealt out in turn."""
        yield self.replica, list(range(each))
        members = self.members.replicas
        missing = [replica for replica in range(self.count) if replica not in members]
        dealt = [(replica, index) for replica in missing for index in range(each)][members.index(self.replica) :: len(members)]
        for replica in missing:
            if indexes := [index for of, index in dealt if of == replica]:
                yield replica, indexes


class _Watched(RankGroups):
    """All ranks, while no replica group is missing; nothing waits for one that is lost."""

    def __init__(self, replicas: ReplicaLink, group: Any, store: Any) -> None:
        super().__init__(group, store, replicas.count)
        self._replicas, self._epoch = replicas, replicas.members.epoch

    def wait(self, work: Any) -> None:
        self._replicas.wait(work, self._epoch)

    def make(self, store: Any, rank: int, world_size: int, patience: timedelta) -> Any:
        return self._replicas.group(store, rank, world_size, patience)

    def with_group(self, group: Any, store: Any) -> RankGroups:
        return _Watched(self._replicas, group, store)


# Not the hooked one, which counts as a heartbeat each time.
_WAIT: Any = getattr(dist.Work.wait, "__wrapped__", dist.Work.wait)
_SEEN = struct.Struct("<q?")


@contextmanager
def _waiting() -> Iterator[None]:
    """Report that this rank waits for others, once for all of a wait."""
    signs = current()
    if signs is None or not signs.begin("collective"):
        yield
        return
    signs.wait_begins()
    try:
        yield
    finally:
        signs.wait_ends()
        signs.end()


def succeeds(work: Callable[[], object]) -> bool:
    """Return whether the work raises nothing that a lost rank may be the cause of."""
    try:
        work()
    except (RuntimeError, OSError) as error:
        print(f"between replica groups: {error}".splitlines()[0], flush=True)
        return False
    return True


def succeeded(work: Callable[[], T]) -> T | None:
    """Return what the work returns; None if it fails as `succeeds` has it."""
    found: list[T] = []
    return found[0] if succeeds(lambda: found.append(work())) else None


def _buckets(tensors: Sequence[torch.Tensor], item_bytes: int) -> Iterator[list[torch.Tensor]]:
    """Yield the tensors in order, in buckets of about _BUCKET_BYTES; `item_bytes` of an element, 1 if they are sent as they are."""
    bucket: list[torch.Tensor] = []
    held = 0
    for each in tensors:
        bucket.append(each)
        held += each.nbytes if item_bytes == 1 else each.numel() * item_bytes
        if held >= _BUCKET_BYTES:
            yield bucket
            bucket, held = [], 0
    if bucket:
        yield bucket


def _scatter(flat: torch.Tensor, tensors: Sequence[torch.Tensor]) -> None:
    for part, each in zip(torch.split(flat, [each.numel() for each in tensors]), tensors, strict=True):
        each.copy_(part.view(each.shape))


def _bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().reshape(-1).contiguous().view(torch.uint8)


def _scatter_bytes(flat: torch.Tensor, tensors: Sequence[torch.Tensor]) -> None:
    for part, each in zip(torch.split(flat, [each.nbytes for each in tensors]), tensors, strict=True):
        each.copy_(part.clone().view(each.dtype).view(each.shape))
