"""Tests spawned processes: their session and output, how their exit is described, and that none outlives its starter."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from headway.runner.agent.processes import describe_status, kill_group, spawn, state_of

PARENT = """
import sys, time
from pathlib import Path
from headway.runner.agent.processes import spawn
child = spawn([sys.executable, "-c", "import time; print('up', flush=True); time.sleep(600)"], {}, log=Path(sys.argv[1]))
print(child, flush=True)
time.sleep(600)
"""


def finish(pid: int) -> str:
    return describe_status(os.waitpid(pid, 0)[1])


def run_python(code: str, log: Path, **environment: str) -> str:
    """Spawn Python with `code` and return how it ended. Its output is in `log`."""
    return finish(spawn([sys.executable, "-c", code], environment, log=log, errors=log))


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline, "the condition has not come true within 30 s"
        time.sleep(0.01)


def gone(pid: int) -> bool:
    """Whether there is no such process, or only a zombie that waits to be reaped by init."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except FileNotFoundError:
        return True


def test_a_child_leads_a_separate_session(tmp_path: Path) -> None:
    log = tmp_path / "log"
    pid = spawn([sys.executable, "-c", "import os; print(os.getpid(), os.getsid(0), os.getpgid(0))"], {}, log=log, errors=log)
    assert finish(pid) == "exit code 0"
    assert log.read_text() == f"{pid} {pid} {pid}\n"
    assert os.getsid(0) != pid


def test_both_streams_are_appended_to_the_log_and_its_folder_is_created(tmp_path: Path) -> None:
    log = tmp_path / "logs" / "0" / "1.log"
    for _ in range(2):
        run_python("import sys; print('out', flush=True); print('err', file=sys.stderr)", log)
    assert log.read_text() == "out\nerr\n" * 2


def test_a_child_has_only_the_given_environment_and_an_empty_stdin(tmp_path: Path) -> None:
    log = tmp_path / "log"
    code = "import os, sys; print(os.environ.get('HEADWAY_TEST'), 'HOME' in os.environ, repr(sys.stdin.read()))"
    assert run_python(code, log, HEADWAY_TEST="yes") == "exit code 0"
    assert log.read_text() == "yes False ''\n"


def test_only_the_given_descriptors_are_inherited(tmp_path: Path) -> None:
    read, write = os.pipe2(os.O_CLOEXEC)
    log = tmp_path / "log"
    code = f"import os; os.write({write}, b'hello')\ntry: os.fstat({read})\nexcept OSError: print('closed')"
    pid = spawn([sys.executable, "-c", code], {}, pass_fds=[write], log=log, errors=log)
    assert finish(pid) == "exit code 0"
    assert os.read(read, 10) == b"hello"
    assert log.read_text() == "closed\n"
    os.close(read)
    os.close(write)


def test_a_child_starts_with_default_signal_handlers(tmp_path: Path) -> None:
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        code = "import os, signal; os.kill(os.getpid(), signal.SIGTERM)"
        assert run_python(code, tmp_path / "log") == "killed by SIGTERM"
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_program_that_cannot_start_is_reported_in_its_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert finish(spawn(["/no/such/program"], {}, log=log, errors=log)) == "exit code 127"
    assert log.read_text().startswith("cannot start /no/such/program: ")


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("", "exit code 0"),
        ("raise SystemExit(82)", "exit code 82"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "killed by SIGKILL"),
        ("import os; os.abort()", "killed by SIGABRT"),
    ],
    ids=["0", "82", "SIGKILL", "SIGABRT"],
)
def test_an_exit_status_is_described_in_words(code: str, words: str, tmp_path: Path) -> None:
    assert run_python(code, tmp_path / "log") == words


def test_a_processs_state_is_its_letter_until_it_has_ended(tmp_path: Path) -> None:
    pid = spawn([sys.executable, "-c", "import time; time.sleep(600)"], {}, log=tmp_path / "log")
    os.kill(pid, signal.SIGSTOP)
    until(lambda: state_of(pid) == "T")
    os.kill(pid, signal.SIGKILL)
    until(lambda: state_of(pid) == "Z")
    finish(pid)
    assert state_of(pid) == ""


def test_a_group_is_killed_including_grandchildren(tmp_path: Path) -> None:
    log = tmp_path / "log"
    code = "import os, time\nprint(os.fork(), flush=True)\ntime.sleep(600)"
    pid = spawn([sys.executable, "-c", code], {}, log=log, errors=log)
    until(lambda: log.exists() and len(log.read_text().split()) == 2)
    grandchild = max(map(int, log.read_text().split()))
    kill_group(pid, signal.SIGKILL)
    assert finish(pid) == "killed by SIGKILL"
    until(lambda: gone(grandchild))
    # No process is left, which is not an error.
    kill_group(pid, signal.SIGKILL)


def test_a_child_dies_with_its_killed_parent(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with subprocess.Popen([sys.executable, "-c", PARENT, str(log)], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        until(lambda: log.exists() and log.read_text() == "up\n")
        assert not gone(child)
        parent.kill()
    until(lambda: gone(child))


DEAF = """
import ctypes, signal, time
from headway.runner.agent.processes import fall_with_parent
signal.signal(signal.SIGTERM, lambda *_: print("asked", flush=True))
{asked}
fall_with_parent()
print("up", flush=True)
while True:
    time.sleep(600)
"""
ASK = "ctypes.CDLL(None).prctl(1, signal.SIGTERM, 0, 0, 0)"


@pytest.mark.parametrize("asked", [True, False], ids=["parent-death-signal", "without-it"])
def test_only_a_child_with_a_parent_death_signal_dies_with_its_parent(asked: bool, tmp_path: Path) -> None:
    log = tmp_path / "log"
    parent = (
        "import subprocess, sys, time\n"
        f"child = subprocess.Popen([sys.executable, '-c', {DEAF.format(asked=ASK if asked else '')!r}], stdout=open(sys.argv[1], 'w'))\n"
        "print(child.pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    with subprocess.Popen([sys.executable, "-c", parent, str(log)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        until(lambda: log.exists() and log.read_text() == "up\n")
        process.kill()
    if asked:
        until(lambda: gone(child))
        assert log.read_text() == "up\n"
    else:
        assert not gone(child)
        os.kill(child, signal.SIGKILL)
