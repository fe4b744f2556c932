"""Tests the process that serves a generation's rendezvous store: it obeys its orders, whichever process it was forked from."""

import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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


@contextmanager
def started(folder: Path) -> Iterator[StoreHost]:
    found = store.start(dict(os.environ), folder / "store.log")
    try:
        yield found
    finally:
        found.forget()
        found.orders.close()
        os.waitpid(found.pid, 0)


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StoreHost]:
    """A host for one test after another: each start imports torch."""
    with started(tmp_path_factory.mktemp("host")) as found:
        yield found


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
    host.wait(LIMIT_S)
    before = host.ordered
    with listen("127.0.0.1") as listening:
        host.serve(listening.dup())
        old = client(listening)
        old.set("a", "1")
        host.serve(listening.dup())
        host.wait(LIMIT_S)
        assert (host.ordered, host.answered, host.unserved) == (before + 2, before + 2, None)
        assert not client(listening).check(["a"])
    with pytest.raises(RuntimeError):
        old.get("a")


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
def test_a_host_that_does_not_end_its_store_is_killed_and_replaced(tmp_path: Path) -> None:
    with started(tmp_path) as other:
        failed = store.start(dict(os.environ), tmp_path / "failed.log")
        with listen("127.0.0.1") as listening:
            failed.serve(listening.dup())
            failed.wait(LIMIT_S)
            client(listening).set("a", "1")
            os.kill(failed.pid, signal.SIGSTOP)
            failed.serve(listening.dup())
            failed.wait(0.0)
            assert not hear(failed, lambda: False), "it has ended"
            assert failed.unserved is not None
            other.serve(failed.unserved)
            assert not client(listening).check(["a"])
        failed.orders.close()
        os.waitpid(failed.pid, 0)
        # The next one has not begun to serve when it stops.
        stopped = store.start(dict(os.environ), tmp_path / "stopped.log")
        os.kill(stopped.pid, signal.SIGSTOP)
        with listen("127.0.0.1") as listening:
            stopped.serve(listening.dup())
            assert stopped.unserved is not None
            other.serve(stopped.unserved)
            client(listening).set("a", "1")
        assert hear(other, lambda: other.unserved is None)
        os.kill(stopped.pid, signal.SIGKILL)
        stopped.orders.close()
        os.waitpid(stopped.pid, 0)


# A process with torch loaded execs something else and leaves a host behind; it adopts orphans.
FORKS = """
import os, sys, time
from headway.runner.agent import store
from headway.runner.agent.processes import become_subreaper, children
import torch.distributed as dist
become_subreaper()
os.memfd_create("mine", 0)
for how in ("host", "away"):
    if how == "host":
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
    del a
    print(how, "has ended with its supervisor", flush=True)
"""


@pytest.mark.slow
def test_a_forked_host_keeps_no_files_open_and_ends_with_its_supervisor() -> None:
    done = subprocess.run([sys.executable, "-c", FORKS], capture_output=True, text=True, check=False, timeout=LIMIT_S)
    assert done.stdout == "host has ended with its supervisor\naway has ended with its supervisor\n", done.stderr
