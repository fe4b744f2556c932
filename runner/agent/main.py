"""Runs a node's agent: finds the coordinator, has the supervisor start and end workers, and reports how they end.

It may die at any moment: everything it knows comes again from the supervisor's first message and the coordinator's orders. It repeats all
reports after the next join, so that nothing is lost with a connection.
"""

import asyncio
import json
import logging
import mmap
import os
import signal
import socket
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from headway.runner import log
from headway.runner.agent import cgroup, devices, probe, ras
from headway.runner.agent.flight import Recorder, answers
from headway.runner.agent.kernel_log import KernelLog
from headway.runner.agent.launch import command, is_ours, make_folders
from headway.runner.agent.pauses import Pauses
from headway.runner.agent.protocol import (
    EVENTS_KEPT,
    Coordinate,
    Dump,
    ExitNode,
    KillWorkers,
    Listen,
    Listening,
    NodeState,
    RankOrder,
    Request,
    Spawn,
    Spawned,
    StandbyReport,
    StartStandbys,
    StopSignal,
    UndeadReport,
    WorkerEnded,
    WorkerEvent,
    WorkerProcess,
    encode,
    report_of,
)
from headway.runner.agent.standby import worth_importing
from headway.runner.agent.warm import OF_A_RANK
from headway.runner.checkpoint.keeper.link import KeeperError, held_by
from headway.runner.contract import SECTIONS, Exit, HeartbeatPage, RunConfig, RunDirectory, from_json, read_verdict, slot_of
from headway.runner.contract.orders import ORDERS, Assign, ProbeRanks, Save, StartRanks, Stop, Survey, order_of
from headway.runner.coordinator import term
from headway.runner.coordinator.vitals import beat_interval_s
from headway.runner.health.collectives import Collective
from headway.runner.health.xid import of_job
from headway.runner.messages import MAX_LINE_BYTES, ChannelError, Link, Message, connect

_log = logging.getLogger(__name__)

# Of a few nodes; thousands look for a new coordinator less often.
RECONNECT_S = 0.1
LISTEN_AGAIN_S = 5.0
# Without a coordinator for so long, a node starts one; the first node that can. Where there has been none yet, nodes are still booting.
TAKEOVER_S, TAKEOVER_STEP_S, FIRST_TAKEOVER_S, TAKEOVER_AGAIN_S = 2.0, 0.5, 60.0, 10.0
# For a coordinator from its term until it can be found.
STARTING_S = 5.0
# Of the grace that a scheduler gives: kept for ending by ourselves when no coordinator has decided.
LEAVING_S = 1.0
# From SIGTERM to the first look at the ranks that still run, and between two looks.
UNHEARD_S = 5.0
STANDBY_BYTES = 1 << 30
STANDBY_AFTER_S = 20.0  # of a script that completes no steps
DEVICES_FREE_S = 10.0
# For a flight recorder's dump: NCCL's look for requests once a second.
RECORDED_S, RECORDED_LOOK_S = 3.0, 0.05
# Until here a worker has not got to its own code.
_BEGINNING = frozenset(SECTIONS.index(name) for name in ("start", "rendezvous", "restore"))


@dataclass(frozen=True)
class Address:
    """The published address of the coordinator."""

    host: str
    port: int


@dataclass
class Agent:
    config: RunConfig
    directory: RunDirectory
    node: int
    host: str
    incarnation: int
    page: HeartbeatPage
    slot: int | None = None
    generation: int = 0  # the newest that this node knows of
    port: int | None = None
    workers: dict[int, WorkerProcess] = field(default_factory=dict)  # by rank, of the newest generation here
    events: deque[dict[str, Any]] = field(default_factory=lambda: deque(maxlen=EVENTS_KEPT))
    stopping_since: float | None = None  # monotonic
    _link: Link | None = None
    _met: bool = False  # a coordinator, at least once
    _start_order: StartRanks | None = None
    # When this generation began here, as far as this agent has seen it.
    _started: float = field(default_factory=time.monotonic)
    # When this generation's workers were all in their own code; 0 until then.
    _began: float = 0.0
    # The generation for whose next start standbys were asked for.
    _parked: int = -1
    _ends: list[dict[str, Any]] = field(default_factory=list)
    _listened: float = 0.0
    _pauses: Pauses = field(default_factory=lambda: Pauses(time.monotonic()))
    # That this node's ranks use, by their PCI addresses; None where that is not known.
    _devices: frozenset[str] | None = None
    _coordinated: float = 0.0
    _term: int = 0  # the newest, and when it was first seen
    _term_seen: float = 0.0
    _starting: asyncio.Task[None] | None = None
    _cut: asyncio.Event = field(default_factory=asyncio.Event)
    _over: asyncio.Event = field(default_factory=asyncio.Event)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)
    _kernel: KernelLog = field(default_factory=KernelLog)
    _recorder: Recorder = field(init=False)

    def __post_init__(self) -> None:
        self._recorder = Recorder(self.directory, os.environ)

    # --- the supervisor -----------------------------------------------------------------------------------------------

    async def run(self, descriptor: int) -> None:
        """Serve until the supervisor is gone or has its exit code."""
        self._from_supervisor, self._to_supervisor = await asyncio.open_unix_connection(
            sock=socket.socket(fileno=descriptor), limit=MAX_LINE_BYTES
        )
        hello = report_of(await self._from_supervisor.readline())
        assert isinstance(hello, NodeState)  # noqa: S101  the supervisor's first line
        self._greet(hello)
        works = (self._hear_supervisor(), self._meet(), self._keep_beating())
        tasks = [asyncio.create_task(work) for work in works]
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()
        await self._to_supervisor.drain()
        # An error ends this process with a traceback in its log, and the supervisor starts the next one.
        for task in done:
            task.result()

    def _greet(self, hello: NodeState) -> None:
        self.workers = {worker.rank: worker for worker in hello.workers}
        self.generation = max((worker.generation for worker in self.workers.values()), default=0)
        self.events.extend(hello.events)
        self.port = hello.port
        if hello.stopping_s is not None:
            self._asked_to_stop(time.monotonic() - hello.stopping_s)

    def _ask(self, request: Request) -> None:
        self._to_supervisor.write(encode(request))

    async def _hear_supervisor(self) -> None:
        while line := await self._from_supervisor.readline():
            match report_of(line):
                case Listening(port):
                    self.port = port
                    self._beat()
                case StandbyReport(ready):
                    if self.slot == 0:
                        self._say_evidence({"what": "note", "kind": "standby", "ready": ready})
                case Spawned(workers, cold):
                    self._spawned(workers, cold)
                case WorkerEvent(event):
                    self.events.append(event)
                    self._report_event(event)
                case WorkerEnded(worker):
                    self.workers[worker.rank] = worker
                    self._report_end(worker)
                case UndeadReport(undead):
                    self._say_evidence(
                        {"what": "undead", "workers": [{"rank": each.rank, "state": each.state} for each in undead]}
                    )
                case StopSignal():
                    self._asked_to_stop(time.monotonic())

    def _spawned(self, workers: list[WorkerProcess], cold: Mapping[int, str]) -> None:
        self.workers = {worker.rank: worker for worker in workers}
        ranks = sorted(worker.rank for worker in workers if worker.warm)
        if (ranks or cold) and self.slot == 0:
            # Every node of a job does the same, so one of them reports it.
            self._say_evidence({"what": "note", "kind": "warm", "ranks": ranks, "cold": sorted(set(cold.values()))})

    def _exit(self, code: int) -> None:
        self._over.set()
        self._cut.set()
        self._recorder.close(self.workers)
        self._ask(ExitNode(code))

    # --- being asked to stop ------------------------------------------------------------------------------------------

    def _asked_to_stop(self, since: float) -> None:
        """By the scheduler or a person. The coordinator decides; where none does, this node leaves before it is killed."""
        if self.stopping_since is None:
            self.stopping_since = since
            left_s = since + self.config.grace_s - LEAVING_S - time.monotonic()
            asyncio.get_running_loop().call_later(max(left_s, 0), self._leave)
        self._say_stopping(self.stopping_since)

    def _say_stopping(self, since: float) -> None:
        self._say_evidence({"what": "preempted", "age_s": time.monotonic() - since})

    def _leave(self) -> None:
        if not self._over.is_set():
            _log.warning("the grace period is over and no coordinator has decided")
            self._exit(Exit.PREEMPTED)

    # --- the coordinator ----------------------------------------------------------------------------------------------

    async def _meet(self) -> None:
        """Stay connected with the coordinator, whichever node it runs on. Workers continue meanwhile."""
        while (link := await self._find()) is not None:
            self._join(link)
            await self._cut.wait()
            self._link = None
            link.close()
            if self._over.is_set() or self._decided():
                return

    async def _find(self) -> Link | None:
        """A link with the coordinator; None when the attempt is over for this node."""
        since = time.monotonic()
        while not self._is_over_without(since):
            if (address := self._address()) is not None and (link := await self._try(address, since)) is not None:
                return link
            await asyncio.sleep(RECONNECT_S * (1 + (self.config.slots + self.config.spares) / 1000))
        return None

    async def _try(self, address: Address, since: float) -> Link | None:
        """Try once to connect; give up as soon as another coordinator has published its address."""
        assert self.config.run is not None  # noqa: S101  set when the run directory was made
        self._cut.clear()
        try:
            secret = self.directory.secret()
        except (OSError, ValueError):
            # A network file system that is unavailable.
            return None
        work = connect(address.host, address.port, secret, self.config.run, self.incarnation, self._obey, self._lost)
        connecting = asyncio.create_task(work)
        while not connecting.done():
            await asyncio.wait({connecting}, timeout=RECONNECT_S)
            if not connecting.done() and (self._address() != address or self._is_over_without(since)):
                connecting.cancel()
                await asyncio.wait({connecting})
        try:
            return connecting.result()
        except (OSError, ValueError, ChannelError, asyncio.CancelledError):
            return None

    def _address(self) -> Address | None:
        try:
            record = json.loads(self.directory.coordinator.read_text())
            return Address(record["host"], record["port"])
        except (OSError, ValueError, KeyError):
            # Not there yet, or a network file system between two versions.
            return None

    def _lost(self, _: Link, why: str) -> None:
        if not self._over.is_set():
            _log.warning("the connection to the coordinator ended: %s", why)
        self._cut.set()

    def _is_over_without(self, since: float) -> bool:
        """Return whether a node without a coordinator since then must end; if not, it may start one."""
        if self._over.is_set() or self._decided():
            return True
        self._runs()
        away_s = time.monotonic() - since - self._pauses.since(since)
        if away_s > self._patience_s() and self._silent_s() > self._patience_s():
            _log.error("no coordinator for %.0f s", self._patience_s())
            self._exit(Exit.RETRY_ELSEWHERE)
            return True
        self._take_over(away_s)
        return False

    def _patience_s(self) -> float:
        """A node that computes is missed by the others; one that does not is not."""
        bound = self._met and self.slot is not None
        return self.config.timeout_s("agent" if bound else "join")

    def _silent_s(self) -> float:
        """Return the seconds since the last heartbeat of a worker here, or since its start; infinite without workers."""
        signs = [self.page.read(worker.local_rank)["monotonic_ns"] / 1e9 or self._started for worker in self._running()]
        return time.monotonic() - max(signs) - self._pauses.since(max(signs)) if signs else float("inf")

    def _take_over(self, away_s: float) -> None:
        """Has the supervisor start a coordinator when no other node has done so for long enough."""
        if os.environ.get("HEADWAY_SHARED_STORE") == "0":
            # No other node would find it, nor could it read the chain.
            return
        patience_s = TAKEOVER_S + TAKEOVER_STEP_S * self.node
        if not self._met and self._address() is None:
            patience_s += FIRST_TAKEOVER_S
        now = time.monotonic()
        if away_s > patience_s and now - self._coordinated > TAKEOVER_AGAIN_S and not self._another_starts(now):
            self._coordinated = now
            self._ask(Coordinate())

    def _another_starts(self, now: float) -> bool:
        """Whether another node's coordinator has taken a term, and has had no time to publish itself yet."""
        try:
            newest, published = term.newest(self.directory), term.published(self.directory)
        except OSError:
            # A store that cannot be read takes no coordinator either.
            return True
        if newest != self._term:
            self._term, self._term_seen = newest, now
        return newest > published and now - self._term_seen < STARTING_S

    def _decided(self) -> bool:
        """The attempt is over although no stop arrived: it was decided before this agent joined, or while it was cut off."""
        if (verdict := read_verdict(self.directory)) is not None:
            self._exit(verdict.exit_code)
        return verdict is not None

    def _join(self, link: Link) -> None:
        """Join, and repeat the reports that may not have arrived."""
        self._link, self._met = link, True
        _log.info("connected to the coordinator")
        ranks = sorted(worker.rank for worker in self._running())
        # What a scheduler knows of this node; what the run knows of its host the coordinator knows too.
        domain = os.environ.get("HEADWAY_DOMAIN") or None
        self._send("join", {"host": self.host, "domain": domain, "running": ranks, "port": self.port})
        for event in self.events:
            self._report_event(event)
        for worker in self.workers.values():
            if worker.ended is not None:
                self._report_end(worker)
        if self.stopping_since is not None:
            self._say_stopping(self.stopping_since)
        self._beat()

    def _send(self, kind: str, body: Mapping[str, Any]) -> None:
        """Send if there is a connection; reports that matter are repeated after the next join."""
        if self._link is not None:
            self._link.send(kind, self.generation, self.node, body)

    # --- what is reported ---------------------------------------------------------------------------------------------

    def _runs(self) -> None:
        """This process may have been stopped until now. Its beats are what it does most often."""
        self._pauses.runs(time.monotonic(), beat_interval_s(self.config.slots + self.config.spares))

    async def _keep_beating(self) -> None:
        interval_s = beat_interval_s(self.config.slots + self.config.spares)
        while True:
            self._beat()
            self._park()
            if self.port is None and time.monotonic() - self._listened > LISTEN_AGAIN_S:
                self._listened = time.monotonic()
                self._ask(Listen())
            await asyncio.sleep(interval_s)

    def _beat(self) -> None:
        self._runs()
        ranks = {worker.rank: self._heartbeat(worker.local_rank) for worker in self._running()}
        self._send("beat", {"port": self.port, "ranks": ranks})

    def _heartbeat(self, local_rank: int) -> list[Any]:
        """Return step, section, pulse, seconds since the last heartbeat, and own seconds. Pauses of the whole node do not count."""
        words = self.page.read(local_rank)
        sign_s = words["monotonic_ns"] / 1e9
        age_s = round(time.monotonic() - sign_s - self._pauses.since(sign_s), 3) if sign_s else None
        own_s = round(words["own_ns"] / 1e9, 6) if words["own_ns"] else None
        # A script may have written over the page.
        known = 0 <= words["section"] < len(SECTIONS)
        return [words["step"], SECTIONS[words["section"]] if known else "script", words["pulse"], age_s, own_s]

    def _report_event(self, event: dict[str, Any]) -> None:
        self._send("committed" if event["what"] == "committed" else "evidence", event)

    def _say_evidence(self, body: dict[str, Any]) -> None:
        self._send("evidence", body)

    def _report_end(self, worker: WorkerProcess) -> None:
        """Report an end, in one message with all others of this turn of the event loop."""
        facts = {"rank": worker.rank, "code": worker.code, "asked": worker.asked, "oom": worker.oom}
        _log.info("exited", extra=log.fields({**facts, "how": worker.ended}))
        step = self.page.read(worker.local_rank)["step"]
        if not self._ends:
            asyncio.get_running_loop().call_soon(self._report_ends)
        xids = [[each.number, each.device, each.text, each.ours] for each in of_job(self._kernel.xids(), self._devices)]
        self._ends.append({**facts, "how": worker.ended, "step": step, **({"xids": xids} if xids else {})})

    def _report_ends(self) -> None:
        ends, self._ends = self._ends, []
        self._send("exited", {"exits": ends})

    def _running(self) -> list[WorkerProcess]:
        return [worker for worker in self.workers.values() if worker.ended is None]

    # --- orders -------------------------------------------------------------------------------------------------------

    def _obey(self, _: Link, message: Message) -> None:
        log.in_generation(message.generation)
        facts = {name: value for name, value in message.body.items() if isinstance(value, str | int | float)}
        level = logging.DEBUG if message.kind == "probe" else logging.INFO
        _log.log(level, "order to %s", message.kind, extra=log.fields(facts))
        if message.kind not in ORDERS:
            return
        match order_of(message.kind, message.body):
            case Assign(slot):
                self.slot = slot
                if slot is None:
                    self._idle()
            case StartRanks() as order:
                self._start(message.generation, order)
            case Save():
                for local_rank in range(self.config.procs_per_slot):
                    self.page.write(local_rank, save_request=1)
            case Survey():
                self._spin(self._survey())
            case ProbeRanks(ranks):
                self._spin(self._probe(ranks))
            case Stop() as order:
                self._stop(message.generation, order)

    def _spin(self, work: Any) -> None:
        """Run a task in the background; its error goes to this process's log."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _survey(self) -> None:
        """Report the captures of this node's keeper; none if it does not answer."""
        name = os.environ.get("HEADWAY_KEEPER")
        try:
            holdings = await held_by(name) if name else []
        except KeeperError as error:
            _log.warning("the keeper cannot be asked: %s", error)
            holdings = []
        self._say_evidence({"what": "held", "holdings": [asdict(holding) for holding in holdings]})

    async def _probe(self, ranks: Sequence[int] | None) -> None:
        """Looks at the processes of some ranks, or of all that run here."""
        asked = {worker.rank: worker.pid for worker in self._running() if worker.pid}
        asked = {rank: pid for rank, pid in asked.items() if ranks is None or rank in ranks}
        generation = self.generation
        found = await probe.look(asked, self.directory.stacks, lambda some: self._ask(Dump(sorted(some))))
        if generation == self.generation:
            self._say_evidence({"what": "probe", "ranks": {rank: asdict(seen) for rank, seen in found.items()}})
            self._spin(self._record(generation, list(asked)))

    async def _record(self, generation: int, ranks: list[int]) -> None:
        """Asks for the flight recorders of ranks that have stood still since the look before, and NCCL for what it knows."""
        signs_ns = {rank: self._sign_ns(rank) for rank in ranks}
        due = self._recorder.to_ask(signs_ns, time.monotonic_ns())
        if not due:
            return
        asked = self._recorder.ask(generation, due)
        if self.slot is not None and self.slot < ras.NODES:
            self._spin(self._ask_nccl(generation, signs_ns))
        until = time.monotonic() + RECORDED_S
        while asked and time.monotonic() < until and generation == self.generation:
            await asyncio.sleep(RECORDED_LOOK_S)
            found = await asyncio.to_thread(answers, asked)
            asked = {rank: before for rank, before in asked.items() if rank not in found}
            if still := {rank: entered for rank, entered in found.items() if self._sign_ns(rank) == signs_ns[rank]}:
                self._say_recorded(still)

    def _sign_ns(self, rank: int) -> int:
        return self.page.read(rank % self.config.procs_per_slot)["monotonic_ns"]

    async def _ask_nccl(self, generation: int, signs_ns: Mapping[int, int]) -> None:
        if (text := await ras.report(os.environ)) is not None:
            ras.write(self.directory.evidence / f"ras-{self.node}.txt", text)
            still = generation == self.generation and all(self._sign_ns(rank) == sign_ns for rank, sign_ns in signs_ns.items())
            if still and (said := ras.summary(text)) is not None:
                self._say_recorded({}, said)

    def _say_recorded(self, found: Mapping[int, tuple[Collective, ...]], said: str | None = None) -> None:
        ranks = {rank: [asdict(each) for each in entered] for rank, entered in found.items()}
        self._say_evidence({"what": "recorded", "ranks": ranks, "said": said})

    # --- starting and ending workers ----------------------------------------------------------------------------------

    def _start(self, generation: int, order: StartRanks) -> None:
        """Starts this node's part of a generation; a node without a slot in it is a spare."""
        if generation <= self.generation:
            return
        dead = [worker.pid for worker in self.workers.values() if worker.pid]
        self.generation, self._start_order, self._started, self._began = generation, order, time.monotonic(), 0.0
        self.slot = slot_of(self.node, order.slots, dict(order.moved))
        if self.slot is None:
            self._idle()
            return
        self.workers, self._ends = {}, []
        self._kernel.begin()
        self.events.clear()
        if self._starting is not None:  # of a generation that this one replaces
            self._starting.cancel()
            self._starting = None
        first = self.slot * self.config.procs_per_slot
        for local_rank in range(self.config.procs_per_slot):
            self.page.write(
                local_rank, pid=0, generation=generation, step=0, section=0, monotonic_ns=0, save_request=0, pulse=0, own_ns=0
            )
            self.workers[first + local_rank] = WorkerProcess(first + local_rank, local_rank, generation, 0)
        try:
            orders = [self._order(self.slot, local_rank, order) for local_rank in range(self.config.procs_per_slot)]
        except Exception as error:
            # Disk full or no such device: report the ranks as failed, or the coordinator waits for them forever.
            self._not_started(f"not started: {error}", asked=False)
            return
        self._starting = asyncio.create_task(self._spawn(generation, orders, dead))

    async def _spawn(self, generation: int, orders: list[RankOrder], dead: list[int]) -> None:
        """Request all workers in one message: all of them start, or none. The devices of the dead ones are free before."""
        await devices.until_free(dead, DEVICES_FREE_S)
        if self._devices is None:
            self._spin(self._know_devices())
        self._ask(Spawn(generation, orders))

    async def _know_devices(self) -> None:
        """Look the devices up while they are all present: NVML does not list a lost one."""
        self._devices = await devices.used(os.environ, self.config.procs_per_slot)

    def _not_started(self, how: str, *, asked: bool) -> None:
        for worker in self.workers.values():
            worker.ended, worker.code, worker.asked = how, -signal.SIGKILL, asked
            self._report_end(worker)

    def _order(self, slot: int, local_rank: int, start: StartRanks) -> RankOrder:
        """Return the supervisor's order for one rank."""
        order = command(self.config, self.directory, slot, local_rank, self.generation, start, os.environ)
        self.directory.stacks(order.rank).parent.mkdir(exist_ok=True)
        make_folders(order)
        own = {"HEADWAY_STACKS": str(self.directory.stacks(order.rank)), "HEADWAY_MODULES": str(self._modules(self.node))}
        order.environment = {**self._recorder.variables(self.generation), **order.environment, **own}
        return order

    def _idle(self) -> None:
        """A node that computes nothing: what still runs here has been replaced elsewhere."""
        if self._running():
            self._kill(self.generation)
        self._park()

    def _stop(self, generation: int, order: Stop) -> None:
        if self._starting is not None and not self._starting.done():
            self._starting.cancel()
            self._not_started("not started", asked=True)
        elif self.config.trainer.kind == "script":
            self._ask(KillWorkers(generation, signal.SIGTERM))
            if order.grace_s is None:
                self._spin(self._end_unheard(generation))
            else:
                asyncio.get_running_loop().call_later(order.grace_s, self._kill, generation)
        else:
            self._kill(generation)
        if order.exit_code is not None:
            self._exit(order.exit_code)

    async def _end_unheard(self, generation: int) -> None:
        """Sends SIGKILL to ranks that still run after SIGTERM because another rank has failed. A script may save at that signal, so it has
        as long as under torchrun. If all of them wait in collectives, SIGKILL comes sooner: Python runs no signal handler there, and the
        rank that failed will not join."""
        until = time.monotonic() + self.config.timeout_s("terminate")
        while (left_s := until - time.monotonic()) > 0:
            await asyncio.sleep(min(UNHEARD_S, left_s))
            pids = {each.rank: each.pid for each in self._running() if each.generation <= generation and each.pid}
            try:
                found = await probe.look(pids, self.directory.stacks, lambda some: self._ask(Dump(sorted(some))))
            except Exception as error:
                # A look that fails must not keep SIGKILL from them.
                _log.warning("cannot inspect the ranks that still run: %s", error)
                continue
            if all(seen.where == "collective" for seen in found.values()):
                break
        self._kill(generation)

    def _kill(self, generation: int) -> None:
        self._ask(KillWorkers(generation, signal.SIGKILL))

    # --- standbys -----------------------------------------------------------------------------------------------------

    def _park(self) -> None:
        """Has standbys made for the next generation, once this one's workers need the processors no more than usual."""
        if self._parked == self.generation or self._over.is_set() or not self._may_park():
            return
        self._parked = self.generation
        try:
            orders = [self._standby_order(local_rank) for local_rank in range(self.config.procs_per_slot)]
        except Exception as error:  # one can do without
            _log.warning("no standbys: %s", error)
            return
        if any(not is_ours(order.argv) for order in orders):
            return
        if cgroup.available_bytes() < len(orders) * STANDBY_BYTES:
            _log.warning("no standbys: not enough free memory")
            return
        self._ask(StartStandbys(orders, self._modules_worth()))

    def _may_park(self) -> bool:
        if self.slot is None:
            return self._met
        words = [self.page.read(worker.local_rank) for worker in self._running()]
        if len(words) < self.config.procs_per_slot or any(each["section"] in _BEGINNING for each in words):
            return False
        self._began = self._began or time.monotonic()
        base = self._start_order.base if self._start_order is not None and self.config.trainer.kind != "script" else None
        first = base.step if base else 0
        return all(each["step"] > first for each in words) or time.monotonic() - self._began > STANDBY_AFTER_S

    def _standby_order(self, local_rank: int) -> RankOrder:
        """As for a worker of the next generation, as far as that is known now."""
        start = self._start_order or StartRanks(self.config.slots, (), "", 0, 0, None)
        order = self._order(self.slot or 0, local_rank, start)
        if self.slot is None:
            order.environment = {name: text for name, text in order.environment.items() if name not in OF_A_RANK}
        return order

    def _modules(self, node: int) -> Path:
        """Where the first worker of a node lists what it has imported."""
        return self.directory.attempt_directory / f"modules-{node}.json"

    def _modules_worth(self) -> list[str]:
        paths = [self._modules(self.node), *sorted(self.directory.attempt_directory.glob("modules-*.json"))]
        for path in paths:
            try:
                return worth_importing(json.loads(path.read_text()), of_any_rank=self.slot is None)
            except (OSError, ValueError):
                continue
        return worth_importing([], of_any_rank=True)


def main() -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        # A scheduler signals every process of a step; the supervisor decides.
        signal.signal(number, signal.SIG_IGN)
    environment = {name: os.environ[f"HEADWAY_{name}"] for name in ("RUN_JSON", "ATTEMPT", "NODE", "HOST", "INCARNATION")}
    descriptors = {name: int(os.environ[f"HEADWAY_{name}"]) for name in ("SUPERVISOR_FD", "HEARTBEAT_FD")}
    log.configure("agent", node=int(environment["NODE"]))
    run_json = Path(environment["RUN_JSON"])
    config = from_json(RunConfig, run_json.read_text())
    directory = RunDirectory.of(run_json, int(environment["ATTEMPT"]))
    page = HeartbeatPage(memoryview(mmap.mmap(descriptors["HEARTBEAT_FD"], 0)))
    agent = Agent(config, directory, int(environment["NODE"]), environment["HOST"], int(environment["INCARNATION"]), page)
    asyncio.run(agent.run(descriptors["SUPERVISOR_FD"]))


if __name__ == "__main__":
    main()
