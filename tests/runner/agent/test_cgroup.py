"""Tests memory limits and out-of-memory kills as both versions of control groups report them."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from headway.runner.agent import cgroup

MEMINFO = "MemTotal:       32000000 kB\nMemAvailable:   16000000 kB\n"
FREE = 16_000_000 * 1024


@pytest.fixture
def system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A /sys/fs/cgroup and a /proc of a machine without control groups."""
    monkeypatch.setattr(cgroup, "ROOT", tmp_path / "cgroup")
    monkeypatch.setattr(cgroup, "PROC", tmp_path / "proc")
    write(tmp_path / "proc/meminfo", MEMINFO)
    write(tmp_path / "proc/self/cgroup", "")
    return tmp_path


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_without_control_groups_the_limit_is_the_machines_memory(system: Path) -> None:
    assert (cgroup.available_bytes(), cgroup.out_of_memory_kills()) == (FREE, 0)


def test_version_2_limits_and_kills_are_read(system: Path) -> None:
    write(system / "proc/self/cgroup", "0::/job/step\n")
    group = system / "cgroup/job/step"
    write(group / "memory.max", "8000000000\n")
    write(group / "memory.current", "7000000000\n")
    write(group / "memory.stat", "anon 5\ninactive_file 500000000\n")
    write(group / "memory.events", "low 0\noom 4\noom_kill 3\n")
    assert (cgroup.available_bytes(), cgroup.out_of_memory_kills()) == (1_500_000_000, 3)


def test_version_2_without_a_limit(system: Path) -> None:
    write(system / "proc/self/cgroup", "0::/\n")
    write(system / "cgroup/memory.max", "max\n")
    assert cgroup.available_bytes() == FREE


def test_version_1_limits_and_kills_are_read(system: Path) -> None:
    write(system / "proc/self/cgroup", "5:cpu:/a\n4:memory:/b\n0::/\n")
    group = system / "cgroup/memory/b"
    write(group / "memory.limit_in_bytes", "2000\n")
    write(group / "memory.usage_in_bytes", "1500\n")
    write(group / "memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n")
    assert (cgroup.available_bytes(), cgroup.out_of_memory_kills()) == (500, 2)


def test_a_container_that_sees_only_its_own_group_finds_it_at_the_root(system: Path) -> None:
    write(system / "proc/self/cgroup", "4:memory:/kubepods/pod1/container2\n")
    write(system / "cgroup/memory/memory.oom_control", "oom_kill 1\n")
    assert cgroup.out_of_memory_kills() == 1


@pytest.fixture
def small_group() -> Iterator[Path]:
    """A control group of this machine that may use 64 MiB."""
    folder = Path("/sys/fs/cgroup/memory") / f"headway-test-{os.getpid()}"
    try:
        folder.mkdir()
        (folder / "memory.limit_in_bytes").write_text(str(64 << 20))
    except OSError as error:
        pytest.skip(f"no memory control group of version 1 can be made here: {error}")
    yield folder
    folder.rmdir()


def test_the_kernel_counts_a_kill_before_the_parent_is_notified(small_group: Path) -> None:
    code = f"""
import os, signal
from pathlib import Path
from headway.runner.agent import cgroup
Path({str(small_group / "cgroup.procs")!r}).write_text(str(os.getpid()))
before = cgroup.out_of_memory_kills()
child = os.fork()
if child == 0:
    bytearray(256 << 20)
_, status = os.waitpid(child, 0)
print(cgroup.out_of_memory_kills() - before, os.waitstatus_to_exitcode(status), flush=True)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert done.stdout == f"1 {-signal.SIGKILL}\n", done.stderr
