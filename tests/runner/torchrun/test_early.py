"""Tests workers that start before the command line is parsed: the right number, and none left if the guess was wrong."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from headway.runner.agent import warm
from headway.runner.agent.processes import describe_status
from headway.runner.torchrun import early


@pytest.mark.parametrize(
    ("argv", "environment", "procs"),
    [
        (["train.py"], {}, 1),
        (["--nproc-per-node", "2", "train.py"], {}, 2),
        (["--nproc_per_node=4", "train.py"], {"PET_NPROC_PER_NODE": "8"}, 4),
        (["--nproc", "3", "train.py", "--nproc", "9"], {}, 3),
        (["train.py"], {"PET_NPROC_PER_NODE": "8"}, 8),
        (["--nproc-per-node=cpu", "train.py"], {}, 0),
        (["--nproc-per-node"], {}, 0),
    ],
)
def test_the_guess_equals_the_parsed_command_line(argv: list[str], environment: dict[str, str], procs: int) -> None:
    assert early.guessed_procs(argv, environment) == procs


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["train.py", "-x"], ["train.py", "-x"]),
        (["--nproc-per-node", "2", "--standalone", "train.py", "a"], ["train.py", "a"]),
        (["--nproc_per_node=2", "--max-restarts", "0", "-m", "pkg.train", "--lr", "1"], ["-m", "pkg.train", "--lr", "1"]),
        (["--mod", "--rdzv-id", "5", "pkg"], ["-m", "pkg"]),
        (["--stand", "-r", "3", "train.py"], ["train.py"]),
        (["--nnodes", "2"], ["-m"]),
    ],
    ids=" ".join,
)
def test_the_script_is_the_first_word_that_does_not_belong_to_a_flag(argv: list[str], words: list[str]) -> None:
    assert early.script_words(argv) == words


@pytest.mark.parametrize("flag", ["--no-python", "--virtual-local-rank", "--numa-binding=node", "--help"])
def test_nothing_is_started_early_if_workers_start_differently(flag: str) -> None:
    assert early.begin([flag, "train.py"], os.environ) == early.Begun({})


@pytest.mark.slow
def test_matching_workers_are_passed_on_by_pid_and_descriptor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warm, "ALWAYS", ())
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    begun = early.begin(["--nproc-per-node=2", "train.py"], {**os.environ, "HEADWAY_SECRET": "to be kept"})
    pids = [standby.pid for standby in begun.standbys.values()]
    assert not any(b"to be kept" in Path(f"/proc/{pid}/environ").read_bytes() for pid in pids)
    said = begun.pass_on(2, {**os.environ, "OMP_NUM_THREADS": "1"}, are_ours=True)
    assert said is not None
    for standby in begun.standbys.values():
        standby.orders.detach()
    taken = warm.take_on(said, {})
    assert [(rank, each.pid, each.first, each.ready) for rank, each in taken.items()] == [
        (rank, pid, True, False) for rank, pid in enumerate(pids)
    ]
    for standby in taken.values():
        assert not standby.orders.get_inheritable()
        standby.orders.close()
    assert [describe_status(os.waitpid(pid, 0)[1]) for pid in pids] == ["exit code 0"] * 2


@pytest.mark.parametrize(
    ("procs", "more", "are_ours"),
    [(1, {}, True), (2, {"OMP_NUM_THREADS": "4"}, True), (2, {"HEADWAY_CPUS": "{}"}, True), (2, {}, False)],
    ids=["fewer-workers", "other-threads", "bound", "another-program"],
)
def test_mismatching_workers_are_ended(procs: int, more: dict[str, str], are_ours: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warm, "ALWAYS", ())
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    begun = early.begin(["--nproc-per-node=2", "train.py"], os.environ)
    assert begun.pass_on(procs, {**os.environ, "OMP_NUM_THREADS": "1", **more}, are_ours=are_ours) is None
    assert [describe_status(os.waitpid(each.pid, 0)[1]) for each in begun.standbys.values()] == ["killed by SIGKILL"] * 2
    for standby in begun.standbys.values():
        standby.orders.close()


def test_the_launcher_starts_workers_before_it_imports_torch() -> None:
    """Otherwise they would wait for its parser, and it would no longer be single-threaded when it forks."""
    program = "import sys, headway.runner.torchrun.early; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_descriptors_passed_through_exec_are_not_inherited_further() -> None:
    """A process that a script leaves behind would hold the endpoint's name, where the next command is to be hosted."""
    code = (
        "import os; from headway.runner.__main__ import keep_what_was_passed_on as keep; keep(); "
        "print([os.get_inheritable(each) for each in (0, 1, 2, int(os.environ['PASSED']))])"
    )
    with socket.socket(socket.AF_UNIX) as guard:
        environment = {**os.environ, "PASSED": str(guard.fileno())}
        command = [sys.executable, "-c", code]
        done = subprocess.run(command, pass_fds=[guard.fileno()], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "[True, True, True, False]\n"
