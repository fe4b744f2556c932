"""Tests probes of real processes: where they wait, what they use, and that a probe changes nothing."""

import asyncio
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from headway.runner.agent import probe
from headway.runner.agent.processes import signal_main_thread
from headway.runner.contract import STACKS_SIGNAL
from headway.runner.health.watch import Probe

# What each worker does first; then it waits in `there`.
BEGIN = """
import faulthandler, os, queue, sys, threading, time
faulthandler.register(int(sys.argv[2]), file=open(sys.argv[1], "a"), all_threads=True)
def other():
    time.sleep(600)
threading.Thread(target=other, daemon=True).start()
def own_code():
    print("there", flush=True)
    {there}
own_code()
"""


@contextmanager
def process(there: str, stacks: Path) -> Iterator["subprocess.Popen[str]"]:
    """A process that waits in `there`."""
    argv = [sys.executable, "-c", BEGIN.replace("{there}", there), str(stacks), str(STACKS_SIGNAL)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as standing:
        try:
            assert standing.stdout is not None
            assert standing.stdout.readline() == "there\n"
            yield standing
        finally:
            standing.kill()


def look(pid: int, stacks: Path) -> Probe:
    def dump(ranks: Collection[int]) -> None:
        assert set(ranks) == {7}
        signal_main_thread(pid, STACKS_SIGNAL)

    return asyncio.run(probe.look({7: pid}, lambda _: stacks, dump))[7]


def until(ready: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not ready():
        assert time.monotonic() < deadline, "not within 30 s"
        time.sleep(0.01)


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A loaded machine may take longer to write a stack than a coordinator would wait."""
    monkeypatch.setattr(probe, "DUMP_S", 20.0)


def test_a_waiting_processs_main_thread_is_shown_innermost_first(tmp_path: Path) -> None:
    with process("queue.Queue().get()", tmp_path / "stacks") as standing:
        until(lambda: probe.waits_for_a_lock(standing.pid))
        seen = look(standing.pid, tmp_path / "stacks")
        assert standing.poll() is None
    assert [frame.rpartition(" ")[2] for frame in seen.stack] == ["wait", "get", "own_code", "<module>"]
    assert (seen.state, seen.where) == ("S", "data")
    assert "other" in (tmp_path / "stacks").read_text(), "all threads stay in the evidence"


@pytest.mark.parametrize(("other", "locked"), [("threading.Event().wait()", True), ("time.sleep(600)", False)])
def test_a_lock_that_another_thread_may_release_is_not_a_deadlock(
    other: str, locked: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A loop that waits for its uploader is not a deadlock, however quiet the uploader is."""
    monkeypatch.setitem(globals(), "BEGIN", BEGIN.replace("time.sleep(600)", other))
    with process("queue.SimpleQueue().get()", tmp_path / "stacks") as standing:
        until(lambda: probe.waits_for_a_lock(standing.pid))
        seen = look(standing.pid, tmp_path / "stacks")
    assert (seen.waits_on or "").startswith("futex") is locked


@pytest.mark.parametrize("there", ["time.sleep(600)", "signal.pause()", "signal.sigtimedwait([signal.SIGUSR1], 600)"])
def test_a_wait_that_a_signal_would_interrupt_is_not_signalled(there: str, tmp_path: Path) -> None:
    """Torchrun sends no signal either, and no such wait proves a hang."""
    asked: list[Collection[int]] = []
    with process(f"import signal; {there}", tmp_path / "stacks") as standing:
        until(lambda: re.search("nanosleep|pause|sigtimedwait", Path(f"/proc/{standing.pid}/wchan").read_text()) is not None)
        seen = asyncio.run(probe.look({7: standing.pid}, lambda _: tmp_path / "stacks", asked.append))[7]
        assert standing.poll() is None
    assert asked == []
    assert seen.state == "S"


def test_oversized_stack_files_are_truncated_at_the_next_probe(tmp_path: Path) -> None:
    with process("queue.Queue().get()", tmp_path / "stacks") as standing:
        until(lambda: probe.waits_for_a_lock(standing.pid))
        (tmp_path / "stacks").write_text("x" * probe.STACKS_BYTES)
        seen = look(standing.pid, tmp_path / "stacks")
    assert seen.where == "data"
    assert not (tmp_path / "stacks").read_text().startswith("x")


def test_a_computing_process_is_not_signalled_and_its_cpu_time_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Without py-spy, which may be installed.
    monkeypatch.setenv("PATH", "")
    with process("\n    while True: pass", tmp_path / "stacks") as standing:
        before = look(standing.pid, tmp_path / "stacks")
        until(lambda: probe.usage(standing.pid)[0] >= before.cpu_s + 0.1)
        after = look(standing.pid, tmp_path / "stacks")
    assert (before.state, after.state) == ("R", "R")
    assert (tmp_path / "stacks").read_text() == "", "faulthandler may meet a frame that has just been freed"
    assert after.cpu_s >= before.cpu_s + 0.1


def test_a_stopped_process_is_reported_as_stopped_and_stays_stopped(tmp_path: Path) -> None:
    with process("time.sleep(600)", tmp_path / "stacks") as standing:
        standing.send_signal(signal.SIGSTOP)
        until(lambda: probe.state(standing.pid) == "T")
        seen = look(standing.pid, tmp_path / "stacks")
        assert (seen.state, probe.state(standing.pid)) == ("T", "T")


def test_a_process_without_a_handler_is_not_signalled(tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "600"]) as standing:
        assert not signal_main_thread(standing.pid, STACKS_SIGNAL)
        seen = look(standing.pid, tmp_path / "stacks")
        assert standing.poll() is None, "the default action of a real-time signal is to end the process"
        standing.kill()
    assert (seen.stack, seen.where) == ((), None)


def test_a_process_that_has_ended_is_reported_as_gone(tmp_path: Path) -> None:
    with subprocess.Popen(["true"]) as gone:
        gone.wait()
    assert look(gone.pid, tmp_path / "stacks") == Probe("X", 0.0, 0)


def test_cpu_time_of_children_counts_for_their_process(tmp_path: Path) -> None:
    there = "import subprocess; subprocess.run(['sh', '-c', 'i=0; while :; do i=$((i+1)); done'])"
    with process(there, tmp_path / "stacks") as standing:
        until(lambda: len(probe.below(standing.pid)) == 1)
        (child,) = probe.below(standing.pid)
        until(lambda: probe.usage(child)[0] >= 0.2)
        assert probe.usage(standing.pid)[0] >= 0.2
        os.kill(child, signal.SIGKILL)


def test_reading_counts_as_io(tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(b"x" * 3_000_000)
    with process(f"open({str(tmp_path / 'data')!r}, 'rb').read(); time.sleep(600)", tmp_path / "stacks") as standing:
        until(lambda: probe.usage(standing.pid)[1] >= 3_000_000)


SITE = "/venv/lib/python3.11/site-packages"


@pytest.mark.parametrize(
    ("stack", "where"),
    [
        ((f"{SITE}/torch/distributed/distributed_c10d.py:3000 all_reduce", "/home/me/train.py:7 step"), "collective"),
        ((f"{SITE}/torch/autograd/graph.py:979 _engine_run_backward", f"{SITE}/torch/_tensor.py:6 backward"), "collective"),
        ((f"{SITE}/torch/utils/data/dataloader.py:1 _next_data", "/home/me/train.py:7 step"), "data"),
        (
            ("/usr/lib/python3.11/threading.py:327 wait", "/usr/lib/python3.11/queue.py:171 get", "/home/me/train.py:7 step"),
            "data",
        ),
        ((f"{SITE}/torch/_inductor/codecache.py:1 compile", "/home/me/train.py:7 step"), "compile"),
        ((f"{SITE}/torch/serialization.py:900 _save", f"{SITE}/torch/serialization.py:800 save"), "save"),
        ((f"{SITE}/torch/serialization.py:1400 load", "/home/me/train.py:7 resume"), "restore"),
        ((f"{SITE}/torch/distributed/checkpoint/filesystem.py:9 write_data", "/home/me/train.py:7 step"), "save"),
        (
            (f"{SITE}/torch/distributed/distributed_c10d.py:3 gather", f"{SITE}/torch/distributed/checkpoint/utils.py:1 x"),
            "collective",
        ),
        (("/home/me/train.py:7 step", f"{SITE}/torch/utils/data/dataloader.py:1 _next_data"), None),
        ((f"{SITE}/torch/nn/modules/linear.py:134 forward", "/home/me/train.py:7 step"), None),
        ((), None),
    ],
)
def test_a_stack_is_classified_by_its_innermost_known_frame(stack: tuple[str, ...], where: str | None) -> None:
    assert probe.where(stack) == where


def test_a_half_written_dump_is_not_a_stack() -> None:
    assert probe.main_thread('Thread 0x1 (most recent call first):\n  File "a.py", line 3 in f\n') == ()
    assert probe.main_thread('Current thread 0x1 (most recent call first):\n  File "a b.py", line 3 in f\n\n') == ("a b.py:3 f",)


def test_the_main_thread_is_found_in_py_spys_output() -> None:
    text = """Process 1: python train.py
Python v3.11.7 (/usr/bin/python3.11)

Thread 9 (idle): "worker"
    wait (threading.py:320)
Thread 1 (idle): "MainThread"
    all_reduce (torch/distributed/distributed_c10d.py:3000)
    <module> (train.py:7)
"""
    assert probe.py_spy_main_thread(text) == ("torch/distributed/distributed_c10d.py:3000 all_reduce", "train.py:7 <module>")
