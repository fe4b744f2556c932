"""Tests the process that serves a generation's rendezvous store: it obeys its orders, whichever process it was forked from."""

import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from torch._C._distributed_c10d import TCPStore

from headway.runner.agent import store
from headway.runner.agent.listening import listen
from headway.runner.agent.store import StoreHost

LIMIT_S = 60


def client(listening: socket.socket) -> Any:
    host, port = listening.getsockname()[:2]
    return TCPStore(host, port, is_master=False, timeout=timedelta(seconds=LIMIT_S), wait_for_workers=False)


def hear(host: StoreHost, ready: Callable[[], bool]) -> bool:
    """Wait until `ready`. False if the host has ended first."""
    until = time.monotonic() + LIMIT_S
    while not ready():
        assert time.monotonic() < until
        select.select([host.orders], [], [], LIMIT_S)
        if not host.hear():
            return False
    return True


@pytest.fixture
def host(tmp_path: Path) -> Iterator[StoreHost]:
    found = store.start(dict(os.environ), tmp_path / "store.log")
    yield found
    found.forget()
    found.orders.close()
    os.waitpid(found.pid, 0)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["127.0.0.1", "::1", "localhost"])
def test_a_store_is_served_on_the_address_of_its_node(name: str, host: StoreHost) -> None:
    listening = listen(name, backlog=16)
    where = listening.getsockname()[:2]
    host.serve(socket.socket(fileno=os.dup(listening.fileno())))
    mine = client(listening)
    listening.close()
    mine.set("a", "1")
    assert hear(host, lambda: host.unserved is None), "no other process has its socket once it is served"
    other = TCPStore(where[0], where[1], is_master=False, timeout=timedelta(seconds=LIMIT_S), wait_for_workers=False)
    assert other.get("a") == b"1"


@pytest.mark.slow
def test_each_generation_has_a_separate_store(host: StoreHost) -> None:
    with listen("127.0.0.1") as first, listen("127.0.0.1") as second:
        host.serve(first.dup())
        old = client(first)
        old.set("a", "1")
        host.serve(second.dup())
        assert not client(second).check(["a"])
    with pytest.raises(RuntimeError):
        old.get("a")


@pytest.mark.slow
def test_a_store_waits_for_its_predecessor_on_the_same_socket(host: StoreHost) -> None:
    with listen("127.0.0.1") as listening:
        host.serve(listening.dup())
        old = client(listening)
        old.set("a", "1")
        host.serve(listening.dup())
        host.wait(LIMIT_S)
        assert (host.ordered, host.answered, host.unserved) == (2, 2, None)
        assert not client(listening).check(["a"])
    with pytest.raises(RuntimeError):
        old.get("a")


@pytest.mark.slow
def test_a_host_that_does_not_end_its_store_is_killed_and_replaced(tmp_path: Path, host: StoreHost) -> None:
    with listen("127.0.0.1") as listening:
        host.serve(listening.dup())
        host.wait(LIMIT_S)
        client(listening).set("a", "1")
        os.kill(host.pid, signal.SIGSTOP)
        host.serve(listening.dup())
        host.wait(0.0)
        assert not hear(host, lambda: False), "it has ended"
        assert host.unserved is not None
        other = store.start(dict(os.environ), tmp_path / "other.log")
        other.serve(host.unserved)
        assert not client(listening).check(["a"])
    other.orders.close()
    os.waitpid(other.pid, 0)


@pytest.mark.slow
def test_a_scheduler_that_signals_every_process_does_not_end_the_store(host: StoreHost) -> None:
    with listen("127.0.0.1") as listening:
        host.serve(listening.dup())
        mine = client(listening)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
        os.kill(host.pid, number)
    mine.set("a", "1")
    assert mine.get("a") == b"1"


@pytest.mark.slow
def test_the_next_host_can_serve_what_the_previous_had_not_begun_to_serve(tmp_path: Path, host: StoreHost) -> None:
    os.kill(host.pid, signal.SIGSTOP)
    other = store.start(dict(os.environ), tmp_path / "other.log")
    with listen("127.0.0.1") as listening:
        host.serve(listening.dup())
        assert host.unserved is not None
        other.serve(host.unserved)
        client(listening).set("a", "1")
    assert hear(other, lambda: other.unserved is None)
    os.kill(host.pid, signal.SIGKILL)
    other.orders.close()
    host.forget()
    os.waitpid(other.pid, 0)


# A process with torch loaded execs something else and leaves a host behind; it adopts orphans.
FORKS = """
import os, sys, time
from headway.runner.agent import store
from headway.runner.agent.processes import become_subreaper, children
import torch.distributed as dist
become_subreaper()
os.memfd_create("mine", 0)
if sys.argv[1] == "host":
    host = store.fork_host()
else:
    host, theirs = store.begin()
    if os.fork() == 0:
        store.fork_away(theirs, os.sched_getaffinity(0))
        os._exit(0)
    theirs.close()
    os.wait()
    host.hear()
assert children() == [host.pid], (children(), host.pid)
listening = __import__("socket").create_server(("127.0.0.1", 0))
host.serve(listening.dup())
a = dist.TCPStore(*listening.getsockname(), is_master=False, wait_for_workers=False)
a.set("a", "1")
assert os.getsid(host.pid) == host.pid
held = {}
for each in os.listdir(f"/proc/{host.pid}/fd"):
    try:
        held[each] = os.readlink(f"/proc/{host.pid}/fd/{each}")
    except FileNotFoundError:  # it opens and closes some while it begins to serve
        pass
assert [held[each] for each in "012"] == [os.devnull] * 3 and not any("mine" in what for what in held.values()), held
host.orders.close()
os.waitpid(host.pid, 0)
print("it has ended with its supervisor")
"""


@pytest.mark.slow
@pytest.mark.parametrize("how", ["host", "away"])
def test_a_forked_host_keeps_no_files_open_and_ends_with_its_supervisor(how: str) -> None:
    done = subprocess.run([sys.executable, "-c", FORKS, how], capture_output=True, text=True, check=False, timeout=LIMIT_S)
    assert done.stdout == "it has ended with its supervisor\n", done.stderr
