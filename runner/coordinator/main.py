"""Runs the coordinator's process: connects the state machine to agents, the chain, and the journal."""

import asyncio
import contextlib
import gc
import logging
import os
import signal
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from headway.runner import log
from headway.runner.checkpoint.chain import (
    Chain,
    ChainError,
    Claim,
    Record,
    newest_base,
    newest_claim,
)
from headway.runner.checkpoint.stores.posix import PosixStore
from headway.runner.contract import (
    DEFAULT_TIMEOUTS,
    Base,
    Exit,
    Members,
    RecordError,
    RunConfig,
    RunDirectory,
    Verdict,
    from_json,
    journal,
    node_of,
    orders,
    read_verdict,
    set_by,
    step_rates,
)
from headway.runner.coordinator.admission import Admission
from headway.runner.coordinator.causes import passing_fault
from headway.runner.coordinator.claiming import claim
from headway.runner.coordinator.events import (
    Action,
    Beat,
    Broadcast,
    Claimed,
    ClaimRefused,
    DropConnection,
    Event,
    Excuse,
    Finish,
    Joined,
    Lost,
    MakeClaim,
    Note,
    Send,
    Tick,
)
from headway.runner.coordinator.exporter import Snapshot, newest_step, open_exporter
from headway.runner.coordinator.journal import Journal
from headway.runner.coordinator.machine import Coordinator
from headway.runner.coordinator.pace import Pace
from headway.runner.coordinator.policy import FAULTY
from headway.runner.coordinator.reading import event_of
from headway.runner.coordinator.state import Inherited
from headway.runner.coordinator.tensorboard import open_follower
from headway.runner.coordinator.term import Term
from headway.runner.goodput.ledger import Seen
from headway.runner.goodput.spent import remaining
from headway.runner.health.watch import Watch
from headway.runner.lines import read_lines
from headway.runner.messages import ChannelError, Link, Listener, Message, broadcast, flush, listen
from headway.runner.notify import Notifier
from headway.runner.rundir import fruitless_before
from headway.runner.within import within

_log = logging.getLogger(__name__)

RETRY_S = 1.0
# By which a tick's timer may be early: with many nodes there are many beats, and each puts it off.
TIMER_EARLY_S = 0.25
WATCH_TERM_S = 2.0
# Objects, before Python looks for cycles: of 12,500 links it would look at all again and again while they join.
GARBAGE = 100_000
EXPORT_S = 1.0

T = TypeVar("T")
E = TypeVar("E", bound=journal.Entry)


class Server:
    """Serves one attempt until it has ended or a newer coordinator has taken over.

    Whatever waits for the store runs in one other thread, in order, so that a store that hangs holds up neither beats nor orders.
    """

    def __init__(
        self,
        config: RunConfig,
        directory: RunDirectory,
        host: str,
        node: int,
        chain: Chain,
        machine: Coordinator,
        address: str | None = None,
    ) -> None:
        assert config.run is not None  # noqa: S101  set when the run directory was made
        self._config, self._directory, self._host, self._address = config, directory, host, address or host
        self._node, self._run = node, config.run
        self._chain, self._machine = chain, machine
        self._books = Journal(config, directory)
        self._entrance = Admission(config, directory)
        self._notifier = Notifier(config, os.environ, directory.attempt, str(directory.root))
        self._exporter = open_exporter(config.metrics_port, os.environ, config.run)
        self._follower = open_follower(directory.metrics, os.environ, config.run, config)
        self._links: dict[int, Link] = {}
        self._inbox: deque[Event] = deque()
        self._busy = False
        self._pace = Pace(machine, config.slots + config.spares, time.monotonic())
        self._timer: asyncio.TimerHandle | None = None
        # What is to be done once a line or the verdict is written.
        self._held: list[Action] | None = None
        self._seen = Seen()
        self._error: BaseException | None = None
        self.store_hangs = False  # the other thread will never end
        self._store = ThreadPoolExecutor(1, "store")
        self._tasks: set[asyncio.Task[None]] = set()

    async def serve(self) -> None:
        """Serve until the attempt has ended and the agents know, or another coordinator is in charge."""
        self._over = asyncio.Event()
        take = partial(Term.take, self._directory, self._node, self._host)
        self._term = await self._in_store(partial(patiently, take, store_patience_s(self._config)))
        self._machine.waited_before(await self._in_store(self._term.age_of_first))
        self._listener = await self._listen()
        try:
            if await self._in_store(partial(self._term.publish, self._address, self._listener.port)):
                self._begin()
                await self._over.wait()
            await flush(self._links.values())
        finally:
            self._close()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._store.shutdown(wait=not self.store_hangs)
        self._part()
        if self._error is not None:
            raise self._error

    def _begin(self) -> None:
        if self._term.number > 1:
            self._take_over()
        self._take(Tick())
        self._spawn(self._watch_term())
        if self._exporter is not None:
            self._spawn(self._export())

    def _close(self) -> None:
        self._listener.close()
        if self._timer is not None:
            self._timer.cancel()
        for task in self._tasks:
            task.cancel()
        for link in self._links.values():
            link.close()

    def _part(self) -> None:
        """Report the run's end to the webhook and the exporters, and close them."""
        self._notifier.close()
        for hearer in (self._exporter, self._follower):
            if hearer is not None:
                hearer.close()

    async def _listen(self) -> Listener:
        secret, port = self._directory.secret(), self._config.ports.coordinator
        try:
            return await listen(self._address, port, secret, self._run, self._heard, self._lost)
        except OSError as error:
            if port == 0:
                raise
            _log.warning("%s:%s is not available, so another port is used: %s", self._address, port, error)
            return await listen(self._address, 0, secret, self._run, self._heard, self._lost)

    def _take_over(self) -> None:
        self._note(Note(self._machine.generation.number, journal.Takeover(self._term.number, self._node, self._host)))

    # --- time ---------------------------------------------------------------------------------------------------------

    def _tick_in_time(self) -> None:
        """Has this process woken up for the next tick if nothing else wakes it before."""
        due_s = self._pace.due_s(time.monotonic())
        if self._timer is not None:
            if due_s - TIMER_EARLY_S < self._timer.when() <= due_s:
                return
            self._timer.cancel()
        self._timer = None if self._over.is_set() else asyncio.get_running_loop().call_at(due_s, self._wake)

    def _is_timer_near(self) -> bool:
        return self._timer is None or self._timer.when() < time.monotonic() + TIMER_EARLY_S

    def _wake(self) -> None:
        self._timer = None
        if time.monotonic() >= self._pace.due_s(time.monotonic()):
            self._take(Tick())
        else:
            self._tick_in_time()

    async def _watch_term(self) -> None:
        """End this coordinator once another has followed it; from then on it sends nothing."""
        while True:
            await asyncio.sleep(WATCH_TERM_S)
            with contextlib.suppress(OSError):
                # A store that is unavailable decides nothing; its next answer will.
                if not await self._in_store(self._stands):
                    self._replaced()
                    return

    def _stands(self) -> bool:
        """Return whether this coordinator is the newest, and publish its address if so."""
        place = self._address, self._listener.port
        return not self._term.is_over() and (self._term.is_published(*place) or self._term.publish(*place))

    async def _export(self) -> None:
        assert self._exporter is not None  # noqa: S101  only started where there is one
        while True:
            machine, line = self._machine, None
            with contextlib.suppress(OSError):
                line = await self._in_store(partial(newest_step, self._directory.metrics))
            step_s = None if line is None else line.get("step_s")
            heard_at = [member.heard_at for member in machine.roster.members.values() if not member.lost]
            self._exporter.show(
                Snapshot(
                    machine.generation.number,
                    machine.policy.restarts,
                    machine.best_step,
                    None if line is None else line["loss"],
                    machine.committed_step,
                    max(0.0, time.monotonic() - min(heard_at)) if heard_at else None,
                    seconds=dict(self._books.seconds),
                    nodes=machine.roster.states(),
                    rates=step_rates(self._config, line["tokens"], step_s) if line is not None and step_s else {},
                    step_s=step_s,
                    device_bytes=None if line is None else line.get("device_bytes"),
                )
            )
            await asyncio.sleep(EXPORT_S)

    def _replaced(self) -> None:
        _log.warning("term %s was superseded by another coordinator's", self._term.number)
        self._held = []  # nothing is sent any more
        self._over.set()

    # --- agents -------------------------------------------------------------------------------------------------------

    def _heard(self, link: Link, message: Message) -> None:
        if message.kind == "enter":
            self._spawn(self._admit(link, message.body))
            return
        event = event_of(message)
        if isinstance(event, Joined):
            self._connected(link, event.node)
        elif link.data != message.node:
            raise ChannelError(f"a message of node {message.node} on the connection of node {link.data}")
        if self._links.get(message.node) is link:
            self._take(event)

    def _connected(self, link: Link, node: int) -> None:
        """Keep one connection for each node: that of its last join."""
        link.data, before = node, self._links.get(node)
        self._links[node] = link
        if before is not None and before is not link:
            before.close()

    def _lost(self, link: Link, _: str) -> None:
        if link.data is not None and self._links.get(link.data) is link:
            del self._links[link.data]
            self._take(Lost(link.data, link.unanswered))

    async def _admit(self, link: Link, body: Mapping[str, Any]) -> None:
        try:
            answer = await self._in_store(partial(self._entrance.admit, body))
        except (OSError, TypeError, ValueError) as error:
            answer = {"refused": f"{error}"}
        link.send("entered", self._machine.generation.number, answer.get("node", -1), answer)

    # --- the machine --------------------------------------------------------------------------------------------------

    def _take(self, event: Event) -> None:
        """One event is dealt with whole before the next."""
        self._inbox.append(event)
        if self._busy:
            return
        self._busy = True
        try:
            while self._inbox:
                self._handle(self._inbox.popleft())
                if not self._inbox and self._pace.goes_along(time.monotonic()):
                    self._inbox.append(Tick())
        except Exception as error:
            self._fail(error)
        finally:
            self._busy = False
        if not isinstance(event, Beat) or self._is_timer_near():
            # A beat brings the next tick nearer only by a tick of its own.
            self._tick_in_time()
        if self._machine.generation.best_step > (self._seen.steps[-1][0] if self._seen.steps else 0):
            self._seen.add(self._machine.generation.best_step, time.time())

    def _handle(self, event: Event) -> None:
        now_s = time.monotonic()
        if isinstance(event, Tick):
            self._pace.ticked(now_s)
        for action in self._machine.handle(event, now_s):
            self._do(action)

    def _do(self, action: Action) -> None:
        if self._held is not None:
            self._held.append(action)
            return
        match action:
            case Send() | Broadcast() | DropConnection():
                self._to_agents(action)
            case Note(entry=journal.Start()):
                # A coordinator after us must know of it before any agent does.
                self._held = []
                self._spawn(self._go_on_after(self._note(action)))
            case Note(generation, journal.Adopted()):
                # Each later coordinator writes this line for itself.
                self._note(Note(generation, journal.Adopted(self._term.number)))
            case Note():
                self._note(action)
            case Excuse(why):
                self._store.submit(self._books.excuse, why)
            case MakeClaim():
                self._account()
                self._spawn(self._claim(action))
            case Finish():
                self._account()
                self._held = []
                self._spawn(self._finish(action))

    def _to_agents(self, action: Send | Broadcast | DropConnection) -> None:
        match action:
            case Send(node, generation, order):
                if (link := self._links.get(node)) is not None:
                    link.send(order.KIND, generation, node, orders.body_of(order))
            case Broadcast(generation, order):
                links = [(link, node) for node, link in self._links.items()]
                broadcast(links, order.KIND, generation, orders.body_of(order))
            case DropConnection(node):
                if (link := self._links.pop(node, None)) is not None:
                    link.close()

    async def _go_on_after(self, written: "Future[None]") -> None:
        try:
            await within(self._store_s, asyncio.wrap_future(written))
        except TimeoutError:
            self._leave_the_store(Exit.RETRY_ELSEWHERE)
        if self._over.is_set() or self._held is None:
            return
        held, self._held = self._held, None
        for action in held:
            self._do(action)

    async def _claim(self, wanted: MakeClaim) -> None:
        """Claims; while the store cannot be used, tries again for as long as a lost agent would be waited for."""
        until = time.monotonic() + store_patience_s(self._config)
        while True:
            try:
                event = await self._in_store(partial(self._claim_in_charge, wanted))
                break
            except OSError as error:
                _log.error("the chain cannot be used: %s", error)
                if time.monotonic() > until:
                    event = ClaimRefused(Exit.RETRY_ELSEWHERE, f"the store cannot be used: {error}")
                    break
                await asyncio.sleep(RETRY_S)
        if event is None:
            self._replaced()
        else:
            self._seen = Seen()
            self._take(event)

    def _claim_in_charge(self, wanted: MakeClaim) -> Claimed | ClaimRefused | None:
        """None where another coordinator is in charge."""
        return None if self._term.is_over() else claim(self._chain, self._config, self._directory, wanted)

    async def _finish(self, action: Finish) -> None:
        """Write the verdict before any agent gets it; the first one counts."""
        generation = self._machine.generation.number
        try:
            verdict = await within(self._store_s, self._decided(action, generation))
        except TimeoutError:
            self._leave_the_store(action.exit_code)
            return
        if verdict is None:
            self._replaced()
            return
        self._notifier.verdict(verdict)
        self._held = None
        self._do(Broadcast(generation, orders.Stop(exit_code=verdict.exit_code)))
        self._over.set()

    async def _decided(self, action: Finish, generation: int) -> Verdict | None:
        """Return the verdict; None if another coordinator has taken over."""
        with contextlib.suppress(OSError):
            if await self._in_store(self._term.is_over):
                return None
        return await self._in_store(partial(self._books.decide, action, generation, self._chain))

    def _leave_the_store(self, exit_code: Exit) -> None:
        """The store takes nothing and refuses nothing: the nodes end without a verdict in it, which none of them could read either."""
        _log.error("the store has not answered for %.0f s (%s)", self._store_s, set_by("store"))
        self.store_hangs, self._held = True, None
        self._do(Broadcast(self._machine.generation.number, orders.Stop(exit_code=int(exit_code))))
        self._over.set()

    # --- the other thread ---------------------------------------------------------------------------------------------

    @property
    def _store_s(self) -> float:
        return self._config.timeouts.get("store", DEFAULT_TIMEOUTS["store"]).floor_s

    async def _in_store(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._store, work)

    def _spawn(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        """Ends the process: its supervisor starts the next one, which finds all there is on the chain."""
        self._error = self._error or error
        self._over.set()

    def _note(self, note: Note) -> "Future[None]":
        entry, line = note.entry, self._books.line(note, time.time())
        log.in_generation(note.generation)
        facts = {name: value for name, value in line.items() if name not in ("wall", "kind", "generation", "attempt")}
        _log.log(logging.WARNING if entry.ALARMS else logging.INFO, "%s", entry.KIND, extra=log.fields(facts))
        written = self._store.submit(self._books.note, note.generation, line)
        self._notifier.journal(line)
        if isinstance(entry, journal.Failure) and self._machine.failure is not None:
            self._store.submit(self._books.strike, self._machine.failure, line["wall"])
        if isinstance(entry, journal.Transient):
            for host in entry.hosts:
                self._store.submit(self._books.strike, passing_fault(host, entry.found, entry.step), line["wall"])
        return written

    def _account(self) -> None:
        """Closes the ledger of the generation that has just ended."""
        roster = self._machine.roster
        slots = len(roster.slots) or self._config.slots
        spares = max(0, len(roster.members) - slots)
        generation = self._machine.generation.number
        self._store.submit(self._books.account, generation, time.time(), list(self._seen.steps), slots, spares)


def store_patience_s(config: RunConfig) -> float:
    """How long a store may be away: as long as a lost agent would be waited for."""
    return config.timeouts.get("agent", DEFAULT_TIMEOUTS["agent"]).floor_s


def patiently(work: Callable[[], T], patience_s: float) -> T:
    """Return the result of `work`, retried while the store is unavailable: a coordinator that ends each time would use up its restarts."""
    until = time.monotonic() + patience_s
    while True:
        try:
            return work()
        except OSError as error:
            if time.monotonic() > until:
                raise
            _log.error("the store cannot be used: %s", error)
            time.sleep(RETRY_S)


def rebuilt(config: RunConfig, chain: Chain, directory: RunDirectory) -> Coordinator:
    """The state machine as the chain and the journal say: new, or going on with what an earlier coordinator of this attempt has claimed."""

    def watch(ranks: int, timeouts: Mapping[str, Any], now_s: float) -> Watch:
        return Watch(ranks, timeouts, now_s, config.mesh.pp)

    try:
        records = chain.read()
    except ChainError:
        # The first claim meets the same error and ends the attempt with it.
        records = []
    newest = newest_claim(records)
    inherited = Inherited() if newest is None else _inherited(directory, newest, newest_base(records))
    remaining_s, limit = remaining(config, directory, time.time())
    try:
        fruitless, excluded = fruitless_before(directory)
        is_excused = directory.excused.exists()
    except (OSError, ValueError, KeyError) as error:
        _log.error("earlier attempts cannot be counted: %s", error)
        fruitless, excluded, is_excused = 0, frozenset(), False
    inherited = replace(
        inherited,
        remaining_s=remaining_s,
        limit=limit,
        fruitless=fruitless,
        excluded=excluded,
        is_excused=is_excused,
    )
    return Coordinator(config, inherited, time.monotonic(), watch)


def _inherited(directory: RunDirectory, newest: Record, committed: Base | None) -> Inherited:
    """Return what chain and journal have of this attempt, whose newest claim in the chain is `newest`."""
    lines = {number: list(_journal_of(directory, number)) for number in directory.journal_files()}
    corrupted = next(_entries(journal.Corruption, lines.get(newest.generation, ())), None)
    proven_step = _proven_step(newest, lines)
    if newest.attempt != directory.attempt or not isinstance(newest.entry, Claim):
        return Inherited(corrupted=corrupted, proven_step=proven_step)
    own = [(number, entry) for number, entries in lines.items() for entry in entries if entry.attempt == directory.attempt]
    starts = [(number, entry) for number, entry in own if isinstance(entry, journal.Start) and entry.moved is not None]
    failures = [entry for _, entry in own if isinstance(entry, journal.Failure)]
    lost = [entry for _, entry in own if isinstance(entry, journal.LostNode)]
    return Inherited(
        generation=newest.generation,
        base=newest.entry.base,
        committed_step=committed.step if committed else None,
        restarts=len(failures) + sum(isinstance(entry, journal.ReplicaLost) for _, entry in own),
        slots=_nodes_of(starts[-1][1]) | _moved_since(lines.get(newest.generation, ())) if starts else {},
        hosts={placed.node: placed.host or "" for _, start in starts for placed in start.nodes},
        started=bool(starts) and starts[-1][0] == newest.generation,
        corrupted=corrupted,
        # A device there must not compute any more.
        barred=frozenset(each.node for each in failures if each.cause_kind in FAULTY and each.node is not None),
        undying={each.node: frozenset(each.undying) for each in lost if each.undying is not None and each.node is not None},
        proven_step=proven_step,
        members=_members(lines.get(newest.generation, ())),
    )


def _moved_since(entries: Iterable[journal.Entry]) -> dict[int, int]:
    """Return the slots that have got another node since the generation's start."""
    return {entry.slot: entry.to for entry in _entries(journal.Rebound, entries) if entry.running}


def _members(entries: Iterable[journal.Entry]) -> Members | None:
    """Return the replica groups that trained at last, if one was lost before."""
    changes = list(_entries(journal.MembersChanged, entries))
    return Members(changes[-1].epoch, changes[-1].replicas) if changes else None


def _journal_of(directory: RunDirectory, generation: int) -> Iterator[journal.Entry]:
    """Read the journal of a generation. A line that cannot be read decides nothing."""
    path = directory.journal(generation)
    for data, _ in read_lines(path):
        try:
            yield journal.read_entry(data)
        except RecordError as error:
            _log.error("%s: a line of the journal is ignored: %s", path, error)


def _entries(kind: type[E], entries: Iterable[journal.Entry]) -> Iterator[E]:
    return (entry for entry in entries if isinstance(entry, kind))


def _proven_step(newest: Record, lines: Mapping[int, Iterable[journal.Entry]]) -> int | None:
    """Return what the run had committed when the replicas of its script were last equal, of what still counts."""
    found = [(number, entry.sound_step) for number, entries in lines.items() for entry in _entries(journal.Compared, entries)]
    if not found or not isinstance(newest.entry, Claim):
        return None
    begins_at = newest.entry.base.step if newest.entry.base else 0
    generation, known = found[-1]
    return known if generation == newest.generation else min(known, begins_at)


def _nodes_of(start: journal.Start) -> dict[int, int]:
    """The binding of a start, slot -> node."""
    moved = dict(start.moved or ())
    return {slot: node_of(slot, moved) for slot in range(start.slots or 0)}


def main() -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        # A scheduler signals every process of a step; the supervisors decide.
        signal.signal(number, signal.SIG_IGN)
    log.configure("coordinator", node=int(os.environ.get("HEADWAY_NODE", "0")))
    run_json = Path(os.environ["HEADWAY_RUN_JSON"])
    config = from_json(RunConfig, run_json.read_text())
    directory = RunDirectory.of(run_json, int(os.environ["HEADWAY_ATTEMPT"]))
    assert config.run is not None  # noqa: S101
    chain = Chain(PosixStore(directory.chain), config.run)
    if read_verdict(directory) is not None:
        # An earlier coordinator has decided; agents find the verdict themselves.
        return
    patience_s = store_patience_s(config)
    place = os.environ["HEADWAY_HOST"], int(os.environ.get("HEADWAY_NODE", "0"))
    machine = patiently(partial(rebuilt, config, chain, directory), patience_s)
    server = patiently(partial(Server, config, directory, *place, chain, machine, os.environ.get("HEADWAY_ADDRESS")), patience_s)
    gc.set_threshold(GARBAGE)
    asyncio.run(server.serve())
    if server.store_hangs:
        # The thread that waits for it cannot be ended.
        os._exit(0)


if __name__ == "__main__":
    main()
