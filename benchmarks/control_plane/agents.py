"""Simulates all agents of a large job in one process: they implement the agents' protocol and run nothing.

Orders come as JSON lines on stdin, what has happened goes as JSON lines to stdout, with the monotonic clock's seconds, which all processes
of a machine share.
"""

import asyncio
import gc
import json
import os
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headway.runner.contract import RunConfig, RunDirectory, bind, from_json, slot_of
from headway.runner.coordinator.vitals import beat_interval_s
from headway.runner.messages import ChannelError, Link, Message, connect

# Connections that are being made; real agents run on separate machines.
AT_ONCE = 200
RECONNECT_S = 0.1
TICK_S = 0.05
STEP_S = 1.0


class Node:
    """One agent."""

    def __init__(self, fleet: "Fleet", number: int) -> None:
        self._fleet, self.number = fleet, number
        self.link: Link | None = None
        self.slot: int | None = None
        self.generation = 0
        self.port = 20000
        # By rank.
        self.running: dict[int, None] = {}

    async def join(self, host: str, port: int) -> None:
        fleet = self._fleet
        assert fleet.config.run is not None  # noqa: S101  set when the run directory was made
        self.link = await connect(host, port, fleet.secret, fleet.config.run, 0, self._heard, self._lost)
        self._send("join", {"host": f"node{self.number}", "domain": None, "running": list(self.running), "port": self.port})

    def beat(self, words: list[Any]) -> None:
        self._send("beat", {"port": self.port, "ranks": dict.fromkeys(self.running, words)})

    def end(self, ranks: list[int], number: signal.Signals, *, asked: bool) -> None:
        """Reports the end of some of its ranks by a signal."""
        step = self._fleet.words()[0]
        facts = {"code": -number, "how": f"killed by {number.name}", "asked": asked, "step": step, "oom": False}
        for rank in ranks:
            del self.running[rank]
        self._send("exited", {"exits": [{"rank": rank, **facts} for rank in ranks]})

    def _send(self, kind: str, body: Mapping[str, Any]) -> None:
        if self.link is not None:
            self.link.send(kind, self.generation, self.number, body)

    def _lost(self, _: Link, __: str) -> None:
        self.link = None
        self._fleet.disconnected(self)

    def _heard(self, _: Link, message: Message) -> None:
        match message.kind:
            case "assign":
                self.slot = message.body["slot"]
                self._fleet.assigned(self)
            case "start":
                self._start(message.generation, message.body)
            case "stop" if self.running:
                self.end(list(self.running), signal.SIGTERM, asked=True)

    def _start(self, generation: int, body: Mapping[str, Any]) -> None:
        self.generation = generation
        self.slot = slot_of(self.number, body["slots"], dict(body["moved"]))
        procs = self._fleet.config.procs_per_slot
        self.running = {} if self.slot is None else dict.fromkeys(range(self.slot * procs, (self.slot + 1) * procs))
        # The rendezvous has taken the socket: it opens another.
        if self.slot == 0:
            self.port += 1
            self.beat(self._fleet.words())
        self._fleet.started(self)


class Fleet:
    """All nodes of one job. A node that loses its coordinator looks for the next one."""

    def __init__(self, directory: RunDirectory, config: RunConfig) -> None:
        self.config, self._directory, self.secret = config, directory, directory.secret()
        self.nodes = {number: Node(self, number) for number in range(config.slots + config.spares)}
        self._binding = self._bound()
        self._stalled_at: float | None = None
        self._began = time.monotonic()
        self._away: list[Node] = []
        self._connecting: asyncio.Task[None] | None = None
        self._assigned: set[int] = set()
        self._started: set[int] = set()
        self._wrong = 0

    # --- requests of the driver ----------------------------------------------------------------------------------------

    def join(self) -> None:
        self._say("joining")
        for node in self.nodes.values():
            self.disconnected(node)

    def fail(self, number: int) -> None:
        """A rank of the node is killed."""
        node = self.nodes[number]
        self._started.clear()
        self._say("failed")
        node.end([next(iter(node.running))], signal.SIGKILL, asked=False)

    def lose(self, number: int) -> None:
        """The node is gone, and all others wait for it."""
        node = self.nodes.pop(number)
        self._assigned.discard(number)
        self._binding = self._bound(self._binding)
        self._started.clear()
        self._stalled_at = time.monotonic()
        self._say("lost")
        if node.link is not None:
            node.link.close()

    def _bound(self, held: Mapping[int, int] | None = None) -> Mapping[int, int]:
        binding = bind(self.config.slots, dict.fromkeys(self.nodes), held)
        assert binding is not None  # noqa: S101  there are enough nodes
        return binding.nodes

    # --- what has happened --------------------------------------------------------------------------------------------

    def assigned(self, node: Node) -> None:
        self._assigned.add(node.number)
        if len(self._assigned) == len(self.nodes):
            self._say("assigned")

    def started(self, node: Node) -> None:
        expected = None if node.slot is None else self._binding[node.slot]
        self._wrong += node.slot is not None and expected != node.number
        self._started.add(node.number)
        if len(self._started) == len(self.nodes):
            slots = sum(each.slot is not None for each in self.nodes.values())
            self._say("started", generation=node.generation, slots=slots, wrong=self._wrong)
            self._started.clear()
            self._stalled_at = None

    def disconnected(self, node: Node) -> None:
        if node.number not in self.nodes:
            return
        self._assigned.discard(node.number)
        self._away.append(node)
        if self._connecting is None:
            self._connecting = asyncio.get_running_loop().create_task(self._connect())

    async def _connect(self) -> None:
        while self._away:
            address, chosen = self._address(), self._away[:AT_ONCE]
            del self._away[: len(chosen)]
            failed = False
            if address is not None:
                done = await asyncio.gather(*(node.join(*address) for node in chosen), return_exceptions=True)
                again = [node for node, error in zip(chosen, done, strict=True) if isinstance(error, OSError | ChannelError)]
                failed, chosen = bool(again), again
            self._away += chosen if address is None or failed else []
            if address is None or failed:
                await asyncio.sleep(RECONNECT_S)
        self._connecting = None

    def _address(self) -> tuple[str, int] | None:
        try:
            record = json.loads(self._directory.coordinator.read_text())
        except (OSError, ValueError):
            return None
        return record["host"], record["port"]

    def _say(self, what: str, **facts: Any) -> None:
        print(json.dumps({"what": what, "at": time.monotonic(), **facts}), flush=True)

    # --- beats --------------------------------------------------------------------------------------------------------

    def words(self) -> list[Any]:
        """Return the content of every rank's page: step, section, pulse, seconds since the last heartbeat, own seconds."""
        now = time.monotonic()
        step, since_s = divmod((self._stalled_at or now) - self._began, STEP_S)
        return [
            int(step),
            "compute",
            3 * int(step),
            round(since_s + now - (self._stalled_at or now), 3),
            0.8 * step,
        ]

    async def keep_beating(self) -> None:
        """Each node in its turn, so that the coordinator gets messages all the time."""
        interval_s, began, turn = beat_interval_s(len(self.nodes)), time.monotonic(), 0
        numbers = list(self.nodes)
        while True:
            due = int((time.monotonic() - began) / interval_s * len(numbers))
            words = self.words()
            for number in (numbers[each % len(numbers)] for each in range(turn, min(due, turn + len(numbers)))):
                if (node := self.nodes.get(number)) is not None:
                    node.beat(words)
            turn = due
            await asyncio.sleep(TICK_S)


async def serve(run_json: Path, attempt: int) -> None:
    # Real agents have a process each, and little in it.
    gc.disable()
    fleet = Fleet(RunDirectory.of(run_json, attempt), from_json(RunConfig, run_json.read_text()))
    orders = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(orders), sys.stdin)
    beating = asyncio.create_task(fleet.keep_beating())
    fleet.join()
    while line := await orders.readline():
        order = json.loads(line)
        getattr(fleet, order.pop("do"))(**order)
    beating.cancel()


if __name__ == "__main__":
    asyncio.run(serve(Path(os.environ["HEADWAY_RUN_JSON"]), int(os.environ["HEADWAY_ATTEMPT"])))
