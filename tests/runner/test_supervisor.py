"""What a supervisor keeps and bears, without its processes: events of workers, and companions that die over weeks."""

import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headway.runner.agent import supervisor
from headway.runner.agent.supervisor import EVENT_BYTES, EVENTS_KEPT, MAX_RESTARTS, OF_LATE_S, Companion, Supervisor
from headway.runner.contract import Mesh, RunConfig, Trainer
from headway.runner.rundir import RunDirectory

CONFIG = RunConfig(slots=1, procs_per_slot=1, mesh=Mesh(), trainer=Trainer("script", {"argv": ["x.py"]}), spec_hash="")


Beside = tuple[Supervisor, socket.socket]


@pytest.fixture
def beside(tmp_path: Path) -> Iterator[Beside]:
    """A supervisor with the sockets of one that serves, and the agent's end."""
    found = Supervisor(CONFIG, RunDirectory(tmp_path, 0), 0, "here", hosts_coordinator=False)
    found._events, found._worker_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    found._to_agent, agent = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    found._agent = Companion("agent")
    yield found, agent
    for end in (found._events, found._worker_end, found._to_agent, agent):
        end.close()


def said(*events: dict[str, Any]) -> bytes:
    return b"".join(json.dumps({"what": "event", "event": event}).encode() + b"\n" for event in events)


def test_an_event_that_is_too_long_costs_that_event_and_not_the_node(beside: Beside) -> None:
    node, agent = beside
    before, behind = {"what": "loaded", "rank": 0, "step": 1}, {"what": "committed", "rank": 0, "step": 2}
    for event in (before, {"what": "retired", "checkpoints": "x" * EVENT_BYTES}, behind):
        node._worker_end.send(json.dumps(event).encode())
    node._read_events()
    assert agent.recv(1 << 16) == said(before, behind)


def test_what_is_said_again_to_another_agent_leaves_at_once(beside: Beside) -> None:
    node, agent = beside
    node._said.extend({"what": "note", "number": number, "text": "x" * 4096} for number in range(EVENTS_KEPT))
    node._tell({"what": "hello", "events": node._repeated()})
    hello = b""
    while not hello.endswith(b"\n"):
        hello += agent.recv(1 << 16, socket.MSG_DONTWAIT)
    numbers = [event["number"] for event in json.loads(hello)["events"]]
    assert numbers == list(range(EVENTS_KEPT - len(numbers), EVENTS_KEPT))
    assert len(numbers) == supervisor.REPEATED_BYTES // len(json.dumps(node._said[-1]))


def test_only_what_dies_again_and_again_makes_a_node_unusable(beside: Beside, monkeypatch: pytest.MonkeyPatch) -> None:
    node, _ = beside
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])

    def given_up(times: int, apart_s: float) -> list[bool]:
        found = []
        for _ in range(times):
            now[0] += apart_s
            found.append(node._give_up(node._agent, 9))
        return found

    assert given_up(10 * MAX_RESTARTS, OF_LATE_S / MAX_RESTARTS) == [False] * 10 * MAX_RESTARTS
    now[0] += OF_LATE_S
    assert given_up(MAX_RESTARTS + 1, 1.0) == [False] * MAX_RESTARTS + [True]
    assert node._agent.restarts == 11 * MAX_RESTARTS + 1
