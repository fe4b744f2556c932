"""Runs a node's agent: finds the coordinator, has the supervisor start and end workers, and reports how they end.

It may die at any moment: everything it knows comes again from the supervisor's first message and the coordinator's orders. It repeats all
reports after the next join, so that nothing is lost with a connection. This module has the order of events; the parts are
`coordinator_search.py`, `reports.py`, `rank_processes.py`, `inspection.py` and `standby_requests.py`, on one `agent_state.py`.
"""

import asyncio
import logging
import mmap
import os
import signal
import socket
import time
from collections.abc import Mapping
from pathlib import Path

from headway.runner import log
from headway.runner.agent.agent_state import AgentState
from headway.runner.agent.coordinator_search import CoordinatorSearch
from headway.runner.agent.flight import Recorder
from headway.runner.agent.inspection import Inspection
from headway.runner.agent.protocol import (
    ExitNode,
    Listen,
    Listening,
    NodeState,
    Request,
    Spawned,
    StandbyReport,
    StopSignal,
    UndeadReport,
    WorkerEnded,
    WorkerEvent,
    WorkerProcess,
    encode,
    report_of,
)
from headway.runner.agent.rank_processes import RankProcesses
from headway.runner.agent.reports import Reports
from headway.runner.agent.standby_requests import StandbyRequests
from headway.runner.contract import Exit, HeartbeatPage, Members, RunConfig, RunDirectory, from_json
from headway.runner.contract.orders import (
    ORDERS,
    Assign,
    ChangeMembers,
    EndRanks,
    Order,
    ProbeRanks,
    RestartRanks,
    Save,
    StartRanks,
    Stop,
    Survey,
    TakeSlot,
    order_of,
)
from headway.runner.messages import MAX_LINE_BYTES, Link, Message

_log = logging.getLogger(__name__)

LISTEN_AGAIN_S = 5.0
# Of the grace that a scheduler gives: kept for ending by ourselves when no coordinator has decided.
LEAVING_S = 1.0


class Agent:
    """`run` serves until the supervisor is gone or has its exit code."""

    def __init__(self, state: AgentState, incarnation: int) -> None:
        self._state = state
        self._recorder = Recorder(state.directory, os.environ)
        self._reports = Reports(state)
        self._search = CoordinatorSearch(state, incarnation, self._ask, self._exit)
        self._ranks = RankProcesses(state, self._reports, self._recorder, self._ask)
        self._inspection = Inspection(state, self._reports, self._recorder, self._ask)
        self._standbys = StandbyRequests(state, self._recorder, self._ask)
        # When the supervisor was last asked to open the rendezvous socket.
        self._listened = 0.0

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

    async def _meet(self) -> None:
        """Stay connected with the coordinator, whichever node it runs on. Workers continue meanwhile."""
        while (link := await self._search.find(self._obey)) is not None:
            self._reports.join(link)
            await self._state.cut.wait()
            self._reports.link = None
            link.close()
            if self._state.over.is_set() or self._search.is_decided():
                return

    async def _keep_beating(self) -> None:
        interval_s = self._state.beat_interval_s()
        while True:
            self._reports.beat()
            self._standbys.request_if_due()
            if self._state.port is None and time.monotonic() - self._listened > LISTEN_AGAIN_S:
                self._listened = time.monotonic()
                self._ask(Listen())
            await asyncio.sleep(interval_s)

    def _exit(self, code: int) -> None:
        self._state.over.set()
        self._state.cut.set()
        self._recorder.close(self._state.workers)
        self._ask(ExitNode(code))

    # --- the supervisor -----------------------------------------------------------------------------------------------

    def _ask(self, request: Request) -> None:
        self._to_supervisor.write(encode(request))

    def _greet(self, hello: NodeState) -> None:
        state = self._state
        state.workers = {worker.rank: worker for worker in hello.workers}
        state.generation = max((worker.generation for worker in state.workers.values()), default=0)
        state.events.extend(hello.events)
        state.port = hello.port
        if hello.stopping_s is not None:
            self._asked_to_stop(time.monotonic() - hello.stopping_s)

    async def _hear_supervisor(self) -> None:
        state, reports = self._state, self._reports
        while line := await self._from_supervisor.readline():
            match report_of(line):
                case Listening(port):
                    state.port = port
                    reports.beat()
                case StandbyReport(ready):
                    if state.slot == 0:
                        reports.evidence({"what": "note", "kind": "standby", "ready": ready})
                case Spawned(workers, cold):
                    self._spawned(workers, cold)
                case WorkerEvent(event):
                    state.events.append(event)
                    reports.event(event)
                case WorkerEnded(worker):
                    state.workers[worker.rank] = worker
                    reports.end(worker)
                case UndeadReport(undead):
                    ranks = [{"rank": each.rank, "state": each.state} for each in undead]
                    reports.evidence({"what": "undead", "workers": ranks})
                case StopSignal():
                    self._asked_to_stop(time.monotonic())

    def _spawned(self, workers: list[WorkerProcess], cold: Mapping[int, str]) -> None:
        self._state.workers = {worker.rank: worker for worker in workers}
        ranks = sorted(worker.rank for worker in workers if worker.warm)
        if (ranks or cold) and self._state.slot == 0:
            # Every node of a job does the same, so one of them reports it.
            self._reports.evidence({"what": "note", "kind": "warm", "ranks": ranks, "cold": sorted(set(cold.values()))})

    def _asked_to_stop(self, since: float) -> None:
        """By the scheduler or a person. The coordinator decides; where none does, this node leaves before it is killed."""
        if self._state.stopping_since is None:
            self._state.stopping_since = since
            left_s = since + self._state.config.grace_s - LEAVING_S - time.monotonic()
            asyncio.get_running_loop().call_later(max(left_s, 0), self._leave)
        self._reports.stopping(self._state.stopping_since)

    def _leave(self) -> None:
        if not self._state.over.is_set():
            _log.warning("the grace period is over and no coordinator has decided")
            self._exit(Exit.PREEMPTED)

    # --- the coordinator's orders -------------------------------------------------------------------------------------

    def _obey(self, _: Link, message: Message) -> None:
        log.in_generation(message.generation)
        facts = {name: value for name, value in message.body.items() if isinstance(value, str | int | float)}
        level = logging.DEBUG if message.kind == "probe" else logging.INFO
        _log.log(level, "order to %s", message.kind, extra=log.fields(facts))
        if message.kind not in ORDERS:
            return
        match order_of(message.kind, message.body):
            case Assign(slot):
                self._state.slot = slot
                if slot is None:
                    self._idle()
            case TakeSlot() as order:
                self._take(message.generation, order)
            case StartRanks() as order:
                self._start(message.generation, order)
            case Save():
                for local_rank in range(self._state.config.procs_per_slot):
                    self._state.page.write(local_rank, save_request=1)
            case Survey():
                self._state.spin(self._inspection.survey())
            case ProbeRanks(ranks):
                self._state.spin(self._inspection.probe(ranks))
            case Stop() as order:
                self._ranks.stop(message.generation, order)
                if order.exit_code is not None:
                    self._exit(order.exit_code)
            case order:
                self._obey_on_replicas(message.generation, order)

    def _start(self, generation: int, order: StartRanks) -> None:
        """Start this node's part of a generation; a node without a slot in it is a spare."""
        if generation <= self._state.generation:
            return
        self._state.enter(generation, order)
        self._standbys.begin()
        if self._state.slot is None:
            self._idle()
        else:
            self._ranks.start(self._state.slot, order)

    def _take(self, generation: int, order: TakeSlot) -> None:
        """Enter a generation that runs, in the place of a lost node; this node's ranks are started later."""
        if generation >= self._state.generation:
            self._state.enter(generation, order)
            self._standbys.begin()
            if self._state.slot is not None:
                self._ranks.expect(self._state.slot)

    def _obey_on_replicas(self, generation: int, order: Order) -> None:
        """Obey an order on replica groups of which one is lost; those on another generation come too late."""
        if generation != self._state.generation:
            return
        match order:
            case ChangeMembers(epoch, replicas):
                for local_rank in range(self._state.config.procs_per_slot):
                    self._state.page.write(local_rank, members=Members(epoch, replicas).word)
            case EndRanks(ranks):
                self._ranks.end(ranks)
            case RestartRanks(ranks, start):
                self._ranks.restart(ranks, start)
                self._standbys.request_again()

    def _idle(self) -> None:
        """End the workers of a node without a slot, which were replaced elsewhere."""
        if self._state.running():
            self._ranks.kill(self._state.generation)
        self._standbys.request_if_due()


def main() -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        # A scheduler signals every process of a step; the supervisor decides.
        signal.signal(number, signal.SIG_IGN)
    environment = {
        name: os.environ[f"HEADWAY_{name}"] for name in ("RUN_JSON", "ATTEMPT", "NODE", "HOST", "ADDRESS", "INCARNATION")
    }
    descriptors = {name: int(os.environ[f"HEADWAY_{name}"]) for name in ("SUPERVISOR_FD", "HEARTBEAT_FD")}
    log.configure("agent", node=int(environment["NODE"]))
    run_json = Path(environment["RUN_JSON"])
    config = from_json(RunConfig, run_json.read_text())
    directory = RunDirectory.of(run_json, int(environment["ATTEMPT"]))
    page = HeartbeatPage(memoryview(mmap.mmap(descriptors["HEARTBEAT_FD"], 0)))
    state = AgentState(config, directory, int(environment["NODE"]), environment["HOST"], page, environment["ADDRESS"])
    asyncio.run(Agent(state, int(environment["INCARNATION"])).run(descriptors["SUPERVISOR_FD"]))


if __name__ == "__main__":
    main()
