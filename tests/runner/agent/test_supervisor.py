"""Tests the supervisor's limits and restarts without its processes: events of workers, and daemons that die over weeks."""

import json
import os
import re
import selectors
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headway.runner.agent import agent_link, shm_cleanup, workers
from headway.runner.agent.daemons import MAX_RESTARTS, OF_LATE_S
from headway.runner.agent.protocol import (
    EVENTS_KEPT,
    ExitNode,
    KillWorkers,
    NodeState,
    WorkerEvent,
    WorkerProcess,
    encode,
    request_of,
)
from headway.runner.agent.supervisor import Supervisor
from headway.runner.agent.warm import Standby
from headway.runner.agent.workers import EVENT_BYTES
from headway.runner.contract import Mesh, RunConfig, RunDirectory, Trainer

CONFIG = RunConfig(slots=1, procs_per_slot=1, mesh=Mesh(), trainer=Trainer("script", {"argv": ["x.py"]}), spec_hash="")


Serving = tuple[Supervisor, socket.socket]


@pytest.fixture
def serving(tmp_path: Path) -> Iterator[Serving]:
    """A supervisor with the sockets of a serving one, and the agent's end of them."""
    found = Supervisor(CONFIG, RunDirectory(tmp_path, 0), 0, "here", hosts_coordinator=False)
    ours, agent = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    found._agent.connect(ours)
    yield found, agent
    found._close()
    agent.close()


def test_a_standby_that_dies_during_its_handover_costs_nothing_else(serving: Serving) -> None:
    node, _ = serving
    orders, ended = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    asked, asks = socket.socketpair()
    node._standbys.keep(0, Standby(0, orders, {}, libraries=False))

    def take() -> None:
        asked.recv(1)
        node._standbys.take(0).orders.close()

    node._selector.register(asked, selectors.EVENT_READ, take)
    with asked, asks:
        # The selector returns them in this order.
        asks.send(b"x")
        ended.close()
        node._hear(0)
        assert node._standbys.pids() == set()
        node._hear(0)


def test_an_agents_last_order_counts_even_if_the_agent_was_just_reaped(
    serving: Serving, capfd: pytest.CaptureFixture[str]
) -> None:
    node, agent = serving
    for request in (KillWorkers(1, 9), ExitNode(0)):
        agent.send(encode(request))
    agent.close()
    # It has ended before its orders are read, and has not been reaped.
    node._agent.daemon.pid = os.posix_spawn("/bin/true", ["true"], {})
    os.waitid(os.P_PID, node._agent.daemon.pid, os.WEXITED | os.WNOWAIT)
    node._hear(0)
    assert node._exit.code == 0
    assert (node._agent.daemon.restarts, capfd.readouterr().err) == (0, "")


def said(*events: dict[str, Any]) -> bytes:
    return b"".join(encode(WorkerEvent(event)) for event in events)


def test_an_oversized_event_is_dropped_and_the_node_continues(serving: Serving) -> None:
    node, agent = serving
    before, behind = {"what": "loaded", "rank": 0, "step": 1}, {"what": "committed", "rank": 0, "step": 2}
    for event in (before, {"what": "retired", "checkpoints": "x" * EVENT_BYTES}, behind):
        node._worker_end.send(json.dumps(event).encode())
    node._workers.read_events()
    assert agent.recv(1 << 16) == said(before, behind)


@pytest.mark.parametrize("line", [b"", b"{", b"[]", b'{"what": "explode"}', b'{"what": "kill", "generation": "x"}'])
def test_an_unreadable_request_is_quoted_in_its_error(line: bytes) -> None:
    with pytest.raises(ValueError, match=re.escape(f"unreadable request {line!r}: ")):
        request_of(line)


def test_events_resent_to_a_new_agent_fit_into_the_socket_at_once(serving: Serving) -> None:
    node, agent = serving
    node._agent._events.extend({"what": "note", "number": number, "text": "x" * 4096} for number in range(EVENTS_KEPT))
    node._agent.report(NodeState([], node._agent.newest_events(), None, None))
    hello = b""
    while not hello.endswith(b"\n"):
        hello += agent.recv(1 << 16, socket.MSG_DONTWAIT)
    numbers = [event["number"] for event in json.loads(hello)["events"]]
    assert numbers == list(range(EVENTS_KEPT - len(numbers), EVENTS_KEPT))
    assert len(numbers) == agent_link.REPEATED_BYTES // len(json.dumps(node._agent._events[-1]))


def test_only_a_process_that_dies_repeatedly_makes_a_node_unusable(serving: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    node, _ = serving
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])

    def given_up(times: int, apart_s: float) -> list[bool]:
        found = []
        for _ in range(times):
            now[0] += apart_s
            found.append(node._agent.daemon.died(9))
        return found

    assert given_up(10 * MAX_RESTARTS, OF_LATE_S / MAX_RESTARTS) == [False] * 10 * MAX_RESTARTS
    now[0] += OF_LATE_S
    assert given_up(MAX_RESTARTS + 1, 1.0) == [False] * MAX_RESTARTS + [True]
    assert node._agent.daemon.restarts == 11 * MAX_RESTARTS + 1


def kills(monkeypatch: pytest.MonkeyPatch) -> tuple[list[float], list[tuple[int, int]]]:
    """Virtual time, and the signals sent in it."""
    now, sent = [1000.0], list[tuple[int, int]]()
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(workers, "kill_group", lambda pid, number: sent.append((pid, number)))
    monkeypatch.setattr(workers, "state_of", lambda _: "D")
    return now, sent


def heard(agent: socket.socket) -> list[dict[str, Any]]:
    try:
        return [json.loads(line) for line in agent.recv(1 << 16, socket.MSG_DONTWAIT).splitlines()]
    except BlockingIOError:
        return []


def test_a_worker_that_survives_sigkill_is_killed_again_and_reported(serving: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    node, agent = serving
    now, sent = kills(monkeypatch)
    monkeypatch.setattr(node, "_reap", lambda: None)
    node._workers.by_pid = {pid: WorkerProcess(pid - 500, pid - 500, 1, pid) for pid in (500, 501)}
    assert node._workers.watch() is None, "nothing is to be looked at"
    node._kill(KillWorkers(1, 9))
    assert node._workers.watch() == workers.KILL_AGAIN_S
    node._worker_ended(node._workers.by_pid[500], 9)
    heard(agent)
    sent.clear()
    said = []
    while now[0] < 1000 + workers.UNDEAD_S:
        patience_s = node._workers.watch()
        assert patience_s is not None
        assert heard(agent) == []
        now[0] += patience_s
    node._workers.watch()
    said += heard(agent)
    assert said == [{"what": "undead", "undead": [{"rank": 1, "state": "D"}]}]
    assert sent == [(501, 9)] * int(workers.UNDEAD_S / workers.KILL_AGAIN_S)
    now[0] += workers.KILL_AGAIN_S
    node._workers.watch()
    assert heard(agent) == said, "until the coordinator decides"
    node._worker_ended(node._workers.by_pid[501], 9)
    assert node._workers.watch() is None


def test_a_worker_asked_to_save_is_not_killed_again(serving: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    node, _ = serving
    kills(monkeypatch)
    monkeypatch.setattr(node, "_reap", lambda: None)
    node._workers.by_pid = {500: WorkerProcess(0, 0, 1, 500)}
    node._kill(KillWorkers(1, 15))
    assert node._workers.watch() is None


@pytest.mark.parametrize("does", ["nothing", "computes", "writes"])
def test_only_a_process_that_is_idle_after_its_script_is_ended(
    does: str, serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    node, agent = serving
    now, _ = kills(monkeypatch)
    killed, done = list[int](), [0, 0]
    monkeypatch.setattr(workers, "activity", lambda _: tuple(done))
    monkeypatch.setattr(os, "kill", lambda pid, _: killed.append(pid))
    node._workers.by_pid = {500: WorkerProcess(0, 0, 1, 500)}
    node._worker_end.send(json.dumps({"what": "leaving", "rank": 0, "code": 3}).encode())
    node._workers.read_events()
    assert heard(agent) == [], "it is not reported"
    for _ in range(5):
        assert node._workers.watch() == workers.LEAVE_S
        now[0] += workers.LEAVE_S
        done[0] += {"nothing": 1, "computes": 1000, "writes": 1}[does]
        done[1] += does == "writes"
    node._workers.watch()
    assert killed == ([500] * 5 if does == "nothing" else [])
    node._worker_ended(node._workers.by_pid[500], 9)
    assert node._workers.by_pid[500].code == (3 if does == "nothing" else -9)


@pytest.mark.parametrize("step", [0, 1])
def test_a_script_without_optimizer_steps_is_reported_once(step: int, serving: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    node, agent = serving
    now, _ = kills(monkeypatch)
    node._workers._heartbeats.write(0, step=step)
    node._workers.by_pid = {500: WorkerProcess(0, 0, 1, 500)}
    node._worker_end.send(json.dumps({"what": "section", "rank": 0, "name": "script"}).encode())
    node._workers.read_events()
    heard(agent)
    assert node._workers.watch() == workers.STEPLESS_S
    now[0] += workers.STEPLESS_S
    assert node._workers.watch() is None
    text = "no torch optimizer has stepped within 60 s: steps are not counted"
    note = {"what": "note", "rank": 0, "kind": "unseen", "calls": [text]}
    assert [each["event"] for each in heard(agent)] == ([] if step else [note])


# A completed rank and a crashed one have left a process each, and another process was older than the supervisor.
LEFT = """
import json, os, subprocess, sys, time
from pathlib import Path
before = subprocess.Popen(["sleep", "60"])
from headway.runner.agent.processes import spawn
from headway.runner.agent.protocol import WorkerProcess
from headway.runner.agent.supervisor import Supervisor
from headway.runner.contract import Mesh, RunConfig, Trainer
from headway.runner.contract import RunDirectory
from headway.runner.agent import strays

config = RunConfig(slots=1, procs_per_slot=2, mesh=Mesh(), trainer=Trainer("script", {"argv": ["x.py"]}), spec_hash="")
node = Supervisor(config, RunDirectory(Path(sys.argv[1]), 0), 0, "here", hosts_coordinator=False)
node._strays.adopt()
program = (
    "import os, subprocess, sys\\n"
    "print(*(subprocess.Popen(['sleep', '60'], start_new_session=new).pid for new in (False, True)), flush=True)\\n"
    "os._exit(int(sys.argv[1]))"
)
left = {}
for code in (0, 1):
    read, write = os.pipe()
    pid = spawn([sys.executable, "-c", program, str(code)], dict(os.environ), (), Path(f"{sys.argv[1]}/{code}"))
    node._workers.by_pid[pid] = WorkerProcess(code, code, 1, pid)
    status = os.waitpid(pid, 0)[1]
    left[code] = [int(word) for word in Path(f"{sys.argv[1]}/{code}").read_text().split()]
    node._worker_ended(node._workers.by_pid[pid], status)
def alive():
    found = []
    for name, pid in {"before": before.pid, **{f"{code}{n}": pid for code in left for n, pid in enumerate(left[code])}}.items():
        try:
            found += [name] * (Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z")
        except OSError:
            pass
    return found
node._workers.forget()
node._strays.clear_away(node._reap)
print(alive())
strays.opens_a_device = lambda pid: pid == left[0][0]
node._strays.clear_away(node._reap)
print(alive())
node._strays.end_everything(10.0, completed=True)
print(alive())
for pid in (before.pid, left[0][1]):
    os.kill(pid, 9)
"""


@pytest.mark.slow
def test_leftovers_of_a_completed_rank_and_older_processes_are_not_ended(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", LEFT, str(tmp_path)], capture_output=True, text=True, check=False, timeout=120)
    assert done.stdout.splitlines() == ["['before', '00', '01']", "['before', '01']", "['before', '01']"], done.stderr


def test_only_shared_memory_newer_than_the_generation_is_removed(
    serving: Serving, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node, _ = serving
    monkeypatch.setattr(shm_cleanup, "SHARED_MEMORY", tmp_path)
    before, after = (tmp_path / f"torch_1_2_{number}" for number in (1, 2))
    before.touch()
    node._strays.begin()
    after.touch()
    node._strays._shared_memory = shm_cleanup.present()
    node._strays.remove_shared_memory()
    assert (before.exists(), after.exists(), node._strays._shared_memory) == (True, False, set())


def test_a_node_with_only_ipv6_listens(tmp_path: Path) -> None:
    node = Supervisor(CONFIG, RunDirectory(tmp_path, 0), 0, "::1", hosts_coordinator=False)
    node._rendezvous.open()
    assert node._rendezvous.port() is not None
    assert node._rendezvous._socket is not None
    assert node._rendezvous._socket.getsockname()[0] == "::1"
    node._close()


# Leaves a worker's process group and session in every possible way, under a name that its children share.
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
from headway.runner.agent.processes import spawn
from headway.runner.agent.supervisor import Supervisor
from headway.runner.contract import Mesh, RunConfig, Trainer
from headway.runner.contract import RunDirectory

def named():
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            found += [entry.name] * (sys.argv[1].encode() in (entry / "cmdline").read_bytes().split(b"\\0"))
        except OSError:
            pass
    return len([pid for pid in found if int(pid) != os.getpid()])

config = RunConfig(slots=1, procs_per_slot=1, mesh=Mesh(), trainer=Trainer("script", {{"argv": ["x.py"]}}), spec_hash="")
node = Supervisor(config, RunDirectory(Path(sys.argv[2]), 0), 0, "here", hosts_coordinator=False)
node._strays.adopt()
pid = spawn([sys.executable, "-c", {LEAVES!r}, sys.argv[1]], dict(os.environ))
until = time.monotonic() + 60
while (before := named()) < 4 and time.monotonic() < until:
    while os.waitpid(-1, os.WNOHANG)[0]:  # as a supervisor does at each SIGCHLD
        continue
    time.sleep(0.01)
os.kill(pid, 9)
os.waitpid(pid, 0)
node._strays.clear_away(node._reap)
print(json.dumps([before >= 4, named()]))
"""


@pytest.mark.slow
def test_processes_that_left_their_workers_session_end_before_a_restart(tmp_path: Path) -> None:
    """Orphans are adopted by the supervisor whatever they have done, so that no control group is needed to find them."""
    argv = [sys.executable, "-c", NODE, f"leaves-{uuid.uuid4()}", str(tmp_path)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=120)
    assert done.stdout == "[true, 0]\n", done.stderr
