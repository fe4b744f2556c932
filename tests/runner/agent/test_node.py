"""Tests the process of a node before and after its supervisor: its name, an early signal, and its exit code."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from headway.runner.__main__ import await_own_name, own_host
from headway.runner.contract import Exit, Mesh, RunConfig, RunDirectory, Trainer, Verdict, to_json
from headway.runner.posix import write_atomic
from headway.runner.rundir import open_run

CONFIG = RunConfig(slots=1, procs_per_slot=1, mesh=Mesh(), trainer=Trainer("builtin"), spec_hash="ab", steps=10)
# An address in TEST-NET-1 (RFC 5737), which no machine has, as a pod's name may still resolve to another pod's.
ELSEWHERE = "192.0.2.1"


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_a_nodes_own_name_resolves_at_once(host: str) -> None:
    assert await_own_name(host, 0) == ""


def test_a_name_that_resolves_elsewhere_is_retried_and_then_reported() -> None:
    wrong = await_own_name(ELSEWHERE, 0.3)
    assert wrong.startswith(f"after 0 s `{ELSEWHERE}` does not resolve to this machine: ")


@pytest.fixture
def directory(tmp_path: Path) -> RunDirectory:
    return open_run(tmp_path, "case-0123abcd-1", CONFIG, 0)


def start(directory: RunDirectory, host: str) -> "subprocess.Popen[str]":
    argv = [sys.executable, "-m", "headway.runner", str(directory.run_json), "--attempt", "0"]
    environment = {**os.environ, "HEADWAY_NODES": host}
    return subprocess.Popen(argv, env=environment, stderr=subprocess.PIPE, text=True)


@pytest.mark.slow
def test_a_signal_while_waiting_for_the_name_ends_as_a_requested_stop(directory: RunDirectory) -> None:
    with start(directory, ELSEWHERE) as process:
        until = time.monotonic() + 60
        while not catches(process.pid, signal.SIGTERM):
            assert time.monotonic() < until
            time.sleep(0.02)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == Exit.PREEMPTED


def catches(pid: int, number: signal.Signals) -> bool:
    """Whether the process has a handler for the signal (proc(5), SigCgt)."""
    (mask,) = [line.split()[1] for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("SigCgt:")]
    return bool(int(mask, 16) >> (number - 1) & 1)


# Every Python process of the node imports this at its start: its agent exits at once, and the first agent writes the verdict.
NO_AGENT = """
import os, sys
if "headway.runner.agent.main" in sys.orig_argv:
    if os.path.exists({decided!r}):
        os.replace({decided!r}, {verdict!r})
    os._exit(1)
"""
VERDICT = Verdict("case-0123abcd-1", 0, 1, "unverified", "decided before", int(Exit.UNVERIFIED))


@pytest.mark.slow
def test_a_node_exits_with_the_verdicts_code_even_if_its_agent_failed(
    directory: RunDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    decided = tmp_path / "decided"
    decided.write_text(to_json(VERDICT))
    (tmp_path / "sitecustomize.py").write_text(NO_AGENT.format(decided=str(decided), verdict=str(directory.verdict)))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with start(directory, "127.0.0.1") as process:
        said = process.communicate(timeout=60)[1]
    assert "headway.runner.agent.main: exit code 1, restart 21" in said, "which by itself ends with 81"
    assert process.returncode == Exit.UNVERIFIED


@pytest.mark.slow
def test_a_node_that_joins_after_the_verdict_starts_nothing(directory: RunDirectory) -> None:
    write_atomic(directory.verdict, to_json(VERDICT).encode())
    with start(directory, "127.0.0.1") as process:
        assert process.communicate(timeout=60)[1] == ""
    assert process.returncode == Exit.UNVERIFIED
    assert not directory.node(0).exists()


@pytest.mark.parametrize(
    ("node", "environment", "expected"),
    [
        (0, {}, ("127.0.0.1", "")),
        (2, {"HEADWAY_NODES": "a,b,spare"}, ("spare", "")),
        (7, {"HEADWAY_HOST": "late"}, ("late", "")),
        (0, {"HEADWAY_NODES": "a"}, ("", "2 nodes are needed, but HEADWAY_NODES lists 1")),
        (3, {"HEADWAY_NODES": "a,b,c"}, ("", "this is node 3, but HEADWAY_NODES lists 3, counted from 0")),
    ],
)
def test_a_node_finds_its_host_in_the_schedulers_variables(
    node: int, environment: dict[str, str], expected: tuple[str, str]
) -> None:
    assert own_host(node, 1 if not environment else 2, environment) == expected
