"""Tests which time an agent subtracts from the age of a heartbeat: its own pauses."""

import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from headway.runner.agent import coordinator_search
from headway.runner.agent.agent_state import AgentState
from headway.runner.agent.main import Agent
from headway.runner.agent.pauses import NOTICED_S, Pauses
from headway.runner.agent.protocol import WorkerProcess
from headway.runner.contract import HeartbeatPage, Mesh, RunConfig, RunDirectory, Trainer

CONFIG = RunConfig(slots=1, procs_per_slot=1, mesh=Mesh(dp_shard=1), trainer=Trainer("script", {"argv": ["x.py"]}), spec_hash="")


def test_only_a_late_wakeup_is_a_pause() -> None:
    pauses = Pauses(0.0)
    for now_s in (0.5, 1.0, 1.5 + NOTICED_S):
        pauses.runs(now_s, 0.5)
    assert pauses.since(0.0) == 0.0
    pauses.runs(102.0 + NOTICED_S, 0.5)
    assert pauses.since(0.0) == 100.0


def test_a_pause_counts_only_for_the_part_after_the_given_time() -> None:
    pauses = Pauses(0.0)
    pauses.runs(60.0, 0.0)
    pauses.runs(61.0, 0.0)
    pauses.runs(100.0, 0.0)
    assert [pauses.since(then_s) for then_s in (0.0, 50.0, 60.0, 90.0, 100.0)] == [99.0, 49.0, 39.0, 10.0, 0.0]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    now = SimpleNamespace(s=1000.0)
    monkeypatch.setattr(time, "monotonic", lambda: now.s)
    return now


def agent() -> Agent:
    page = HeartbeatPage(memoryview(bytearray(HeartbeatPage.bytes_for(1))))
    workers = {0: WorkerProcess(0, 0, 1, 0)}
    state = AgentState(CONFIG, RunDirectory(Path("/nowhere"), 0), 0, "n0", page, slot=0, generation=1, workers=workers)
    return Agent(state, 0)


def age_s(found: Agent) -> float | None:
    """The age in the next heartbeat."""
    said: list[dict[int, list[float | None]]] = []
    found._reports.link = SimpleNamespace(send=lambda kind, generation, node, body: said.append(body["ranks"]))  # type: ignore[assignment]
    found._reports.beat()
    return said[0][0][3]


def test_the_first_heartbeat_after_a_pause_excludes_it(clock: SimpleNamespace) -> None:
    found = agent()
    found._state.page.write(0, monotonic_ns=999 * 10**9)
    clock.s = 1000.5
    assert age_s(found) == 1.5
    clock.s = 4601.0
    assert age_s(found) == 2.0
    clock.s = 4601.5
    assert age_s(found) == 2.5
    found._state.page.write(0, monotonic_ns=int(4601.5e9))
    clock.s = 4602.0
    assert age_s(found) == 0.5


def test_a_worker_that_ran_during_the_agents_pause_has_its_true_age(clock: SimpleNamespace) -> None:
    found = agent()
    age_s(found)
    found._state.page.write(0, monotonic_ns=1050 * 10**9)
    clock.s = 1060.0
    assert age_s(found) == 0.0, "the duration of its stall is unknown"
    clock.s = 1060.5
    assert age_s(found) == 0.5


def test_a_node_paused_without_a_coordinator_keeps_its_full_timeout(
    clock: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = agent()
    found._state.has_met = True
    exits: list[int] = []
    monkeypatch.setattr(coordinator_search, "read_verdict", lambda _: None)
    monkeypatch.setattr(found._search, "_exit", exits.append)
    monkeypatch.setattr(found._search, "_ask", lambda _: None)
    found._state.page.write(0, monotonic_ns=1000 * 10**9)
    clock.s = 1000.4
    assert not found._search.is_over_without(1000.0)
    clock.s = 4600.0
    assert not found._search.is_over_without(1000.0)
    for _ in range(100):
        clock.s += 0.4
        found._search.is_over_without(1000.0)
    assert exits, "and no more than that"
