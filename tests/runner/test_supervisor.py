"""What a supervisor keeps and bears, without its processes: events of workers, and companions that die over weeks."""

import json
import socket
import subprocess
import sys
import time
import uuid
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


# Leaves a worker's process group and session in every way there is, under a name that its children have too.
LEAVES = """
import ctypes, os, sys, time
def fork():
    if os.fork():
        os._exit(0)
if os.fork() == 0:  # a daemon that takes its orphans itself
    os.setsid()
    fork()
    ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)
    if os.fork() == 0:
        os.setsid()
        fork()
    time.sleep(60)
if os.fork() == 0:  # one that is another process, in another session, each millisecond
    fork()
    until = time.monotonic() + 60
    while time.monotonic() < until:
        os.setsid()
        fork()
        time.sleep(0.001)
time.sleep(60)
"""
NODE = f"""
import json, os, sys, time
from pathlib import Path
from headway.runner.agent.processes import become_subreaper, spawn
from headway.runner.agent.supervisor import Companion, Supervisor, Worker
from headway.runner.contract import Mesh, RunConfig, Trainer
from headway.runner.rundir import RunDirectory

def named():
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            found += [entry.name] * (sys.argv[1].encode() in (entry / "cmdline").read_bytes().split(b"\\0"))
        except OSError:
            pass
    return len([pid for pid in found if int(pid) != os.getpid()])

become_subreaper()
config = RunConfig(slots=1, procs_per_slot=1, mesh=Mesh(), trainer=Trainer("script", {{"argv": ["x.py"]}}), spec_hash="")
node = Supervisor(config, RunDirectory(Path(sys.argv[2]), 0), 0, "here", hosts_coordinator=False)
node._agent, node._coordinator, node._keeper = Companion("agent"), None, None
node._to_agent = node._events = None
pid = spawn([sys.executable, "-c", {LEAVES!r}, sys.argv[1]], dict(os.environ))
until = time.monotonic() + 60
while (before := named()) < 4 and time.monotonic() < until:
    while os.waitpid(-1, os.WNOHANG)[0]:  # as a supervisor does at each SIGCHLD
        continue
    time.sleep(0.01)
os.kill(pid, 9)
os.waitpid(pid, 0)
node._clear_away()
print(json.dumps([before >= 4, named()]))
"""


def test_what_has_left_its_workers_session_in_any_way_ends_before_the_next_generation(tmp_path: Path) -> None:
    """Orphans come to the supervisor whatever they have done, so that no control group is needed to find them."""
    argv = [sys.executable, "-c", NODE, f"leaves-{uuid.uuid4()}", str(tmp_path)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=120)
    assert done.stdout == "[true, 0]\n", done.stderr
