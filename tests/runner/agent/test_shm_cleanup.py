"""Tests the removal of shared memory that dead workers leave: only their own, and only if no process has it open."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headway.runner.agent import shm_cleanup

# Opens or maps the named files, reports it, and waits for the end of its input.
HOLDER = """
import mmap, os, sys
how, *paths = sys.argv[1:]
kept = [open(path, "r+b") for path in paths]
if how == "mapped":
    kept = [mmap.mmap(file.fileno(), 0) for file in kept]
if how == "child" and os.fork():
    kept.clear()
else:
    print("there", flush=True)
sys.stdin.read()
"""
Hold = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def shared_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Replaces /dev/shm: a separate directory in the same kind of file system, where no other test has files."""
    monkeypatch.setattr(shm_cleanup, "SHARED_MEMORY", tmp_path)
    for name in ("nccl-a", "torch_7_8_9", "other"):
        (tmp_path / name).write_bytes(b"x" * 4096)
    return tmp_path


@pytest.fixture
def hold(shared_memory: Path) -> Iterator[Hold]:
    started = []

    def start(how: str, *names: str) -> "subprocess.Popen[str]":
        argv = [sys.executable, "-c", HOLDER, how, *(str(shared_memory / name) for name in names)]
        started.append(subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
        assert started[-1].stdout is not None
        assert started[-1].stdout.readline() == "there\n"
        return started[-1]

    yield start
    for process in started:
        end(process)


def end(process: "subprocess.Popen[str]") -> None:
    # The process and its child wait for the end of this input.
    process.communicate()


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


@pytest.mark.parametrize("how", ["open", "mapped", "child"])
def test_shared_memory_of_a_dead_worker_is_removed(how: str, hold: Hold, shared_memory: Path) -> None:
    worker = hold(how, "nccl-a", "torch_7_8_9")
    theirs = shm_cleanup.shared_memory_of([worker.pid])
    end(worker)
    assert shm_cleanup.remove_unused(theirs) == ["nccl-a", "torch_7_8_9"]
    assert names(shared_memory) == {"other"}


@pytest.mark.parametrize("how", ["open", "mapped"])
def test_shared_memory_that_a_living_process_has_open_is_kept(how: str, hold: Hold, shared_memory: Path) -> None:
    worker = hold("open", "nccl-a", "torch_7_8_9")
    theirs = shm_cleanup.shared_memory_of([worker.pid])
    hold(how, "torch_7_8_9")
    end(worker)
    assert shm_cleanup.remove_unused(theirs) == ["nccl-a"]
    assert names(shared_memory) == {"torch_7_8_9", "other"}


# A killed process leaves names that its library generated; a name that a person chose may be in use.
GIVEN = [
    "torch_1234_567890123_0",
    "nccl-Xy12Zw",
    "psm_0a1b2c3d",
    "sem.mp-a1b2c3",
    "cuda.shm.0.4d2.1",
    "__KMP_REGISTERED_LIB_12_0",
]
OWN = ["train.bin", "torch_dataset.pt", "torch_model_7", "psm_shared_cache", "nccl.conf", "my-nccl-a", "sem.of-mine", "dataset"]


def test_only_names_that_libraries_generate_are_removed(hold: Hold, shared_memory: Path) -> None:
    for name in (*GIVEN, *OWN):
        (shared_memory / name).write_bytes(b"x")
    worker = hold("open", *GIVEN, *OWN)
    theirs = shm_cleanup.shared_memory_of([worker.pid])
    end(worker)
    assert shm_cleanup.remove_unused(theirs) == sorted(GIVEN)
    assert names(shared_memory) >= set(OWN)


def test_a_recreated_file_of_the_same_name_is_kept(hold: Hold, shared_memory: Path) -> None:
    worker = hold("open", "nccl-a")
    theirs = shm_cleanup.shared_memory_of([worker.pid])
    kept = (shared_memory / "nccl-a").rename(shared_memory.parent / "elsewhere")  # so that its inode is not reused
    (shared_memory / "nccl-a").write_bytes(b"of somebody else")
    end(worker)
    assert shm_cleanup.remove_unused(theirs) == []
    assert kept.exists()
    assert names(shared_memory) == {"nccl-a", "torch_7_8_9", "other"}


def test_files_of_another_user_are_ignored(hold: Hold, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = hold("open", "nccl-a")
    another = os.getuid() + 1
    monkeypatch.setattr(os, "getuid", lambda: another)
    assert shm_cleanup.shared_memory_of([worker.pid]) == set()


def test_without_leftovers_nothing_is_removed(shared_memory: Path) -> None:
    assert shm_cleanup.remove_unused(set()) == []
    assert shm_cleanup.shared_memory_of([os.getpid(), 2**22 + 1]) == set()
    assert names(shared_memory) == {"nccl-a", "torch_7_8_9", "other"}
