"""Requests standbys for the next generation, once the workers of this one compute."""

import json
import logging
import os
import time
from collections.abc import Callable

from headway.runner.agent import cgroup
from headway.runner.agent.agent_state import AgentState
from headway.runner.agent.flight import Recorder
from headway.runner.agent.launch import is_ours
from headway.runner.agent.protocol import RankOrder, Request, StartStandbys
from headway.runner.agent.rank_orders import modules_file, rank_order
from headway.runner.agent.standby import worth_importing
from headway.runner.agent.warm import OF_A_RANK
from headway.runner.contract import SECTIONS
from headway.runner.contract.orders import StartRanks

_log = logging.getLogger(__name__)

# "0": no standby is kept ready, for nodes whose memory the script needs; a restart then imports torch again.
SWITCH = "HEADWAY_STANDBY"
STANDBY_BYTES = 1 << 30
STANDBY_AFTER_S = 20.0  # of a script that completes no steps
# Until here a worker has not got to its own code.
_BEGINNING = frozenset(SECTIONS.index(name) for name in ("start", "rendezvous", "restore"))


class StandbyRequests:
    """`request_if_due` requests the standbys of a generation once."""

    def __init__(self, state: AgentState, recorder: Recorder, ask: Callable[[Request], None]) -> None:
        self._state, self._recorder, self._ask = state, recorder, ask
        # The generation for whose next start standbys were requested.
        self._requested = -1
        # When this generation's workers were all in their own code; 0 until then.
        self._began = 0.0

    def begin(self) -> None:
        """Wait for the workers of a new generation."""
        self._began = 0.0

    def request_again(self) -> None:
        """Request standbys once more in this generation: some have become workers."""
        self._requested = -1

    def request_if_due(self) -> None:
        """Request standbys for the next generation, once this one's workers need the processors no more than usual."""
        state = self._state
        if self._requested == state.generation or state.over.is_set() or os.environ.get(SWITCH) == "0" or not self._is_due():
            return
        self._requested = state.generation
        try:
            orders = [self._order(local_rank) for local_rank in range(state.config.procs_per_slot)]
        except Exception as error:  # one can do without
            _log.warning("no standbys: %s", error)
            return
        if any(not is_ours(order.argv) for order in orders):
            return
        if cgroup.available_bytes() < len(orders) * STANDBY_BYTES:
            _log.warning("no standbys: not enough free memory")
            return
        self._ask(StartStandbys(orders, self._modules()))

    def _is_due(self) -> bool:
        state = self._state
        if state.slot is None:
            return state.has_met
        words = [state.page.read(worker.local_rank) for worker in state.running()]
        if len(words) < state.config.procs_per_slot or any(each["section"] in _BEGINNING for each in words):
            return False
        self._began = self._began or time.monotonic()
        base = state.start_order.base if state.start_order is not None and state.config.trainer.kind != "script" else None
        first = base.step if base else 0
        return all(each["step"] > first for each in words) or time.monotonic() - self._began > STANDBY_AFTER_S

    def _order(self, local_rank: int) -> RankOrder:
        """Return the order of a worker of the next generation, as far as that is known now."""
        state = self._state
        start = state.start_order or StartRanks(state.config.slots, (), "", 0, 0, None)
        order = rank_order(state, self._recorder, state.slot or 0, local_rank, start)
        if state.slot is None:
            order.environment = {name: text for name, text in order.environment.items() if name not in OF_A_RANK}
        return order

    def _modules(self) -> list[str]:
        """Return the modules that standbys import, by the list of this node or, without one, of any other."""
        directory, of_any_rank = self._state.directory, self._state.slot is None
        for path in [modules_file(directory, self._state.node), *sorted(directory.attempt_directory.glob("modules-*.json"))]:
            try:
                return worth_importing(json.loads(path.read_text()), of_any_rank=of_any_rank)
            except (OSError, ValueError):
                continue
        return worth_importing([], of_any_rank=True)
