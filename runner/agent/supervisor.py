"""Supervises a node: forks the workers and holds their heartbeat page. It must not die; the agent may restart.

Small and single-threaded on purpose. It decides nothing: it executes the agent's requests and reports what happens; while there is no
agent, it keeps its reports for the next one. In the same way it keeps the node's keeper running, and where it is asked to the coordinator.
This module has the order of events; its parts are `workers.py`, `standby_pool.py`, `rendezvous.py` (store), `agent_link.py` and
`daemons.py` (agent, coordinator, keeper), `strays.py` and `stop_signals.py`.
"""

import json
import mmap
import os
import secrets
import selectors
import signal
import socket
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from headway.runner.agent.agent_link import AgentLink
from headway.runner.agent.daemons import CoordinatorDaemon, KeeperDaemon
from headway.runner.agent.place import NodeExit, Place
from headway.runner.agent.processes import kill_group, spawn
from headway.runner.agent.protocol import (
    Coordinate,
    Dump,
    ExitNode,
    KillWorkers,
    Listen,
    Listening,
    NodeState,
    PrintLine,
    RankOrder,
    Request,
    Respawn,
    Spawn,
    Spawned,
    StartStandbys,
    StopSignal,
    WorkerProcess,
)
from headway.runner.agent.rendezvous import Rendezvous
from headway.runner.agent.standby_pool import StandbyPool
from headway.runner.agent.stop_signals import StopSignals
from headway.runner.agent.strays import Strays
from headway.runner.agent.workers import Workers
from headway.runner.alive import Process
from headway.runner.contract import Exit, HeartbeatPage, RunConfig, RunDirectory
from headway.runner.posix import write_atomic

# How long the coordinator may take to end once the agent has.
PARTING_S = 10.0


class Supervisor:
    """`serve()` runs the node until its agent requests the exit, and returns the exit code."""

    def __init__(
        self,
        config: RunConfig,
        directory: RunDirectory,
        node: int,
        host: str,
        *,
        hosts_coordinator: bool,
        address: str | None = None,
    ) -> None:
        """Make the parts; no process is started yet. `address` is where the node listens for others, if not on its name."""
        self._config, self._hosts_coordinator = config, hosts_coordinator
        # Without a name: nothing is left behind, whichever process dies.
        page = os.memfd_create("headway-heartbeat")
        os.ftruncate(page, HeartbeatPage.bytes_for(config.procs_per_slot))
        events, self._worker_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        # A script may save with or without checkpoints in its spec. No other process can take the keeper's name before it does.
        may_save = bool(config.checkpoint.tiers) or config.trainer.kind == "script"
        keeper = f"headway-keeper-{secrets.token_hex(16)}" if may_save else None
        self._place = Place(config, directory, node, host, address or host, page, self._worker_end.fileno(), keeper)
        self._exit = NodeExit()
        self._selector = selectors.DefaultSelector()
        self._agent = AgentLink(self._place, self._selector, self._exit, self._execute)
        self._coordinator = CoordinatorDaemon(self._place, self._exit, is_host=hosts_coordinator)
        self._keeper = KeeperDaemon(self._place, self._exit)
        self._rendezvous = Rendezvous(self._place, self._selector, self._exit)
        self._standbys = StandbyPool(self._place, self._selector, self._agent)
        heartbeats = HeartbeatPage(memoryview(mmap.mmap(page, 0)))
        self._workers = Workers(self._agent, heartbeats, events, is_script=config.trainer.kind == "script")
        self._strays = Strays(self._started)
        self._signals = StopSignals(config)

    def serve(self) -> int:
        self._strays.adopt()
        self._rendezvous.take_on_socket()
        self._selector.register(self._workers.events, selectors.EVENT_READ, self._workers.read_events)
        self._selector.register(self._signals.install(), selectors.EVENT_READ, self._read_signals)
        self._publish()
        self._standbys.start_first(self._rendezvous)
        if self._hosts_coordinator:
            self._coordinator.start()
        self._keeper.start()
        self._rendezvous.open()
        self._start_agent()
        try:
            while self._exit.code is None:
                self._hear(self._workers.watch())
            until = time.monotonic() + PARTING_S
            while self._coordinator.pid and (left_s := until - time.monotonic()) > 0:
                self._hear(left_s)
        finally:
            self._strays.note_shared_memory(worker.pid for worker in self._workers.living())
            self._strays.end_everything(PARTING_S, completed=self._exit.code == Exit.COMPLETED)
            self._close()
        return Exit.RETRY_ELSEWHERE if self._exit.code is None else self._exit.code

    def _hear(self, patience_s: float | None) -> None:
        """Handle the next events of any process."""
        for key, _ in self._selector.select(patience_s):
            # An event handled before it may have closed this one: a standby exits while the supervisor replaces the standbys by workers.
            if self._selector.get_map().get(key.fd) is key:
                key.data()
        if self._agent.status is not None:
            status, self._agent.status = self._agent.status, None
            self._agent_ended(status)

    def _publish(self) -> None:
        place = self._place
        facts = {"node": place.node, "host": place.host, "pid": os.getpid(), "procs": self._config.procs_per_slot}
        process = {"process": vars(Process.own())}
        record = {"schema": "headway.node/1", **facts, **process, "heartbeat": f"/proc/{os.getpid()}/fd/{place.page}"}
        write_atomic(place.directory.node(place.node), json.dumps(record).encode() + b"\n")

    # --- the agent and its requests -----------------------------------------------------------------------------------

    def _start_agent(self) -> None:
        self._agent.start()
        workers, events = list(self._workers.by_pid.values()), self._agent.newest_events()
        self._agent.report(NodeState(workers, events, self._signals.since_s(), self._rendezvous.port()))

    def _agent_ended(self, status: int) -> None:
        self._agent.finish()
        if self._exit.code is not None:
            return
        if self._agent.daemon.died(status):
            self._exit.retry_elsewhere()
            return
        self._start_agent()

    def _execute(self, request: Request) -> None:
        match request:
            case Spawn():
                self._spawn(request)
            case Respawn():
                self._respawn(request)
            case StartStandbys(workers, modules):
                self._standbys.start(workers, modules)
            case KillWorkers():
                self._kill(request)
            case Dump(ranks):
                self._workers.dump(ranks)
            case Listen():
                self._listen()
            case PrintLine(text):
                print(f"headway: {text}", file=sys.stderr, flush=True)
            case Coordinate():
                self._coordinator.start()
            case ExitNode(code):
                self._exit.code = code

    def _spawn(self, request: Spawn) -> None:
        """Start a generation's workers, from standbys where they are ready. The node of rank 0 serves their store."""
        self._workers.forget()
        self._strays.clear_away(self._reap)
        self._strays.begin()
        if serves := any(order.hosts_store for order in request.workers):
            self._rendezvous.serve()
        orders = {order.local_rank: order for order in request.workers}
        self._standbys.end_others(orders)
        cold = self._start(request.generation, orders)
        self._workers.begin()
        self._agent.report(Spawned(list(self._workers.by_pid.values()), cold))
        if serves:
            self._listen()

    def _respawn(self, request: Respawn) -> None:
        """Start some ranks of the generation again, next to those that run."""
        orders = {order.local_rank: order for order in request.workers}
        if not self._workers.by_pid:
            self._workers.begin()
        self._workers.forget_ended(orders)
        cold = self._start(request.generation, orders)
        self._agent.report(Spawned(list(self._workers.by_pid.values()), cold))

    def _start(self, generation: int, orders: Mapping[int, RankOrder]) -> dict[int, str]:
        """Start the workers, from standbys where they are ready. Return why the others' were not used, by local rank."""
        ready = self._standbys.ready()
        taken, cold = self._standbys.hand_over(orders)
        for local_rank, order in orders.items():
            pid = taken.get(local_rank) or self._fork(order)
            is_warm = local_rank in taken and local_rank in ready
            self._workers.by_pid[pid] = WorkerProcess(order.rank, local_rank, generation, pid, is_warm)
        return cold

    def _fork(self, order: RankOrder) -> int:
        """Start a worker without a standby. Return its pid."""
        descriptors = self._place.worker_descriptors()
        named = {name: str(fd) for name, fd in descriptors.items()}
        environment = {**self._place.worker_environment(), **order.environment, **named}
        stdout, stderr = (Path(path) if path else None for path in (order.stdout, order.stderr))
        stdin = self._place.passes_stdin()
        return spawn(order.argv, environment, descriptors.values(), stdout, stderr, order.cpus, stdin=stdin)

    def _kill(self, request: KillWorkers) -> None:
        self._workers.read_events()
        # What has ended by itself was not asked to.
        self._reap()
        ranks = request.ranks
        meant = [
            worker
            for worker in self._workers.living()
            if worker.generation <= request.generation and (ranks is None or worker.rank in ranks)
        ]
        if request.signal == signal.SIGKILL:
            self._strays.note_shared_memory(worker.pid for worker in meant)
        number = request.signal
        if number == signal.SIGTERM and "signals" in self._config.trainer.options:
            # Torchrun hands on the signal that it got.
            number = self._signals.number
        self._workers.kill(meant, number)

    def _listen(self) -> None:
        self._rendezvous.open()
        self._agent.report(Listening(self._rendezvous.port()))

    # --- signals, and the ends of processes ---------------------------------------------------------------------------

    def _read_signals(self) -> None:
        if self._signals.read():
            self._agent.report(StopSignal())
        # The events of a worker come before its end.
        self._workers.read_events()
        self._reap()

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self._agent.daemon.pid:
                # Orders reap too, and an agent's last order may follow the one that is being executed.
                self._agent.status = status
            elif pid == self._coordinator.pid:
                self._coordinator.ended(status)
            elif pid == self._keeper.pid:
                self._keeper.ended(status)
            elif pid in self._workers.by_pid:
                self._worker_ended(self._workers.by_pid[pid], status)
            else:
                self._standbys.ended(pid)

    def _worker_ended(self, worker: WorkerProcess, status: int) -> None:
        self._workers.ended(worker, status)
        # Its data loaders have come to this process.
        if worker.code == 0:
            self._strays.leave(worker.pid, self._workers.by_pid.keys() - {worker.pid})
            return
        self._strays.note_shared_memory(self._strays.found())
        kill_group(worker.pid, signal.SIGKILL)

    def _started(self) -> set[int]:
        """Return the living processes that this one has started."""
        daemons = {self._agent.daemon.pid, self._coordinator.pid, self._keeper.pid, self._rendezvous.pid}
        return daemons | self._workers.by_pid.keys() | self._standbys.pids()

    def _close(self) -> None:
        """Close all sockets: with PYTHONWARNINGS, Python would warn on the user's terminal of each that is open at its end."""
        self._selector.close()
        for part in (self._agent, self._keeper, self._rendezvous, self._standbys, self._workers.events, self._worker_end):
            part.close()
