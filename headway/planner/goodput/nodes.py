"""Tracks the nodes of a run: which one computes in which slot, which are spares, and when those in repair come back."""

import heapq
from collections import Counter, deque
from random import Random

from msgspec import Struct

from headway.planner.goodput.run import SimulatedRun


class Replacement(Struct, frozen=True):
    """When the slot has a node again, and whether that node was in the job already."""

    filled_s: float
    warm: bool


class Nodes:
    """Slots of the job, its spares, the cluster's pool and the repair shop. Times in repair are exponential with the run's mean.

    Nodes are numbers: those that compute at first, then the spares, then the pool. A repaired node becomes a spare while the job has fewer
    than it began with, and goes to the pool else.
    """

    def __init__(self, run: SimulatedRun, random: Random) -> None:
        self._run, self._random = run, random
        self._moved: dict[int, int] = {}
        self._slots: dict[int, int | None] = {}
        self._filled_s: dict[int, float] = {}
        self._spares = deque(range(run.nodes, run.nodes + run.spares))
        self._pool = deque(range(run.nodes + run.spares, run.nodes + run.spares + run.pool))
        self._repairs: list[tuple[float, int]] = []
        self._joined: set[int] = set()
        self.replaced: Counter[int] = Counter()

    @property
    def used(self) -> int:
        """Nodes that computed at some time."""
        return self._run.nodes + len(self._joined)

    def node_in(self, slot: int, time_s: float) -> int | None:
        """Return the node in the slot; None while it is empty."""
        return self._node(slot) if self._filled_s.get(slot, 0.0) <= time_s else None

    def slot_of(self, node: int, time_s: float) -> int | None:
        """Return the slot that the node is in; None while it is in none."""
        slot = self._slots.get(node, node if node < self._run.nodes else None)
        return slot if slot is not None and self._filled_s.get(slot, 0.0) <= time_s else None

    def replace(self, slot: int, time_s: float, asked_s: float) -> Replacement:
        """Remove the slot's node at `time_s`, and request another one at `asked_s`."""
        lost = self._node(slot)
        self.replaced[lost] += 1
        self._slots[lost] = None
        heapq.heappush(self._repairs, (time_s + self._repair_s(), lost))
        node, replacement = self._next(asked_s)
        self._moved[slot], self._slots[node] = node, slot
        if node >= self._run.nodes:
            self._joined.add(node)
        self._filled_s[slot] = replacement.filled_s
        return replacement

    def _node(self, slot: int) -> int:
        return self._moved.get(slot, slot)

    def _repair_s(self) -> float:
        mean = self._run.failures.repair_s
        return self._random.expovariate(1 / mean) if mean else 0.0

    def _next(self, asked_s: float) -> tuple[int, Replacement]:
        self._take_back(asked_s)
        provision_s = self._run.recovery.provision_s
        if self._spares:
            return self._spares.popleft(), Replacement(asked_s, warm=True)
        if self._pool:
            return self._pool.popleft(), Replacement(asked_s + provision_s, warm=False)
        back_s, node = heapq.heappop(self._repairs)
        return node, Replacement(back_s + provision_s, warm=False)

    def _take_back(self, time_s: float) -> None:
        """Repaired nodes join again; the job's spares come first."""
        while self._repairs and self._repairs[0][0] <= time_s:
            self._pool.append(heapq.heappop(self._repairs)[1])
        while self._pool and len(self._spares) < self._run.spares:
            self._spares.append(self._pool.popleft())
