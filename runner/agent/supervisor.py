"""The process of a node that must not die: it forks the workers and holds their heartbeat page; the agent beside it may come and go.

Small and single-threaded on purpose. It decides nothing: it does what the agent asks and tells it what happened; while no agent is
there, what happened is kept for the next one. In the same way it keeps the node's keeper running, and where it is asked to the coordinator.
"""

import contextlib
import json
import os
import secrets
import selectors
import signal
import socket
import sys
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from headway.runner.agent import cgroup, leftovers, warm
from headway.runner.agent.launch import Torchrun, is_ours, worker_argv
from headway.runner.agent.processes import (
    become_subreaper,
    children,
    describe_status,
    kill_group,
    open_log,
    signal_main_thread,
    spawn,
)
from headway.runner.alive import Process
from headway.runner.checkpoint.posix import write_atomic
from headway.runner.contract import STACKS_SIGNAL, Exit, HeartbeatPage, RunConfig
from headway.runner.rundir import RunDirectory

MAX_RESTARTS = 20  # within OF_LATE_S, of an agent or a coordinator that keeps dying: then the node is not usable
MAX_TAKEOVERS = 3  # of a coordinator that was taken over and keeps dying: another node may have more luck
OF_LATE_S = 3600.0
EVENT_BYTES = 1 << 16
REPEATED_BYTES = 1 << 17  # of events in a hello, which must leave at once: a socket takes 208 KiB (net.core.wmem_default)
EVENTS_KEPT = 256
REAP_S = 0.005
STRAYS_S = 10.0  # a killed process that is in the kernel may take its time; the next generation does not wait for ever
PARTING_S = 10.0  # how long the coordinator may take to end once the agent has


@dataclass
class Worker:
    """A worker: its place, and how it ended once it has. `warm`: it was a standby; `asked`: we had told it to end; `oom`: the kernel has
    killed for memory since its generation began."""

    rank: int
    local_rank: int
    generation: int
    pid: int
    warm: bool = False
    ended: str | None = None
    code: int | None = None
    asked: bool = False
    oom: bool = False


@dataclass
class Companion:
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
    """`serve()` runs the node until its agent says how it ends, and returns the exit code."""

    config: RunConfig
    directory: RunDirectory
    node: int
    host: str
    hosts_coordinator: bool
    _workers: dict[int, Worker] = field(default_factory=dict)  # by pid
    _said: deque[dict[str, Any]] = field(default_factory=lambda: deque(maxlen=EVENTS_KEPT))  # by workers, for the next agent
    _standbys: dict[int, warm.Standby] = field(default_factory=dict)  # by local rank
    _stopping_since: float | None = None  # monotonic
    _stopped_by: int = signal.SIGTERM  # what torchrun's workers get too
    _rendezvous: socket.socket | None = None
    _shared_memory: set[leftovers.Inode] = field(default_factory=set)  # that ended workers had open
    _out_of_memory: int = 0  # kills by the kernel before this generation
    _exit_code: int | None = None

    def serve(self) -> int:
        become_subreaper()
        self._page = os.memfd_create("headway-heartbeat")  # without a name: nothing is left behind, whoever dies
        os.ftruncate(self._page, HeartbeatPage.bytes_for(self.config.procs_per_slot))
        self._events, self._worker_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._events, selectors.EVENT_READ, self._read_events)
        self._selector.register(self._wakeup(), selectors.EVENT_READ, self._read_signals)
        self._publish()
        self._agent = Companion("headway.runner.agent.main")
        self._coordinator = Companion("headway.runner.coordinator.main") if self.hosts_coordinator else None
        self._keeper = Companion("headway.runner.checkpoint.keeper") if self._may_save() else None
        self._keeper_name = f"headway-keeper-{secrets.token_hex(16)}"  # nobody else can take it before the keeper does
        self._start_first()
        if self._coordinator is not None:
            self._start_coordinator()
        if self._keeper is not None:
            self._start_keeper()
        self._open_rendezvous()
        self._start_agent()
        try:
            while self._exit_code is None:
                self._hear(None)
            until = time.monotonic() + PARTING_S
            while self._coordinates() and (left_s := until - time.monotonic()) > 0:
                self._hear(left_s)
        finally:
            self._end_everything()
        return Exit.RETRY_ELSEWHERE if self._exit_code is None else self._exit_code

    def _hear(self, patience_s: float | None) -> None:
        """Deals with what comes next, from whomever it comes."""
        for key, _ in self._selector.select(patience_s):
            key.data()

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
        """A script may, whatever its spec says of checkpoints."""
        return bool(self.config.checkpoint.tiers) or self.config.trainer.kind == "script"

    def _start_agent(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        descriptors = {"SUPERVISOR_FD": theirs.fileno(), "HEARTBEAT_FD": self._page}
        environment = self._companion_environment() | {f"HEADWAY_{name}": str(fd) for name, fd in descriptors.items()}
        environment["HEADWAY_INCARNATION"] = str(self._agent.restarts)
        argv = [sys.executable, "-m", self._agent.module]
        self._agent.pid = spawn(argv, environment, descriptors.values(), self._log("agent"), self._log("agent"))
        theirs.close()
        self._to_agent, self._from_agent = ours, b""
        self._selector.register(ours, selectors.EVENT_READ, partial(self._read_agent, ours))
        workers = [vars(worker) for worker in self._workers.values()]
        stopping_s = None if self._stopping_since is None else time.monotonic() - self._stopping_since
        facts = {"workers": workers, "events": self._repeated(), "stopping_s": stopping_s, "port": self._port()}
        self._tell({"what": "hello", **facts})

    def _repeated(self) -> list[dict[str, Any]]:
        """The newest of what workers have said, as far as a hello has room."""
        events: list[dict[str, Any]] = []
        room = REPEATED_BYTES
        for event in reversed(self._said):
            if (room := room - len(json.dumps(event))) < 0:
                break
            events.insert(0, event)
        return events

    def _start_coordinator(self) -> None:
        assert self._coordinator is not None  # noqa: S101  only called on the node that hosts it
        argv = [sys.executable, "-m", self._coordinator.module]
        self._coordinator.pid = spawn(argv, self._companion_environment(), (), self._log("coordinator"), self._log("coordinator"))

    def _start_keeper(self) -> None:
        """A keeper under the same name as before: workers find it there again, with nothing of what the one before has held."""
        assert self._keeper is not None  # noqa: S101  only called where there is one
        ours, theirs = socket.socketpair()
        options = {"socket": self._keeper_name, "parent-fd": theirs.fileno(), "host": self.host}
        files = {"address-file": self.directory.keeper(self.node), "secret-file": self.directory.secret_file}
        marked = {} if self.config.peer_dscp is None else {"dscp": self.config.peer_dscp}
        argv = [sys.executable, "-m", self._keeper.module]
        argv += [f"--{name}={value}" for name, value in {**options, **files, **marked}.items()]
        self._keeper.pid = spawn(argv, self._companion_environment(), [theirs.fileno()], self._log("keeper"), self._log("keeper"))
        theirs.close()
        self._to_keeper = ours  # its end is ours: the keeper does not outlive this process

    def _log(self, name: str) -> Path:
        return self.directory.attempt_directory / "logs" / f"{name}-{self.node}.log"

    # --- the agent asks -----------------------------------------------------------------------------------------------

    def _read_agent(self, agent: socket.socket) -> None:
        if agent is not self._to_agent:  # its end was noticed in the same round
            return
        try:
            data = agent.recv(EVENT_BYTES)
        except ConnectionResetError:  # it ended with something of ours unread
            data = b""
        if not data:  # it is gone: SIGCHLD says so too, and starts the next one
            self._selector.unregister(self._to_agent)
            self._to_agent.close()
            return
        *lines, self._from_agent = (self._from_agent + data).split(b"\n")
        asked: dict[str, Callable[[dict[str, Any]], None]] = {
            "spawn": self._spawn,
            "standby": self._standby,
            "kill": self._kill,
            "dump": self._dump,
            "listen": self._listen,
            "coordinate": self._coordinate,
            "exit": self._exit,
        }
        for line in lines:
            message = json.loads(line)
            try:
                asked[message["what"]](message)
            except OSError as error:  # no process, no disk, no address: not a node to go on with
                print(f"{message['what']}: {error}", file=sys.stderr, flush=True)
                self._exit_code = Exit.RETRY_ELSEWHERE

    def _spawn(self, message: dict[str, Any]) -> None:
        """Makes a generation's workers, of standbys where they are ready. Rank 0 of the run gets the listening rendezvous socket."""
        self._workers.clear()
        self._said.clear()
        self._clear_away()
        orders = {order["local_rank"]: order for order in message["workers"]}
        ready = {local_rank for local_rank, standby in self._standbys.items() if standby.ready}
        taken, cold = self._hand_over(orders)
        for local_rank, order in orders.items():
            pid = taken.get(local_rank) or self._fork(order)
            is_warm = local_rank in taken and local_rank in ready
            self._workers[pid] = Worker(order["rank"], local_rank, message["generation"], pid, is_warm)
        self._out_of_memory = cgroup.out_of_memory_kills()
        self._tell({"what": "spawned", "workers": [vars(worker) for worker in self._workers.values()], "cold": cold})
        if any(order["hosts_store"] for order in orders.values()):
            self._close_rendezvous()
            self._listen({})

    def _hand_over(self, orders: dict[int, dict[str, Any]]) -> tuple[dict[int, int], dict[int, str]]:
        """Local rank -> pid of the standbys that have become workers, and why the others have not; those are ended."""
        given: list[tuple[warm.Standby, warm.Order]] = []
        logs: list[int] = []
        for local_rank in list(self._standbys):
            standby = self._unpark(local_rank)
            if (order := orders.get(local_rank)) is None:
                kill_group(standby.pid, signal.SIGKILL)
                continue
            environment = {**self._worker_environment(), **order["environment"]}
            out, err = (open_log(Path(order[name])) if order[name] else os.dup(fd) for name, fd in (("stdout", 1), ("stderr", 2)))
            logs += [out, err]
            added = frozenset(order["environment"])
            given.append((standby, warm.Order(local_rank, order["argv"], environment, self._descriptors(order), out, err, added)))
        taken = warm.hand_over(given)
        for log in logs:
            os.close(log)
        return taken

    def _fork(self, order: dict[str, Any]) -> int:
        """A worker from nothing; its pid."""
        descriptors = self._descriptors(order)
        environment = {
            **self._worker_environment(),
            **order["environment"],
            **{name: str(fd) for name, fd in descriptors.items()},
        }
        stdout, stderr = (Path(order[name]) if order[name] else None for name in ("stdout", "stderr"))
        return spawn(order["argv"], environment, descriptors.values(), stdout, stderr, order["cpus"])

    def _worker_environment(self) -> dict[str, str]:
        return {**os.environ, **self._keeper_environment()}

    def _descriptors(self, order: dict[str, Any]) -> dict[str, int]:
        descriptors = {"HEADWAY_HEARTBEAT_FD": self._page, "HEADWAY_EVENTS_FD": self._worker_end.fileno()}
        if order["hosts_store"] and self._rendezvous is not None:
            descriptors["HEADWAY_STORE_FD"] = self._rendezvous.fileno()
        return descriptors

    def _standby(self, message: dict[str, Any]) -> None:
        """Starts a standby for each named local rank that has none."""
        missing = [order for order in message["workers"] if order["local_rank"] not in self._standbys]
        for order in missing:
            environment = {**self._worker_environment(), **order["environment"]}
            try:
                place = (self._companion_environment(), message["modules"], order["cpus"])
                started = warm.start_standby(order["argv"], environment, *place)
            except OSError as error:  # one can do without
                print(f"no standby: {error}", file=sys.stderr, flush=True)
                return
            self._keep_standby(order["local_rank"], started)

    def _start_first(self) -> None:
        """Has the first workers begin to import while this node still meets the others; a launcher may have begun even sooner."""
        passed_on = os.environ.pop(warm.PASSED_ON, None)
        environment, given = self._worker_environment(), Torchrun.of(self.config)
        if passed_on is not None:
            for local_rank, standby in warm.take_on(passed_on, environment).items():
                self._keep_standby(local_rank, standby)
            return
        cpus = json.loads(os.environ.get("HEADWAY_CPUS", "{}"))
        for local_rank in range(self.config.procs_per_slot):
            argv = worker_argv(self.config, local_rank, os.environ)
            if not is_ours(argv) or (given is not None and given.virtual_local_rank):
                return
            place = (self._companion_environment(), warm.ALWAYS, cpus.get(str(local_rank)))
            try:
                self._keep_standby(local_rank, warm.start_standby(argv, environment, *place, first=True))
            except OSError as error:  # one can do without
                print(f"no standby: {error}", file=sys.stderr, flush=True)
                return

    def _keep_standby(self, local_rank: int, standby: warm.Standby) -> None:
        self._standbys[local_rank] = standby
        self._selector.register(standby.orders, selectors.EVENT_READ, partial(self._hear_standby, standby))

    def _hear_standby(self, standby: warm.Standby) -> None:
        if not standby.hear():  # its end comes as SIGCHLD too
            self._selector.unregister(standby.orders)
        elif standby.ready and not standby.first and all(each.ready for each in self._standbys.values()):
            self._tell({"what": "standbys", "ready": sorted(self._standbys)})

    def _unpark(self, local_rank: int) -> warm.Standby:
        """Takes a standby out of those that wait."""
        standby = self._standbys.pop(local_rank)
        with contextlib.suppress(KeyError):  # it has ended, and was seen to
            self._selector.unregister(standby.orders)
        return standby

    def _kill(self, message: dict[str, Any]) -> None:
        self._read_events()
        self._reap()  # what has ended by itself was not asked to
        meant = [worker for worker in self._living() if worker.generation <= message["generation"]]
        if message["signal"] == signal.SIGKILL:
            self._shared_memory |= leftovers.shared_memory_of(worker.pid for worker in meant)
        number = message["signal"]
        if number == signal.SIGTERM and "signals" in self.config.trainer.options:  # torchrun hands on the signal that it got
            number = self._stopped_by
        for worker in meant:
            worker.asked = True
            kill_group(worker.pid, signal.Signals(number))

    def _living(self) -> list[Worker]:
        return [worker for worker in self._workers.values() if worker.ended is None]

    def _dump(self, message: dict[str, Any]) -> None:
        """Has the ranks' processes write their stacks, where they handle the signal for that."""
        for worker in self._living():
            if worker.rank in message["ranks"]:
                signal_main_thread(worker.pid, STACKS_SIGNAL)

    def _listen(self, _: dict[str, Any]) -> None:
        self._open_rendezvous()
        self._tell({"what": "listening", "port": self._port()})

    def _open_rendezvous(self) -> None:
        """A listening socket for the store of a generation, held open so that this node can be the one with rank 0 at once."""
        if self._rendezvous is not None:
            return
        try:
            self._rendezvous = socket.create_server((self.host, 0), backlog=1024)
        except OSError as error:  # the name is not this machine's yet: the agent asks again
            print(f"cannot listen on {self.host}: {error}", file=sys.stderr, flush=True)

    def _close_rendezvous(self) -> None:
        if self._rendezvous is not None:
            self._rendezvous.close()
            self._rendezvous = None

    def _port(self) -> int | None:
        return None if self._rendezvous is None else int(self._rendezvous.getsockname()[1])

    def _coordinates(self) -> bool:
        return self._coordinator is not None and self._coordinator.pid != 0

    def _coordinate(self, _: dict[str, Any]) -> None:
        """Starts a coordinator here, unless one runs."""
        if self._coordinates():
            return
        if self._coordinator is None:
            self._coordinator = Companion("headway.runner.coordinator.main")
        self._start_coordinator()

    def _exit(self, message: dict[str, Any]) -> None:
        self._exit_code = message["code"]

    # --- the agent is told --------------------------------------------------------------------------------------------

    def _tell(self, message: dict[str, Any]) -> None:
        line = json.dumps(message).encode() + b"\n"
        try:
            whole = self._to_agent.send(line, socket.MSG_DONTWAIT) == len(line)
        except BlockingIOError:
            whole = False
        except OSError:  # nobody is there just now; the next agent's hello has it all
            return
        if not whole:  # it does not read; a new one will, and its hello has it all
            kill_group(self._agent.pid, signal.SIGKILL)

    def _read_events(self) -> None:
        while True:
            try:
                data = self._events.recv(EVENT_BYTES, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return
            try:
                event = json.loads(data)
            except ValueError:  # longer than EVENT_BYTES, so cut: it costs that event, not the node
                print(f"an event that cannot be read: {data[:80]!r}", file=sys.stderr, flush=True)
                continue
            self._said.append(event)
            self._tell({"what": "event", "event": event})

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
        """A scheduler's and a person's, or those that torchrun's --signals-to-handle names; what nohup has ignored stays ignored."""
        names = self.config.trainer.options.get("signals", ("SIGTERM", "SIGINT"))
        return {number for name in names if signal.getsignal(number := getattr(signal, name)) is not signal.SIG_IGN}

    def _read_signals(self) -> None:
        numbers = set(os.read(self._signals, 4096))
        if asked := numbers & self._stop_signals:
            self._stopping_since = self._stopping_since or time.monotonic()
            self._stopped_by = min(asked)
            self._tell({"what": "signal"})
        self._read_events()  # what a worker said before it ended comes before its end
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
                self._agent_ended(status)
            elif self._coordinator is not None and pid == self._coordinator.pid:
                self._coordinator_ended(status)
            elif self._keeper is not None and pid == self._keeper.pid:
                self._keeper_ended(self._keeper, status)
            elif pid in self._workers:
                self._worker_ended(self._workers[pid], status)
            else:
                self._standby_ended(pid)

    def _worker_ended(self, worker: Worker, status: int) -> None:
        worker.ended, worker.code = describe_status(status), os.waitstatus_to_exitcode(status)
        worker.oom = worker.code != 0 and not worker.asked and cgroup.out_of_memory_kills() > self._out_of_memory
        self._tell({"what": "ended", "worker": vars(worker)})
        strays = self._strays()  # its data loaders have come to this process
        self._shared_memory |= leftovers.shared_memory_of(strays)
        kill_group(worker.pid, signal.SIGKILL)

    def _standby_ended(self, pid: int) -> None:
        for local_rank, standby in list(self._standbys.items()):
            if standby.pid == pid:
                self._unpark(local_rank).orders.close()

    def _agent_ended(self, status: int) -> None:
        while self._to_agent.fileno() >= 0:  # what it asked for last counts, and it asks for nothing more
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
        if os.waitstatus_to_exitcode(status) == 0:  # it has decided, or another one has taken over
            return
        given_up = self._give_up(self._coordinator, status)
        if not self.hosts_coordinator and len(self._coordinator.deaths) > MAX_TAKEOVERS:
            self._coordinator = None
        elif given_up:
            self._exit_code = Exit.RETRY_ELSEWHERE
        else:
            self._start_coordinator()

    def _keeper_ended(self, keeper: Companion, status: int) -> None:
        """Captures in its memory are lost; workers notice at their next save, and go on with a new one."""
        self._to_keeper.close()
        if self._give_up(keeper, status):
            self._exit_code = Exit.RETRY_ELSEWHERE
        else:
            self._start_keeper()

    def _give_up(self, companion: Companion, status: int) -> bool:
        companion.died()
        print(f"{companion.module}: {describe_status(status)}, restart {companion.restarts}", file=sys.stderr, flush=True)
        return len(companion.deaths) > MAX_RESTARTS

    def _strays(self) -> list[int]:
        """What earlier workers left behind; orphans come to this process (`become_subreaper`)."""
        companions = (self._agent, self._coordinator, self._keeper)
        known = {*(companion.pid for companion in companions if companion is not None), *self._workers}
        known |= {standby.pid for standby in self._standbys.values()}
        return [pid for pid in children() if pid not in known]

    def _clear_away(self) -> None:
        """Ends what earlier workers left behind, and reaps it: what it held, a device or memory, is free then."""
        until = time.monotonic() + STRAYS_S
        while (strays := self._strays()) and time.monotonic() < until:
            self._shared_memory |= leftovers.shared_memory_of(strays)
            for pid in strays:
                os.kill(pid, signal.SIGKILL)
            self._reap()
            if self._strays():
                time.sleep(REAP_S)
        leftovers.remove_unused(self._shared_memory)
        self._shared_memory.clear()

    def _end_everything(self) -> None:
        """Kills and reaps every process below this one, the children of killed ones too, within PARTING_S."""
        until = time.monotonic() + PARTING_S
        self._shared_memory |= leftovers.shared_memory_of(worker.pid for worker in self._living())
        while (left := children()) and time.monotonic() < until:
            for pid in left:
                os.kill(pid, signal.SIGKILL)
            while children() and os.waitpid(-1, os.WNOHANG)[0]:
                continue
            time.sleep(REAP_S)
        leftovers.remove_unused(self._shared_memory)
