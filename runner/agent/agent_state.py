"""The state of an agent that its parts share: the node, its generation and its workers."""

import asyncio
import time
from collections import deque
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any

from headway.runner.agent.pauses import Pauses
from headway.runner.agent.protocol import EVENTS_KEPT, WorkerProcess
from headway.runner.contract import HeartbeatPage, RunConfig, RunDirectory, slot_of
from headway.runner.contract.orders import StartRanks
from headway.runner.coordinator.vitals import beat_interval_s


@dataclass
class AgentState:
    """`slot` is None on a spare; `generation` is the newest that this node knows of; `workers` has its workers by rank, `events` their
    newest events; `port` is that of the open rendezvous socket. Times are monotonic."""

    config: RunConfig
    directory: RunDirectory
    node: int
    host: str
    page: HeartbeatPage
    # Where it listens for other nodes; empty: on its name.
    address: str = ""
    slot: int | None = None
    generation: int = 0
    port: int | None = None
    workers: dict[int, WorkerProcess] = field(default_factory=dict)
    events: deque[dict[str, Any]] = field(default_factory=lambda: deque(maxlen=EVENTS_KEPT))
    start_order: StartRanks | None = None
    # When this generation began here, as far as this agent has seen it.
    started: float = field(default_factory=time.monotonic)
    stopping_since: float | None = None
    # A coordinator, at least once.
    has_met: bool = False
    pauses: Pauses = field(default_factory=lambda: Pauses(time.monotonic()))
    # The node's exit was requested, and the connection to the coordinator has ended.
    over: asyncio.Event = field(default_factory=asyncio.Event)
    cut: asyncio.Event = field(default_factory=asyncio.Event)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    def enter(self, generation: int, order: StartRanks) -> None:
        """Enter a new generation, on the slot that this node has in it."""
        self.generation, self.start_order, self.started = generation, order, time.monotonic()
        self.slot = slot_of(self.node, order.slots, dict(order.moved))

    def running(self) -> list[WorkerProcess]:
        return [worker for worker in self.workers.values() if worker.ended is None]

    def beat_interval_s(self) -> float:
        return beat_interval_s(self.config.slots + self.config.spares)

    def note_running(self) -> None:
        """Note that this process runs: it may have been stopped until now. Its beats are what it does most often."""
        self.pauses.runs(time.monotonic(), self.beat_interval_s())

    def heartbeat_ns(self, rank: int) -> int:
        """Return when the rank's last heartbeat was; 0 before the first."""
        return self.page.read(rank % self.config.procs_per_slot)["monotonic_ns"]

    def spin(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a task in the background; its error goes to this process's log."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
