"""Reports to the coordinator: heartbeats, events and ends of workers, evidence. It repeats after each join what may not have arrived."""

import asyncio
import logging
import os
import time
from collections.abc import Mapping
from typing import Any

from headway.runner import log
from headway.runner.agent.agent_state import AgentState
from headway.runner.agent.kernel_log import KernelLog
from headway.runner.agent.protocol import WorkerProcess
from headway.runner.contract import SECTIONS
from headway.runner.health.xid import of_job
from headway.runner.messages import Link

_log = logging.getLogger(__name__)


class Reports:
    """`link` is the connection to the coordinator, None while there is none. `devices` are those that this node's ranks use, by their PCI
    addresses; None where that is not known."""

    def __init__(self, state: AgentState) -> None:
        self._state = state
        self.link: Link | None = None
        self.devices: frozenset[str] | None = None
        # Those of one turn of the event loop.
        self._ends: list[dict[str, Any]] = []
        self._kernel = KernelLog()

    def begin(self) -> None:
        """Forget the ends and the driver's messages of the generation before."""
        self._ends = []
        self._kernel.begin()

    def join(self, link: Link) -> None:
        """Join, and repeat the reports that may not have arrived."""
        state = self._state
        self.link, state.has_met = link, True
        _log.info("connected to the coordinator")
        ranks = sorted(worker.rank for worker in state.running())
        # What a scheduler knows of this node; what the run knows of its host the coordinator knows too.
        domain = os.environ.get("HEADWAY_DOMAIN") or None
        place = {"host": state.host, "address": state.address or state.host, "port": state.port}
        self._send("join", {**place, "domain": domain, "running": ranks})
        for event in state.events:
            self.event(event)
        for worker in state.workers.values():
            if worker.ended is not None:
                self.end(worker)
        if state.stopping_since is not None:
            self.stopping(state.stopping_since)
        self.beat()

    def beat(self) -> None:
        self._state.note_running()
        ranks = {worker.rank: self.heartbeat(worker.local_rank) for worker in self._state.running()}
        self._send("beat", {"port": self._state.port, "ranks": ranks})

    def heartbeat(self, local_rank: int) -> list[Any]:
        """Return step, section, pulse, seconds since the last heartbeat, and own seconds. Pauses of the whole node do not count."""
        words = self._state.page.read(local_rank)
        sign_s = words["monotonic_ns"] / 1e9
        age_s = round(time.monotonic() - sign_s - self._state.pauses.since(sign_s), 3) if sign_s else None
        own_s = round(words["own_ns"] / 1e9, 6) if words["own_ns"] else None
        # A script may have written over the page.
        known = 0 <= words["section"] < len(SECTIONS)
        return [words["step"], SECTIONS[words["section"]] if known else "script", words["pulse"], age_s, own_s]

    def event(self, event: dict[str, Any]) -> None:
        """Report an event of a worker."""
        self._send("committed" if event["what"] == "committed" else "evidence", event)

    def evidence(self, body: dict[str, Any]) -> None:
        self._send("evidence", body)

    def stopping(self, since: float) -> None:
        """Report that the node was asked to stop."""
        self.evidence({"what": "preempted", "age_s": time.monotonic() - since})

    def end(self, worker: WorkerProcess) -> None:
        """Report an end, in one message with all others of this turn of the event loop."""
        facts = {"rank": worker.rank, "code": worker.code, "asked": worker.asked, "oom": worker.oom}
        _log.info("exited", extra=log.fields({**facts, "how": worker.ended}))
        step = self._state.page.read(worker.local_rank)["step"]
        if not self._ends:
            asyncio.get_running_loop().call_soon(self._send_ends)
        xids = [[each.number, each.device, each.text, each.ours] for each in of_job(self._kernel.xids(), self.devices)]
        self._ends.append({**facts, "how": worker.ended, "step": step, **({"xids": xids} if xids else {})})

    def _send_ends(self) -> None:
        ends, self._ends = self._ends, []
        self._send("exited", {"exits": ends})

    def _send(self, kind: str, body: Mapping[str, Any]) -> None:
        """Send if there is a connection; reports that matter are repeated after the next join."""
        if self.link is not None:
            self.link.send(kind, self._state.generation, self._state.node, body)
