"""Tests running a script as `python` runs it, and the steps before its first line."""

import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from headway.runner.boot.script import run_script
from headway.runner.boot.shares import TooLongError, at_most
from headway.runner.contract import HeartbeatPage
from headway.runner.start import START


def test_a_script_has_an_absolute_file_path_and_its_arguments_unchanged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("argv", sys.argv), ("path", [*sys.path])):
        monkeypatch.setattr(sys, name, value)
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])
    monkeypatch.chdir(tmp_path)
    (tmp_path / "of").mkdir()
    (tmp_path / "of/train.py").write_text(
        "import sys\nfound = __file__, sys.argv, sys.path[0], (lambda: 0).__code__.co_filename\n"
    )
    run_script(["of/train.py", "--lr=1"])
    file = str(tmp_path / "of/train.py")
    assert sys.modules["__main__"].found == (file, ["of/train.py", "--lr=1"], str(tmp_path / "of"), file)


def test_a_call_beyond_its_time_limit_ends_and_the_scripts_alarm_is_kept() -> None:
    before = signal.getsignal(signal.SIGALRM)
    with pytest.raises(TooLongError), at_most(0.001):
        threading.Event().wait()
    assert (signal.getsignal(signal.SIGALRM), signal.getitimer(signal.ITIMER_REAL)) == (before, (0.0, 0.0))


_COLLECTS = """
import gc, weakref
class Ring: pass
ring = Ring(); ring.itself = ring
seen = weakref.ref(ring)
del ring
gc.collect()
print(gc.isenabled(), gc.get_freeze_count() > 10_000, seen() is None)
"""


def test_garbage_collection_skips_imports_but_not_the_scripts_objects(tmp_path: Path) -> None:
    script, page = tmp_path / "script.py", os.memfd_create("heartbeat")
    script.write_text(_COLLECTS)
    os.ftruncate(page, HeartbeatPage.bytes_for(1))
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    with ours, theirs:
        own: dict[str, object] = {
            "HEARTBEAT_FD": page,
            "EVENTS_FD": theirs.fileno(),
            "GENERATION": 1,
            "ATTEMPT": 0,
        }
        own |= {"BASE": "null", "RUN_JSON": tmp_path / "attempts/0/run.json"}
        torchruns: dict[str, object] = {
            "RANK": 0,
            "LOCAL_RANK": 0,
            "WORLD_SIZE": 1,
            "LOCAL_WORLD_SIZE": 1,
            "MASTER_ADDR": "127.0.0.1",
        }
        torchruns |= {"MASTER_PORT": 1}
        named = {**torchruns, **{f"HEADWAY_{name}": value for name, value in own.items()}}
        ran = subprocess.run(
            [sys.executable, START, "headway.runner.boot", str(script)],
            env={**os.environ, **{name: str(value) for name, value in named.items()}},
            pass_fds=[page, theirs.fileno()],
            capture_output=True,
            text=True,
            check=False,
        )
    os.close(page)
    assert (ran.stdout, ran.returncode) == ("True True True\n", 0), ran.stderr
