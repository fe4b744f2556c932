"""Implements the keeper of a node: its workers, and the handling of each of their requests."""

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import xxhash

from headway.runner.checkpoint.format import record_bytes
from headway.runner.checkpoint.keeper.capture import BufferLayout, Capture, CaptureStorage
from headway.runner.checkpoint.keeper.captures import BufferTakenError, CaptureBuffer, Captures, SealedCapture
from headway.runner.checkpoint.keeper.copies import Copies
from headway.runner.checkpoint.keeper.delivery import Delivery
from headway.runner.checkpoint.keeper.disk import DiskStorage
from headway.runner.checkpoint.keeper.gathering import Gathered, Gathering, TiersDifferError
from headway.runner.checkpoint.keeper.listener import HeldCapture, KeeperListener
from headway.runner.checkpoint.keeper.memory import KeeperMemory, NoMemoryError
from headway.runner.checkpoint.keeper.parts import LayoutError, hash_pieces, memory_part, verify_layout
from headway.runner.checkpoint.keeper.peer import Partner, PeerNetwork
from headway.runner.checkpoint.keeper.protocol import (
    Confirm,
    Describe,
    Drop,
    Failed,
    Fetch,
    Fetched,
    Freed,
    Hello,
    List,
    Listed,
    Reserve,
    Reserved,
    Seal,
    Sealed,
)
from headway.runner.checkpoint.keeper.session import WorkerSession
from headway.runner.checkpoint.keeper.transfer import Name, TransferError
from headway.runner.checkpoint.keeper.wire import Message, Wire, WireError
from headway.runner.contract import CheckpointId

# The tier of every sealed capture.
MEMORY = "memory"
HASHING_THREADS = 4


class Keeper:
    """`attend` serves a connection until it ends; `wait_until_left` returns when no worker is connected and no work is
    pending."""

    def __init__(self, network: PeerNetwork | None = None) -> None:
        """Create the keeper. `network`: how to reach the keepers of other nodes; without it there is no `peer` tier."""
        self._network = network
        self._memory = KeeperMemory()
        self._captures = Captures(self._memory, self._freed)
        self._copies = Copies(self._memory)
        self._delivery = Delivery(self._captures, self._open_storage, self._wake)
        self._hashing = ThreadPoolExecutor(min(HASHING_THREADS, os.cpu_count() or 1), "hash")
        self._run: str | None = None
        self._gathering = Gathering(0, 0)
        # By rank, of the newest generation.
        self._members: dict[int, WorkerSession] = {}
        # Connections that have sent Hello and not ended.
        self._workers = 0
        # A worker has asked for buffers: the keeper ends when all workers are gone.
        self._in_use = False
        self._changed = threading.Condition(threading.RLock())

    def attend(self, wire: Wire) -> None:
        session = WorkerSession(wire)
        try:
            session.run(self._handle)
        finally:
            if session.hello is not None:
                self._leave(session, session.hello)

    def listen(self, host: str, address_file: Path) -> None:
        """Serve the keepers of other nodes; never returns."""
        assert self._network is not None  # noqa: S101  a listening keeper has a secret
        KeeperListener(self._copies, self._lookup, self._network).serve(host, address_file)

    def expect_nobody(self) -> None:
        """End without waiting for a first worker: the process that started this keeper is gone."""
        with self._changed:
            self._in_use = True
            self._changed.notify_all()

    def wait_until_left(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._in_use and self._workers == 0 and self._delivery.jobs == 0)

    # --- requests -----------------------------------------------------------------------------------------------------

    def _handle(self, session: WorkerSession, message: Message) -> None:
        """Handle a request. Raises WireError for a request that this connection may not send; it is closed then."""
        try:
            match message, session.hello:
                case Hello(), None:
                    self._hello(session, message)
                case List(), _:
                    session.answer(Listed((*self._captures.holdings(), *self._copies.holdings())))
                case Fetch(), _:
                    self._fetch(session, message)
                case Reserve(), Hello() as hello:
                    self._reserve(session, hello, message)
                case Describe(layout), Hello():
                    verify_layout(layout)
                    session.layout = layout
                case Seal(), Hello() as hello if session.layout is not None:
                    self._seal(session, hello, session.layout, message)
                case Confirm(step), Hello() as hello:
                    self._confirm(hello, step)
                case Drop(step), Hello() as hello:
                    self._drop(hello, CheckpointId(step, hello.generation))
                case _:
                    raise WireError(f"{type(message).__name__} is not expected here")
        except (BufferTakenError, LayoutError, TiersDifferError) as error:
            raise WireError(str(error)) from None

    def _hello(self, session: WorkerSession, hello: Hello) -> None:
        """Begin a newer generation with its first worker; requests of older generations are refused from then on."""
        with self._changed:
            if self._run not in (None, hello.run) or hello.generation < self._gathering.generation:
                known = f"generation {self._gathering.generation} of run {self._run!r}"
                raise WireError(f"generation {hello.generation} of run {hello.run!r} is not {known}")
            if hello.generation > self._gathering.generation:
                for member in self._members.values():
                    member.hang_up()
                for gathered in self._gathering.take_all():
                    self._let_go(gathered)
                self._gathering, self._members = Gathering(hello.generation, hello.local_ranks), {}
            self._run, session.hello = hello.run, hello
            self._memory.limit_bytes = hello.host_memory_bytes
            self._workers += 1

    def _join(self, session: WorkerSession, hello: Hello) -> None:
        """Add the connection. One that asks for buffers is the rank's worker; one that only fetches may come and go."""
        with self._changed:
            if hello.generation != self._gathering.generation:
                raise WireError(f"generation {hello.generation} is over")
            before = self._members.get(hello.rank, session)
            self._members[hello.rank] = session
            # A worker that leaves before all have come ends nothing.
            self._in_use |= len(self._members) >= hello.local_ranks
            self._gathering.join(hello.rank)
        if before is not session:
            before.hang_up()

    def _reserve(self, session: WorkerSession, hello: Hello, request: Reserve) -> None:
        self._join(session, hello)
        # A Freed must come after the answer that still reports its buffer as taken.
        with self._captures.lock:
            try:
                buffers = self._captures.reserve(hello.rank, hello.generation, request.bytes, request.count)
            except NoMemoryError as error:
                reason = f"{request.count} buffers of {request.bytes} bytes for rank {hello.rank}: {error}"
                session.answer(Failed(0, MEMORY, reason))
                return
            descriptors = tuple(os.dup(buffer.region.descriptor) for buffer in buffers)
            session.answer(Reserved(buffers[0].region.bytes, tuple(buffer.free for buffer in buffers)), descriptors)

    def _seal(self, session: WorkerSession, hello: Hello, layout: BufferLayout, request: Seal) -> None:
        buffer = self._captures.begin(hello.rank, request.buffer)
        try:
            if layout.bytes > buffer.region.bytes:
                raise LayoutError(f"a layout of {layout.bytes} bytes in a buffer of {buffer.region.bytes}")
            sealed = self._hash(hello, layout, buffer, request)
            self._captures.keep(buffer, sealed)
            session.tell(Sealed(request.step, sealed.part_xxh3_128))
            if tiers := tuple(tier for tier in request.tiers if tier != MEMORY):
                self._gather(hello, sealed.checkpoint, tiers, buffer)
        finally:
            self._captures.release(buffer)

    def _hash(self, hello: Hello, layout: BufferLayout, buffer: CaptureBuffer, request: Seal) -> SealedCapture:
        checkpoint = CheckpointId(request.step, hello.generation)
        view = buffer.region.view[: layout.bytes].toreadonly()
        hashes = hash_pieces(hello.run, checkpoint, layout, view, self._hashing)
        capture = Capture(hello.rank, layout, view, hashes, request.objects)
        part = record_bytes(memory_part(capture))
        return SealedCapture(hello.run, checkpoint, capture, part, xxhash.xxh3_128_hexdigest(part))

    def _confirm(self, hello: Hello, step: int) -> None:
        self._captures.confirm(hello.rank, step, hello.generation)
        if self._captures.is_full(hello.rank):
            self._delivery.make_room(hello.rank, step)
        with self._changed:
            everyone = len(self._members) == hello.local_ranks and hello.generation == self._gathering.generation
            staying = set(self._members)
        if everyone:
            self._captures.forget_ranks(staying, hello.generation)

    def _fetch(self, session: WorkerSession, request: Fetch) -> None:
        checkpoint = CheckpointId(request.step, request.generation)
        found = self._lookup(request.rank, checkpoint)
        if found is not None and session.hello is not None:
            self._captures.fetched(request.rank, checkpoint, session.hello.generation)
        try:
            found = found or self._fetch_from_partner(session, request.rank, checkpoint)
        except (TransferError, NoMemoryError) as error:
            session.answer(Failed(request.step, MEMORY, str(error)))
            return
        try:
            session.answer(Fetched(found.size, found.part.decode()), (found.region.read_only(),))
        finally:
            found.release()

    def _lookup(self, rank: int, checkpoint: CheckpointId) -> HeldCapture | None:
        """Return this node's capture, or its copy of another node's."""
        buffer = self._captures.find(rank, checkpoint)
        if buffer is not None and buffer.sealed is not None:
            release = partial(self._captures.release, buffer)
            return HeldCapture(buffer.sealed.capture.layout.bytes, buffer.sealed.part, buffer.region, release)
        copy = self._copies.find(rank, checkpoint)
        return None if copy is None else HeldCapture(copy.size, copy.part, copy.region, partial(self._copies.release, copy))

    def _fetch_from_partner(self, session: WorkerSession, rank: int, checkpoint: CheckpointId) -> HeldCapture:
        """Fetch a capture from the partner. Raises PeerError, NoMemoryError."""
        hello = session.hello
        if hello is None or hello.partner is None or self._network is None:
            raise TransferError(f"no capture of rank {rank} in {checkpoint.directory} is held here, and this node has no partner")
        name = Name(hello.run, rank, checkpoint)
        region, size, part = Partner(Path(hello.partner), self._network).fetch(name, self._memory)
        # The worker keeps its mapping, whatever happens to the region here.
        return HeldCapture(size, part, region, partial(self._memory.give_back, region))

    # --- the node's ranks together ------------------------------------------------------------------------------------

    def _gather(self, hello: Hello, checkpoint: CheckpointId, tiers: tuple[str, ...], buffer: CaptureBuffer) -> None:
        """Store the checkpoint when this was the last rank to seal it."""
        with self._changed:
            if hello.generation != self._gathering.generation:
                raise WireError(f"generation {hello.generation} is over")
            self._gathering.add(checkpoint, tiers, buffer)
            self._captures.read(buffer)
            gathered = self._gathering.take(checkpoint)
            if gathered is not None:
                self._delivery.bring(gathered, hello.slot, self._places(hello), partial(self._report, hello.generation))
                self._let_go(gathered)
            self._give_up_hopeless()

    def _places(self, hello: Hello) -> dict[str, str]:
        return {**hello.storage, **({"peer": hello.partner} if hello.partner else {})}

    def _leave(self, session: WorkerSession, hello: Hello) -> None:
        with self._changed:
            if self._members.get(hello.rank) is session:
                del self._members[hello.rank]
                self._gathering.leave(hello.rank)
                self._give_up_hopeless()
            self._workers -= 1
            self._changed.notify_all()

    def _drop(self, hello: Hello, checkpoint: CheckpointId) -> None:
        with self._changed:
            gathered = self._gathering.give_up(checkpoint) if hello.generation == self._gathering.generation else None
            if gathered is not None:
                self._refuse(gathered, f"another rank could not save step {checkpoint.step}")
        self._captures.drop(hello.rank, checkpoint)

    def _give_up_hopeless(self) -> None:
        """Give up checkpoints that some rank will never seal: a node stores the state of all its ranks or of none."""
        for gathered, missing in self._gathering.take_hopeless():
            self._refuse(gathered, f"rank {missing} left before it sealed step {gathered.checkpoint.step}")

    def _refuse(self, gathered: Gathered, reason: str) -> None:
        step, generation = gathered.checkpoint.step, gathered.checkpoint.generation
        for rank in gathered.buffers:
            for tier in gathered.tiers:
                self._report(generation, rank, Failed(step, tier, reason))
        self._let_go(gathered)

    def _let_go(self, gathered: Gathered) -> None:
        for buffer in gathered.buffers.values():
            self._captures.release(buffer)

    def _report(self, generation: int, rank: int, event: Message) -> None:
        with self._changed:
            session = self._members.get(rank) if generation == self._gathering.generation else None
        if session is not None:
            session.tell(event)

    def _freed(self, rank: int, index: int) -> None:
        if (session := self._members.get(rank)) is not None:
            session.tell(Freed(index))

    def _open_storage(self, tier: str, place: str) -> CaptureStorage:
        match tier:
            case "shared":
                return DiskStorage(Path(place))
            case "peer" if self._network is not None:
                return Partner(Path(place), self._network)
            case "remote":
                from headway.runner.checkpoint.remote import RemoteStorage  # noqa: PLC0415  its library takes 50 ms to import

                return RemoteStorage(place)
        raise LookupError(f"`{tier}` is not a tier of a keeper")

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()
