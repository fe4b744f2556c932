"""Decides how often a coordinator checks the time: ten times a second if deadlines are near, seldom while all nodes make progress.

Waking up is what it costs: ten looks a second took 3.5 ms of CPU a second from a small job whose ranks fill the cores. So while all is
well a look goes along with a message that has woken the process anyway, and a timer wakes it only where none comes.
"""

from headway.runner.coordinator.machine import Coordinator
from headway.runner.coordinator.state import Phase

TICK_S = 0.1
CALM_S = 0.5
# Without a heartbeat for so long nothing is suspected yet (health/watch.py: _SUSPECT of BOUND_S).
QUIET_S = 0.75
# Nodes looked through in a second of ticks at most: with many, the ticks are fewer.
NODES_A_TICK = 50_000


class Pace:
    """Of the ticks of `machine`. Times are seconds of its clock."""

    def __init__(self, machine: Coordinator, nodes: int, now_s: float) -> None:
        self._machine, self._ticked_s = machine, now_s
        self._shortest_s = max(TICK_S, nodes / NODES_A_TICK)

    def ticked(self, now_s: float) -> None:
        self._ticked_s = now_s

    def goes_along(self, now_s: float) -> bool:
        """Return whether a tick is due together with the event that just arrived."""
        since_s = now_s - self._ticked_s
        return since_s >= self._shortest_s and (since_s >= CALM_S or not self._is_calm(now_s))

    def due_s(self, now_s: float) -> float:
        """Return when the next tick is due without events: while all is well, once the ranks have been quiet for QUIET_S."""
        due_s = self._ticked_s + self._shortest_s
        return max(due_s, now_s + QUIET_S - self._machine.vitals.quiet_s(now_s)) if self._is_calm(now_s) else due_s

    def _is_calm(self, now_s: float) -> bool:
        machine = self._machine
        steps = machine.phase is Phase.RUNNING and machine.generation.started and not machine.preempting
        return steps and not machine.roster.away and machine.vitals.quiet_s(now_s) < QUIET_S
