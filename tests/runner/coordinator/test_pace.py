"""Tests how often a coordinator checks the time: rarely while all is well, and frequently when something may be wrong."""

import pytest

from headway.runner.contract import Mesh, RunConfig, Trainer, orders
from headway.runner.coordinator.events import Beat, Claimed, Event, Joined, Lost, Note, Send, Tick
from headway.runner.coordinator.machine import Coordinator
from headway.runner.coordinator.pace import CALM_S, QUIET_S, TICK_S, Pace
from headway.runner.coordinator.state import Inherited
from headway.runner.health.watch import Probe, RankBeat
from tests.support.coordinator import evidence

BEAT_S, STEP_S = 0.5, 0.1
CONFIG = RunConfig(slots=2, procs_per_slot=1, mesh=Mesh(dp_shard=2), trainer=Trainer("script"), spec_hash="ab")
SEEN = {0: Probe("S", 1.0, 0, where="collective"), 1: Probe("T", 1.0, 0)}


class Job:
    """Two nodes with a rank each under a coordinator whose ticks follow `Pace` or come every tenth of a second; in virtual time."""

    def __init__(self, *, paced: bool = True) -> None:
        self.now_s, self.ticks, self.lines = 0.0, 0, list[tuple[float, str]]()
        self.machine = Coordinator(CONFIG, Inherited(), 0.0)
        self.pace = Pace(self.machine, 2, 0.0) if paced else None
        self.stands_since: float | None = None
        self._next_beat_s, self._next_tick_s = BEAT_S, TICK_S
        for node in range(2):
            self.do(Joined(node, f"host-{node}", 0, (), port=4000 + node))
        self.do(Claimed(1, None, 1))

    def do(self, event: Event) -> None:
        self._handle(event)
        if self.pace is not None and self.pace.goes_along(self.now_s):
            self._handle(Tick())

    def _handle(self, event: Event) -> None:
        if isinstance(event, Tick):
            self.ticks += 1
            if self.pace is not None:
                self.pace.ticked(self.now_s)
            self._next_tick_s = self.now_s + TICK_S
        actions = self.machine.handle(event, self.now_s)
        self.lines += [(self.now_s, action.entry.KIND) for action in actions if isinstance(action, Note)]
        probes = (action for action in actions if isinstance(action, Send) and isinstance(action.order, orders.ProbeRanks))
        if self.machine.watch is not None and any(probes):
            self.machine.watch.probed(SEEN, self.now_s)

    def passes(self, seconds: float, *, beats: bool = True) -> None:
        """Let this time pass: each node sends heartbeats twice a second, and between heartbeats only the timer wakes the coordinator."""
        end_s = self.now_s + seconds
        while True:
            tick_s = self._next_tick_s if self.pace is None else self.pace.due_s(self.now_s)
            self.now_s = min(self._next_beat_s, max(tick_s, self.now_s))
            if self.now_s > end_s:
                self.now_s = end_s
                return
            if self.now_s == self._next_beat_s:
                self._next_beat_s += BEAT_S
                for node in range(2 if beats else 0):
                    self.do(self._beat(node))
            else:
                self._handle(Tick())

    def _beat(self, node: int) -> Beat:
        moved_s = self.now_s if self.stands_since is None else self.stands_since
        step, age_s = int(moved_s / STEP_S), self.now_s - int(moved_s / STEP_S) * STEP_S
        return Beat(node, 1, 4100 + node, {node: RankBeat(step, "compute", step, age_s)})


def test_while_all_is_well_ticks_follow_heartbeats_and_no_timer_fires() -> None:
    job = Job()
    job.passes(2.0)
    before = job.ticks
    for _ in range(100):
        assert job.pace is not None
        assert job.pace.due_s(job.now_s) > job._next_beat_s
        job.passes(BEAT_S)
    assert job.ticks - before <= 100 * BEAT_S / CALM_S + 1


@pytest.mark.parametrize("stands_at_s", [30.0, 30.13, 30.26, 30.39, 30.47])
def test_a_hang_is_named_as_early_as_with_a_tick_every_tenth_of_a_second(stands_at_s: float) -> None:
    named_s = list[float]()
    for paced in (True, False):
        job = Job(paced=paced)
        job.passes(stands_at_s)
        job.stands_since = stands_at_s
        job.passes(5.0)
        named_s.append(next(at_s for at_s, kind in job.lines if kind == "hang") - stands_at_s)
    assert named_s[0] <= min(named_s[1] + TICK_S, 2.0)


def test_a_lost_connection_or_a_stop_request_restores_frequent_ticks() -> None:
    for event in (Lost(1), evidence(1, 1, {"what": "preempted", "age_s": 0.0})):
        job = Job()
        job.passes(10.0)
        assert job.pace is not None
        assert job.pace.due_s(job.now_s) > job.now_s + TICK_S
        job.do(event)
        assert job.pace.due_s(job.now_s) <= job.now_s + TICK_S + 1e-9


def test_without_heartbeats_the_coordinator_wakes_before_suspecting_ranks() -> None:
    job = Job()
    job.passes(10.0)
    before, began_s = job.ticks, job.now_s
    job.passes(QUIET_S, beats=False)
    assert job.ticks > before
    job.passes(3.0, beats=False)
    assert job.ticks - before >= (job.now_s - began_s - QUIET_S) / TICK_S - 2
