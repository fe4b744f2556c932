"""Supervises a node: forks the workers and holds their heartbeat page. It must not die; the agent may restart.

Small and single-threaded on purpose. It decides nothing: it executes the agent's requests and reports events; without an agent, it keeps
the events for the next one. It also keeps the node's keeper running and, on request, the coordinator.
"""

import contextlib
import json
import mmap
import os
import secrets
import selectors
import signal
import socket
import sys
import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from headway.runner.agent import cgroup, shm_cleanup, store, warm
from headway.runner.agent.launch import Torchrun, is_ours, worker_argv
from headway.runner.agent.listening import STORE_BACKLOG, listen
from headway.runner.agent.processes import (
    activity,
    become_subreaper,
    children,
    describe_code,
    describe_status,
    kill_group,
    open_log,
    opens_a_device,
    signal_main_thread,
    spawn,
    state_of,
)
from headway.runner.agent.protocol import (
    Coordinate,
    Dump,
    ExitNode,
    KillWorkers,
    Listen,
    Listening,
    NodeState,
    RankOrder,
    Report,
    Request,
    Spawn,
    Spawned,
    StandbyReport,
    StartStandbys,
    StopSignal,
    UndeadRank,
    UndeadReport,
    WorkerEnded,
    WorkerEvent,
    WorkerProcess,
    encode,
    request_of,
)
from headway.runner.alive import Process
from headway.runner.contract import STACKS_SIGNAL, Exit, HeartbeatPage, RunConfig, RunDirectory
from headway.runner.imports import MODULES, recorded
from headway.runner.posix import write_atomic

# Within OF_LATE_S, of an agent or a coordinator that keeps dying: then the node is not usable.
MAX_RESTARTS = 20
# Of a coordinator that was taken over and keeps dying: another node may have more luck.
MAX_TAKEOVERS = 3
OF_LATE_S = 3600.0
EVENT_BYTES = 1 << 16
# Of events in a hello, which must leave at once: a socket takes 208 KiB (net.core.wmem_default)
REPEATED_BYTES = 1 << 17
EVENTS_KEPT = 256
REAP_S = 0.005
# After the script's end, for Python's own: of a process that computes nothing and moves nothing meanwhile.
LEAVE_S, LEAVE = 30.0, "HEADWAY_LEAVE_S"
# Of a processor: threads that wait for the interpreter wake up all the time.
IDLE_SHARE = 0.1
# A script that has not stepped by then may never do so in a way that can be counted.
STEPLESS_S = 60.0
# Of a worker that SIGKILL does not end; from when on the agent gets a report.
KILL_AGAIN_S, UNDEAD_S = 5.0, 30.0
# A killed process that is in the kernel may take its time; the next generation waits no longer.
STRAYS_S = 10.0
# An earlier generation's store ends within milliseconds.
STORE_ENDS_S = 10.0
# How long the coordinator may take to end once the agent has.
PARTING_S = 10.0


@dataclass
class Leaving:
    """A worker whose script is through, with the code that it ends with; what it had done when it was last looked at, and when it is looked
    at next."""

    code: int
    done: tuple[int, int]
    until: float
    killed: bool = False


@dataclass
class Daemon:
    """The agent, the coordinator or the keeper: restarted when it ends with anything but 0."""

    module: str
    pid: int = 0
    restarts: int = 0
    deaths: list[float] = field(default_factory=list)  # monotonic, those within OF_LATE_S

    def died(self) -> None:
        now = time.monotonic()
        self.restarts += 1
        self.deaths = [*(each for each in self.deaths if now - each < OF_LATE_S), now]


@dataclass
class Supervisor:
    """`serve()` runs the node until its agent requests the exit, and returns the exit code."""

    config: RunConfig
    directory: RunDirectory
    node: int
    host: str
    hosts_coordinator: bool
    _workers: dict[int, WorkerProcess] = field(default_factory=dict)  # by pid
    _said: deque[dict[str, Any]] = field(default_factory=lambda: deque(maxlen=EVENTS_KEPT))  # by workers, for the next agent
    _standbys: dict[int, warm.Standby] = field(default_factory=dict)  # by local rank
    _stopping_since: float | None = None  # monotonic
    _stopped_by: int = signal.SIGTERM  # what torchrun's workers get too
    _rendezvous: socket.socket | None = None
    _store: store.StoreHost | None = None
    # Children that this process had before it was a supervisor.
    _others: frozenset[int] = frozenset()
    # Sessions of what ranks that ended with 0 have left behind.
    _left: set[int] = field(default_factory=set)
    _leaving: dict[int, Leaving] = field(default_factory=dict)  # by pid
    # Workers: when SIGKILL was sent first, monotonic.
    _killed: dict[int, float] = field(default_factory=dict)
    _kill_again: float = 0.0
    _steps_due: float | None = None  # monotonic
    _shared_memory: set[shm_cleanup.Inode] = field(default_factory=set)  # that ended workers had open
    _shared_before: set[shm_cleanup.Inode] = field(default_factory=set)  # that was there before the generation
    # Kills by the kernel before this generation.
    _out_of_memory: int = 0
    # Of an agent that has been reaped, until the main loop deals with its end.
    _agent_status: int | None = None
    _exit_code: int | None = None

    def serve(self) -> int:
        self._others = frozenset(children())
        become_subreaper()
        if (given := os.environ.pop(store.SOCKET, None)) is not None:
            self._rendezvous = socket.socket(fileno=int(given))
            self._rendezvous.set_inheritable(False)
        # Without a name: nothing is left behind, whichever process dies.
        self._page = os.memfd_create("headway-heartbeat")
        os.ftruncate(self._page, HeartbeatPage.bytes_for(self.config.procs_per_slot))
        self._heartbeats = HeartbeatPage(memoryview(mmap.mmap(self._page, 0)))
        self._events, self._worker_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._events, selectors.EVENT_READ, self._read_events)
        self._selector.register(self._wakeup(), selectors.EVENT_READ, self._read_signals)
        self._publish()
        self._agent = Daemon("headway.runner.agent.main")
        self._coordinator = Daemon("headway.runner.coordinator.main") if self.hosts_coordinator else None
        self._keeper = Daemon("headway.runner.checkpoint.keeper") if self._may_save() else None
        self._store_host = Daemon("headway.runner.agent.store")
        # No other process can take it before the keeper does.
        self._keeper_name = f"headway-keeper-{secrets.token_hex(16)}"
        self._start_first()
        if self._coordinator is not None:
            self._start_coordinator()
        if self._keeper is not None:
            self._start_keeper()
        self._open_rendezvous()
        self._start_agent()
        try:
            while self._exit_code is None:
                self._hear(self._look())
            until = time.monotonic() + PARTING_S
            while self._coordinates() and (left_s := until - time.monotonic()) > 0:
                self._hear(left_s)
        finally:
            self._end_everything()
            self._close()
        return Exit.RETRY_ELSEWHERE if self._exit_code is None else self._exit_code

    def _hear(self, patience_s: float | None) -> None:
        """Deals with what comes next, from whomever it comes."""
        for key, _ in self._selector.select(patience_s):
            # An event handled before it may have closed this one: a standby exits while the supervisor replaces the standbys by workers.
            if self._selector.get_map().get(key.fd) is key:
                key.data()
        if self._agent_status is not None:
            status, self._agent_status = self._agent_status, None
            self._agent_ended(status)

    def _look(self) -> float | None:
        """Ends what does not end by itself; seconds until it is to be looked at again, null: there is nothing of that kind."""
        now = time.monotonic()
        for pid, leaving in self._leaving.items():
            if leaving.until <= now:
                self._look_at(pid, leaving, now)
        if self._killed and self._kill_again <= now:
            self._kill_again = now + KILL_AGAIN_S
            for pid in self._killed:
                kill_group(pid, signal.SIGKILL)
            stay = [pid for pid, since in self._killed.items() if now - since >= UNDEAD_S]
            if undead := [UndeadRank(self._workers[pid].rank, state_of(pid)) for pid in stay]:
                self._tell(UndeadReport(undead))
        if self._steps_due is not None and self._steps_due <= now:
            self._steps_due = None
            self._say_stepless()
        waits = [leaving.until for leaving in self._leaving.values()] + [self._kill_again] * bool(self._killed)
        waits += [] if self._steps_due is None else [self._steps_due]
        return max(min(waits) - now, 0.0) if waits else None

    def _say_stepless(self) -> None:
        """Report that the progress of a script is unknown that steps no optimizer of torch."""
        first = next((worker for worker in self._living() if worker.rank == 0), None)
        if first is not None and self._heartbeats.read(first.local_rank)["step"] == 0:
            text = f"no torch optimizer has stepped within {STEPLESS_S:.0f} s: steps are not counted"
            self._say({"what": "note", "rank": 0, "kind": "unseen", "calls": [text]})

    def _look_at(self, pid: int, leaving: Leaving, now: float) -> None:
        """Ends a worker whose script is through, where it has done nothing since the last look."""
        ticks, moved = activity(pid)
        bound_s = leave_s()
        idle = moved == leaving.done[1] and ticks - leaving.done[0] <= IDLE_SHARE * bound_s * os.sysconf("SC_CLK_TCK")
        leaving.done, leaving.until = (ticks, moved), now + bound_s
        if idle or leaving.killed:
            leaving.killed = True
            os.kill(pid, signal.SIGKILL)

    # --- what is published and who is started -------------------------------------------------------------------------

    def _publish(self) -> None:
        facts = {"node": self.node, "host": self.host, "pid": os.getpid(), "procs": self.config.procs_per_slot}
        process = {"process": vars(Process.own())}
        record = {"schema": "headway.node/1", **facts, **process, "heartbeat": f"/proc/{os.getpid()}/fd/{self._page}"}
        write_atomic(self.directory.node(self.node), json.dumps(record).encode() + b"\n")

    def _companion_environment(self) -> dict[str, str]:
        known = {
            "RUN_JSON": str(self.directory.run_json),
            "ATTEMPT": self.directory.attempt,
            "NODE": self.node,
            "HOST": self.host,
        }
        return {**os.environ, **{f"HEADWAY_{name}": str(value) for name, value in known.items()}, **self._keeper_environment()}

    def _keeper_environment(self) -> dict[str, str]:
        return {"HEADWAY_KEEPER": self._keeper_name} if self._keeper is not None else {}

    def _may_save(self) -> bool:
        """Return whether a worker may save; a script may, with or without checkpoints in its spec."""
        return bool(self.config.checkpoint.tiers) or self.config.trainer.kind == "script"

    def _start_agent(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        descriptors = {"SUPERVISOR_FD": theirs.fileno(), "HEARTBEAT_FD": self._page}
        environment = self._companion_environment() | {f"HEADWAY_{name}": str(fd) for name, fd in descriptors.items()}
        environment["HEADWAY_INCARNATION"] = str(self._agent.restarts)
        argv = [sys.executable, "-P", "-m", self._agent.module]
        self._agent.pid = spawn(argv, environment, descriptors.values(), self._log("agent"), self._log("agent"))
        theirs.close()
        self._to_agent, self._from_agent = ours, b""
        self._selector.register(ours, selectors.EVENT_READ, partial(self._read_agent, ours))
        stopping_s = None if self._stopping_since is None else time.monotonic() - self._stopping_since
        self._tell(NodeState(list(self._workers.values()), self._repeated(), stopping_s, self._port()))

    def _repeated(self) -> list[dict[str, Any]]:
        """Return the newest events of workers, as far as the first message has room."""
        events: list[dict[str, Any]] = []
        room = REPEATED_BYTES
        for event in reversed(self._said):
            if (room := room - len(json.dumps(event))) < 0:
                break
            events.insert(0, event)
        return events

    def _start_coordinator(self) -> None:
        assert self._coordinator is not None  # noqa: S101  only called on the node that hosts it
        argv = [sys.executable, "-P", "-m", self._coordinator.module]
        self._coordinator.pid = spawn(argv, self._companion_environment(), (), self._log("coordinator"), self._log("coordinator"))

    def _start_keeper(self) -> None:
        """Start a keeper under the same name as before: workers find it there again, without the captures of the previous one."""
        assert self._keeper is not None  # noqa: S101  only called where there is one
        ours, theirs = socket.socketpair()
        options = {"socket": self._keeper_name, "parent-fd": theirs.fileno(), "host": self.host}
        files = {"address-file": self.directory.keeper(self.node), "secret-file": self.directory.secret_file}
        marked = {} if self.config.peer_dscp is None else {"dscp": self.config.peer_dscp}
        argv = [sys.executable, "-P", "-m", self._keeper.module]
        argv += [f"--{name}={value}" for name, value in {**options, **files, **marked}.items()]
        self._keeper.pid = spawn(argv, self._companion_environment(), [theirs.fileno()], self._log("keeper"), self._log("keeper"))
        theirs.close()
        # Its end is ours: the keeper does not outlive this process.
        self._to_keeper = ours

    def _log(self, name: str) -> Path:
        return self.directory.logs / f"{name}-{self.node}.log"

    # --- the agent asks -----------------------------------------------------------------------------------------------

    def _read_agent(self, agent: socket.socket) -> None:
        if agent is not self._to_agent:  # its end was noticed in the same turn
            return
        try:
            data = agent.recv(EVENT_BYTES)
        except ConnectionResetError:  # it ended with unread reports
            data = b""
        if not data:
            # It is gone: SIGCHLD follows, and starts the next one.
            self._selector.unregister(self._to_agent)
            self._to_agent.close()
            return
        *lines, self._from_agent = (self._from_agent + data).split(b"\n")
        for line in lines:
            request = request_of(line)
            try:
                self._execute(request)
            except OSError as error:
                # No process, no disk, no address: the node is unusable.
                print(f"{type(request).__struct_config__.tag}: {error}", file=sys.stderr, flush=True)
                self._exit_code = Exit.RETRY_ELSEWHERE

    def _execute(self, request: Request) -> None:
        match request:
            case Spawn():
                self._spawn(request)
            case StartStandbys():
                self._standby(request)
            case KillWorkers():
                self._kill(request)
            case Dump(ranks):
                self._dump(ranks)
            case Listen():
                self._listen()
            case Coordinate():
                self._coordinate()
            case ExitNode(code):
                self._exit_code = code

    def _spawn(self, request: Spawn) -> None:
        """Makes a generation's workers, of standbys where they are ready. The node of rank 0 serves their store."""
        self._workers.clear()
        self._said.clear()
        self._leaving.clear()
        self._steps_due = None
        self._killed.clear()
        self._clear_away()
        self._shared_before = shm_cleanup.present()
        if serves := any(order.hosts_store for order in request.workers):
            self._serve_store()
        orders = {order.local_rank: order for order in request.workers}
        ready = {local_rank for local_rank, standby in self._standbys.items() if standby.ready and not standby.first}
        taken, cold = self._hand_over(orders)
        for local_rank, order in orders.items():
            pid = taken.get(local_rank) or self._fork(order)
            is_warm = local_rank in taken and local_rank in ready
            self._workers[pid] = WorkerProcess(order.rank, local_rank, request.generation, pid, is_warm)
        self._out_of_memory = cgroup.out_of_memory_kills()
        self._tell(Spawned(list(self._workers.values()), cold))
        if serves:
            self._listen()

    def _hand_over(self, orders: dict[int, RankOrder]) -> tuple[dict[int, int], dict[int, str]]:
        """Local rank -> pid of the standbys that have become workers, and why the others have not; those are ended."""
        given: list[tuple[warm.Standby, warm.WorkerOrder]] = []
        logs: list[int] = []
        for local_rank in list(self._standbys):
            standby = self._unpark(local_rank)
            if (order := orders.get(local_rank)) is None:
                kill_group(standby.pid, signal.SIGKILL)
                continue
            environment = {**self._worker_environment(), **order.environment}
            out, err = (open_log(Path(path)) if path else os.dup(fd) for path, fd in ((order.stdout, 1), (order.stderr, 2)))
            logs += [out, err]
            added = frozenset(order.environment)
            given.append((standby, warm.WorkerOrder(local_rank, order.argv, environment, self._descriptors(), out, err, added)))
        taken = warm.hand_over(given)
        for log in logs:
            os.close(log)
        return taken

    def _fork(self, order: RankOrder) -> int:
        """A worker from nothing; its pid."""
        descriptors = self._descriptors()
        environment = {
            **self._worker_environment(),
            **order.environment,
            **{name: str(fd) for name, fd in descriptors.items()},
        }
        stdout, stderr = (Path(path) if path else None for path in (order.stdout, order.stderr))
        return spawn(order.argv, environment, descriptors.values(), stdout, stderr, order.cpus, stdin=self._passes_stdin())

    def _passes_stdin(self) -> bool:
        """torchrun's workers all have its stdin."""
        return Torchrun.of(self.config) is not None

    def _worker_environment(self) -> dict[str, str]:
        return {**os.environ, **self._keeper_environment()}

    def _descriptors(self) -> dict[str, int]:
        return {"HEADWAY_HEARTBEAT_FD": self._page, "HEADWAY_EVENTS_FD": self._worker_end.fileno()}

    def _standby(self, request: StartStandbys) -> None:
        """Starts a standby for each named local rank that has none."""
        missing = [order for order in request.workers if order.local_rank not in self._standbys]
        for order in missing:
            environment = {**self._worker_environment(), **order.environment}
            try:
                place = (self._companion_environment(), request.modules, order.cpus)
                overlays = recorded(Path(environment[MODULES]), order.local_rank)
                started = warm.start_standby(order.argv, environment, *place, stdin=self._passes_stdin(), overlays=overlays)
            except OSError as error:  # one can do without
                print(f"no standby: {error}", file=sys.stderr, flush=True)
                return
            self._keep_standby(order.local_rank, started)

    def _start_first(self) -> None:
        """Has the first workers begin to import while this node still meets the others; a launcher may have begun even sooner."""
        passed_on, host = os.environ.pop(warm.PASSED_ON, None), os.environ.pop(store.PASSED_ON, None)
        if host is not None:
            self._keep_store_host(store.take_on(host))
        environment, given = self._worker_environment(), Torchrun.of(self.config)
        if passed_on is not None:
            for local_rank, standby in warm.take_on(passed_on, environment).items():
                self._keep_standby(local_rank, standby)
            return
        if not (given is not None and given.virtual_local_rank):
            self._start_standbys(environment, warm.first_imports(self.config.trainer.options.get("argv", ())))
        if self._store is None:
            self._start_store_host()

    def _start_standbys(self, environment: dict[str, str], modules: Sequence[str]) -> None:
        cpus = json.loads(os.environ.get("HEADWAY_CPUS", "{}"))
        for local_rank in range(self.config.procs_per_slot):
            argv = worker_argv(self.config, local_rank, os.environ)
            if not is_ours(argv):
                return
            place = (self._companion_environment(), modules, cpus.get(str(local_rank)))
            host, theirs = store.begin() if modules and self._store is None else (None, None)
            try:
                started = warm.start_standby(argv, environment, *place, first=True, stdin=self._passes_stdin(), store=theirs)
            except OSError as error:  # one can do without
                print(f"no standby: {error}", file=sys.stderr, flush=True)
                return
            self._keep_standby(local_rank, started)
            if host is not None and theirs is not None:
                theirs.close()
                self._keep_store_host(host)

    def _keep_standby(self, local_rank: int, standby: warm.Standby) -> None:
        self._standbys[local_rank] = standby
        self._selector.register(standby.orders, selectors.EVENT_READ, partial(self._hear_standby, standby))

    def _hear_standby(self, standby: warm.Standby) -> None:
        if not standby.hear():  # its end comes as SIGCHLD too
            self._selector.unregister(standby.orders)
        elif standby.ready and not standby.first and all(each.ready for each in self._standbys.values()):
            self._tell(StandbyReport(sorted(self._standbys)))

    # --- the rendezvous store -----------------------------------------------------------------------------------------

    def _keep_store_host(self, host: store.StoreHost) -> None:
        self._store = host
        self._selector.register(host.orders, selectors.EVENT_READ, partial(self._hear_store_host, host))

    def _start_store_host(self) -> None:
        self._keep_store_host(store.start(self._companion_environment(), self._log("store")))

    def _hear_store_host(self, host: store.StoreHost) -> None:
        """Replace a host that has ended. Its stores are gone, as with torchrun's agent; one that it had not begun to serve is served."""
        if host is not self._store or host.hear():
            return
        self._selector.unregister(host.orders)
        host.orders.close()
        self._store_host.died()
        if len(self._store_host.deaths) > MAX_RESTARTS:
            host.forget()
            self._exit_code = Exit.RETRY_ELSEWHERE
            return
        self._start_store_host()
        if host.unserved is not None:
            self._store.serve(host.unserved)

    def _serve_store(self) -> None:
        """Have the generation's store served at the address that this node reported. On a given port, the previous store has ended when
        this returns, so that it accepts none of the new workers."""
        assert self._store is not None  # noqa: S101  there is one from the start
        if self._rendezvous is not None and self.config.ports.store:
            self._store.serve(self._rendezvous.dup())
            if self._store.ordered > 1:
                self._store.wait(STORE_ENDS_S)
        elif self._rendezvous is not None:
            self._store.serve(self._rendezvous)
            self._rendezvous = None

    def _unpark(self, local_rank: int) -> warm.Standby:
        """Takes a standby out of those that wait."""
        standby = self._standbys.pop(local_rank)
        with contextlib.suppress(KeyError):  # it has ended, and was seen to
            self._selector.unregister(standby.orders)
        return standby

    def _kill(self, request: KillWorkers) -> None:
        self._read_events()
        # What has ended by itself was not asked to.
        self._reap()
        meant = [worker for worker in self._living() if worker.generation <= request.generation]
        if request.signal == signal.SIGKILL:
            self._shared_memory |= shm_cleanup.shared_memory_of(worker.pid for worker in meant)
        number = request.signal
        if number == signal.SIGTERM and "signals" in self.config.trainer.options:
            # Torchrun hands on the signal that it got.
            number = self._stopped_by
        for worker in meant:
            worker.asked = True
            kill_group(worker.pid, signal.Signals(number))
            if number == signal.SIGKILL:
                self._kill_again = time.monotonic() + KILL_AGAIN_S if not self._killed else self._kill_again
                self._killed.setdefault(worker.pid, time.monotonic())

    def _living(self) -> list[WorkerProcess]:
        return [worker for worker in self._workers.values() if worker.ended is None]

    def _dump(self, ranks: Sequence[int]) -> None:
        """Has the ranks' processes write their stacks, where they handle the signal for that."""
        for worker in self._living():
            if worker.rank in ranks:
                signal_main_thread(worker.pid, STACKS_SIGNAL)

    def _listen(self) -> None:
        self._open_rendezvous()
        self._tell(Listening(self._port()))

    def _open_rendezvous(self) -> None:
        """A listening socket for the store of a generation, held open so that this node can be the one with rank 0 at once."""
        if self._rendezvous is not None:
            return
        try:
            self._rendezvous = listen(self.host, STORE_BACKLOG)
        except OSError as error:
            # The name is not this machine's yet: the agent asks again.
            print(f"cannot listen on {self.host}: {error}", file=sys.stderr, flush=True)

    def _port(self) -> int | None:
        return None if self._rendezvous is None else int(self._rendezvous.getsockname()[1])

    def _coordinates(self) -> bool:
        return self._coordinator is not None and self._coordinator.pid != 0

    def _coordinate(self) -> None:
        """Starts a coordinator here, unless one runs."""
        if self._coordinates():
            return
        if self._coordinator is None:
            self._coordinator = Daemon("headway.runner.coordinator.main")
        self._start_coordinator()

    # --- reports to the agent -----------------------------------------------------------------------------------------

    def _tell(self, report: Report) -> None:
        line = encode(report)
        try:
            whole = self._to_agent.send(line, socket.MSG_DONTWAIT) == len(line)
        except BlockingIOError:
            whole = False
        except OSError:
            # There is no agent just now; the next one gets the whole state.
            return
        if not whole:
            # It does not read; a new one will, and gets the whole state.
            kill_group(self._agent.pid, signal.SIGKILL)

    def _read_events(self) -> None:
        while True:
            try:
                data = self._events.recv(EVENT_BYTES, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return
            try:
                event = json.loads(data)
            except ValueError:
                # Longer than EVENT_BYTES, so cut: it costs that event, not the node.
                print(f"unreadable event: {data[:80]!r}", file=sys.stderr, flush=True)
                continue
            if event.get("what") == "leaving":  # only for this process
                self._begins_to_leave(event)
                continue
            if (event.get("what"), event.get("name"), self.config.trainer.kind) == ("section", "script", "script"):
                self._steps_due = time.monotonic() + STEPLESS_S
            self._say(event)

    def _say(self, event: dict[str, Any]) -> None:
        self._said.append(event)
        self._tell(WorkerEvent(event))

    def _begins_to_leave(self, event: dict[str, Any]) -> None:
        for worker in self._living():
            if worker.rank == event["rank"]:
                self._leaving[worker.pid] = Leaving(event["code"], activity(worker.pid), time.monotonic() + leave_s())

    # --- signals ------------------------------------------------------------------------------------------------------

    def _wakeup(self) -> int:
        read, write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(write)
        self._stop_signals = self._signals_to_stop_at()
        for number in {signal.SIGCHLD, *self._stop_signals}:
            signal.signal(number, lambda *_: None)
        self._signals = read
        return read

    def _signals_to_stop_at(self) -> set[int]:
        """Return the signals of schedulers and people, or those of torchrun's --signals-to-handle; one that nohup ignores stays ignored."""
        names = self.config.trainer.options.get("signals", ("SIGTERM", "SIGINT"))
        return {number for name in names if signal.getsignal(number := getattr(signal, name)) is not signal.SIG_IGN}

    def _read_signals(self) -> None:
        numbers = set(os.read(self._signals, 4096))
        if asked := numbers & self._stop_signals:
            self._stopping_since = self._stopping_since or time.monotonic()
            self._stopped_by = min(asked)
            self._tell(StopSignal())
        # The events of a worker come before its end.
        self._read_events()
        self._reap()

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self._agent.pid:
                # Orders reap too, and an agent's last order may follow the one that is being executed.
                self._agent_status = status
            elif self._coordinator is not None and pid == self._coordinator.pid:
                self._coordinator_ended(status)
            elif self._keeper is not None and pid == self._keeper.pid:
                self._keeper_ended(self._keeper, status)
            elif pid in self._workers:
                self._worker_ended(self._workers[pid], status)
            else:
                self._standby_ended(pid)

    def _worker_ended(self, worker: WorkerProcess, status: int) -> None:
        worker.ended, worker.code = describe_status(status), os.waitstatus_to_exitcode(status)
        self._killed.pop(worker.pid, None)
        if (leaving := self._leaving.pop(worker.pid, None)) is not None and leaving.killed:
            worker.ended, worker.code = describe_code(leaving.code), leaving.code
            print(f"rank {worker.rank} had finished but did not exit: {worker.ended}", file=sys.stderr, flush=True)
        worker.oom = worker.code != 0 and not worker.asked and cgroup.out_of_memory_kills() > self._out_of_memory
        self._tell(WorkerEnded(worker))
        # Its data loaders have come to this process.
        strays = self._strays()
        if worker.code == 0:
            self._leave(worker, strays)
            return
        self._shared_memory |= shm_cleanup.shared_memory_of(strays)
        kill_group(worker.pid, signal.SIGKILL)

    def _leave(self, worker: WorkerProcess, strays: Iterable[int]) -> None:
        """Leave the processes alone that a completed rank has left behind, in whatever session they run: they belong to its script."""
        others = self._workers.keys() - {worker.pid}
        self._left |= ({worker.pid} | {session for pid in strays if (session := session_of(pid)) is not None}) - others

    def _standby_ended(self, pid: int) -> None:
        for local_rank, standby in list(self._standbys.items()):
            if standby.pid == pid:
                self._unpark(local_rank).orders.close()

    def _agent_ended(self, status: int) -> None:
        while self._to_agent.fileno() >= 0:
            # What it asked for last counts, and it asks for nothing more.
            self._read_agent(self._to_agent)
        self._agent.pid = 0
        if self._exit_code is not None:
            return
        if self._give_up(self._agent, status):
            self._exit_code = Exit.RETRY_ELSEWHERE
            return
        self._start_agent()

    def _coordinator_ended(self, status: int) -> None:
        assert self._coordinator is not None  # noqa: S101
        self._coordinator.pid = 0
        if os.waitstatus_to_exitcode(status) == 0:
            # It has decided, or another one has taken over.
            return
        given_up = self._give_up(self._coordinator, status)
        if not self.hosts_coordinator and len(self._coordinator.deaths) > MAX_TAKEOVERS:
            self._coordinator = None
        elif given_up:
            self._exit_code = Exit.RETRY_ELSEWHERE
        else:
            self._start_coordinator()

    def _keeper_ended(self, keeper: Daemon, status: int) -> None:
        """Start another keeper. Captures in the memory of the old one are lost; workers notice at their next save."""
        self._to_keeper.close()
        if self._give_up(keeper, status):
            self._exit_code = Exit.RETRY_ELSEWHERE
        else:
            self._start_keeper()

    def _give_up(self, companion: Daemon, status: int) -> bool:
        companion.died()
        print(f"{companion.module}: {describe_status(status)}, restart {companion.restarts}", file=sys.stderr, flush=True)
        return len(companion.deaths) > MAX_RESTARTS

    def _strays(self) -> list[int]:
        """Return the processes that workers left behind; this process adopts orphans (`become_subreaper`)."""
        return [pid for pid in children() if pid not in self._known()]

    def _known(self) -> set[int]:
        """The living processes that are no worker's child."""
        if self._store is not None and not self._store.pid:
            # It reports its pid before it can be a child of this process.
            self._store.hear()
        companions = (self._agent, self._coordinator, self._keeper, self._store)
        known = {*(companion.pid for companion in companions if companion is not None), *self._workers, *self._others}
        return known | {standby.pid for standby in self._standbys.values()}

    def _to_end(self) -> list[int]:
        """The strays, but for what ranks that ended with 0 have left behind and that has no device."""
        return [pid for pid in self._strays() if session_of(pid) not in self._left or opens_a_device(pid)]

    def _clear_away(self) -> None:
        """Ends what earlier workers left behind, and reaps it: what it held, a device or memory, is free then."""
        until = time.monotonic() + STRAYS_S
        while (strays := self._to_end()) and time.monotonic() < until:
            self._shared_memory |= shm_cleanup.shared_memory_of(strays)
            for pid in strays:
                os.kill(pid, signal.SIGKILL)
            self._reap()
            if self._to_end():
                time.sleep(REAP_S)
        self._remove_shared_memory()

    def _remove_shared_memory(self) -> None:
        shm_cleanup.remove_unused(self._shared_memory - self._shared_before)
        self._shared_memory.clear()

    def _end_everything(self) -> None:
        """Kill and reap this process's children within PARTING_S; after a failure also the processes that workers have left behind, with
        the children of killed ones. Processes that a completed run has left continue, as under torchrun."""
        until = time.monotonic() + PARTING_S
        completed = self._exit_code == Exit.COMPLETED
        self._shared_memory |= shm_cleanup.shared_memory_of(worker.pid for worker in self._living())
        while (left := self._to_kill(completed=completed)) and time.monotonic() < until:
            for pid in left:
                kill_group(pid, signal.SIGKILL)
                os.kill(pid, signal.SIGKILL)
            while children() and os.waitpid(-1, os.WNOHANG)[0]:
                continue
            time.sleep(REAP_S)
        if not completed:
            self._remove_shared_memory()

    def _close(self) -> None:
        """Close all sockets: with PYTHONWARNINGS, Python would warn on the user's terminal of each that is open at its end."""
        self._selector.close()
        of_store = [] if self._store is None else [self._store.orders, self._store.unserved]
        of_companions = [self._to_agent, self._to_keeper if self._keeper is not None else None, self._rendezvous]
        of_workers = [self._events, self._worker_end, *(standby.orders for standby in self._standbys.values())]
        for each in [*of_store, *of_companions, *of_workers]:
            if each is not None:
                each.close()

    def _to_kill(self, *, completed: bool) -> list[int]:
        ours = [pid for pid in children() if pid in self._known() - self._others]
        return ours if completed else [*ours, *self._to_end()]


def leave_s() -> float:
    """How long a process may do nothing after its script's end."""
    return float(os.environ.get(LEAVE, LEAVE_S))


def session_of(pid: int) -> int | None:
    """The session of a process; None once it is gone."""
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return None
