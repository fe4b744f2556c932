"""Connects an agent to its coordinator, and starts one on this node when no node has one for too long."""

import asyncio
import json
import logging
import os
import time
from collections.abc import Callable
from dataclasses import dataclass

from headway.runner.agent.agent_state import AgentState
from headway.runner.agent.protocol import Coordinate, PrintLine, Request
from headway.runner.contract import Exit, read_verdict
from headway.runner.coordinator import term
from headway.runner.messages import ChannelError, Link, Message, connect

_log = logging.getLogger(__name__)

# Of a few nodes; thousands look for a new coordinator less often.
RECONNECT_S = 0.1
# Without a coordinator for so long, a node starts one; the first node that can. Where there has been none yet, nodes are still booting.
TAKEOVER_S, TAKEOVER_STEP_S, FIRST_TAKEOVER_S, TAKEOVER_AGAIN_S = 2.0, 0.5, 60.0, 10.0
# For a coordinator from its term until it can be found.
STARTING_S = 5.0
# A coordinator that this node tries to reach for so long is reported. One that restarts has published another address by then.
UNREACHED_S = 2.0


@dataclass(frozen=True)
class Address:
    """The published address of the coordinator."""

    host: str
    port: int
    term: int


class CoordinatorSearch:
    """`find` returns a link with the coordinator, whichever node it runs on."""

    def __init__(
        self, state: AgentState, incarnation: int, ask: Callable[[Request], None], exit_node: Callable[[int], None]
    ) -> None:
        self._state, self._incarnation, self._ask, self._exit = state, incarnation, ask, exit_node
        # When this node last started a coordinator.
        self._coordinated = 0.0
        # The newest, and when it was first seen.
        self._term = 0
        self._term_seen = 0.0
        # The address that was tried last, since when, and the hosts whose coordinators were reported as unreachable.
        self._tried: Address | None = None
        self._tried_since = 0.0
        self._unreached: set[str] = set()

    async def find(self, obey: Callable[[Link, Message], None]) -> Link | None:
        """Return a link with the coordinator; None when the attempt is over for this node."""
        since = time.monotonic()
        while not self.is_over_without(since):
            if (address := self._address()) is not None and (link := await self._try(address, since, obey)) is not None:
                return link
            await asyncio.sleep(RECONNECT_S * (1 + (self._state.config.slots + self._state.config.spares) / 1000))
        return None

    def is_decided(self) -> bool:
        """Return whether the attempt is over although no stop arrived: it was decided before this agent joined, or while it was cut off.
        The node exits then."""
        if (verdict := read_verdict(self._state.directory)) is not None:
            self._exit(verdict.exit_code)
        return verdict is not None

    def is_over_without(self, since: float) -> bool:
        """Return whether a node without a coordinator since then must end; if not, it may start one."""
        state = self._state
        if state.over.is_set() or self.is_decided():
            return True
        state.note_running()
        away_s = time.monotonic() - since - state.pauses.since(since)
        if away_s > self._patience_s() and self.silent_s() > self._patience_s():
            _log.error("no coordinator for %.0f s", self._patience_s())
            self._exit(Exit.RETRY_ELSEWHERE)
            return True
        self._take_over(away_s)
        return False

    def silent_s(self) -> float:
        """Return the seconds since the last heartbeat of a worker here, or since its start; infinite without workers."""
        state = self._state
        signs = [state.page.read(worker.local_rank)["monotonic_ns"] / 1e9 or state.started for worker in state.running()]
        return time.monotonic() - max(signs) - state.pauses.since(max(signs)) if signs else float("inf")

    async def _try(self, address: Address, since: float, obey: Callable[[Link, Message], None]) -> Link | None:
        """Try once to connect; give up as soon as another coordinator has published its address."""
        state = self._state
        assert state.config.run is not None  # noqa: S101  set when the run directory was made
        if address != self._tried:
            self._tried, self._tried_since = address, time.monotonic()
        state.cut.clear()
        try:
            secret = state.directory.secret()
        except (OSError, ValueError):
            # A network file system that is unavailable.
            return None
        work = connect(address.host, address.port, secret, state.config.run, self._incarnation, obey, self._lost)
        connecting = asyncio.create_task(work)
        while not connecting.done():
            await asyncio.wait({connecting}, timeout=RECONNECT_S)
            if not connecting.done() and (self._address() != address or self.is_over_without(since)):
                connecting.cancel()
                await asyncio.wait({connecting})
        try:
            link = connecting.result()
        except asyncio.CancelledError:
            self._report_unreached(address, "no answer")
            return None
        except (OSError, ValueError, ChannelError) as error:
            self._report_unreached(address, str(error))
            return None
        self._tried = None
        return link

    def _report_unreached(self, address: Address, why: str) -> None:
        """Report who cannot reach whom, once for each host."""
        tried_s = time.monotonic() - self._tried_since
        if tried_s > UNREACHED_S and address.host not in self._unreached:
            self._unreached.add(address.host)
            place = f"{address.host}:{address.port}"
            name = term.host_of(self._state.directory, address.term)
            of = place if name in (None, address.host) else f"{name} ({place})"
            line = f"{self._state.host} cannot reach the coordinator on {of}, tried for {tried_s:.1f} s: {why}"
            _log.warning(line)
            self._ask(PrintLine(line))

    def _address(self) -> Address | None:
        try:
            record = json.loads(self._state.directory.coordinator.read_text())
            return Address(record["host"], record["port"], record.get("term", 0))
        except (OSError, ValueError, KeyError):
            # Not there yet, or a network file system between two versions.
            return None

    def _lost(self, _: Link, why: str) -> None:
        if not self._state.over.is_set():
            _log.warning("the connection to the coordinator ended: %s", why)
        self._state.cut.set()

    def _patience_s(self) -> float:
        """A node that computes is missed by the others; one that does not is not."""
        bound = self._state.has_met and self._state.slot is not None
        return self._state.config.timeout_s("agent" if bound else "join")

    def _take_over(self, away_s: float) -> None:
        """Have the supervisor start a coordinator when no other node has done so for long enough."""
        if os.environ.get("HEADWAY_SHARED_STORE") == "0":
            # No other node would find it, nor could it read the chain.
            return
        patience_s = TAKEOVER_S + TAKEOVER_STEP_S * self._state.node
        if not self._state.has_met and self._address() is None:
            # Sooner where nodes are not waited for as long: a verdict has to name the first node if that cannot start.
            patience_s += min(FIRST_TAKEOVER_S, self._state.config.timeout_s("join") / 4)
        now = time.monotonic()
        if away_s > patience_s and now - self._coordinated > TAKEOVER_AGAIN_S and not self._another_starts(now):
            self._coordinated = now
            self._ask(Coordinate())

    def _another_starts(self, now: float) -> bool:
        """Return whether another node's coordinator has taken a term, and has had no time to publish its address yet."""
        try:
            newest, published = term.newest(self._state.directory), term.published(self._state.directory)
        except OSError:
            # A store that cannot be read takes no coordinator either.
            return True
        if newest != self._term:
            self._term, self._term_seen = newest, now
        return newest > published and now - self._term_seen < STARTING_S
