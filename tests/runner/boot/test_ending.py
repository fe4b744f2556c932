"""Tests that a script ends under boot as under `python`: the same output on both streams, the same exit code and files."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from headway.runner.contract import HeartbeatPage
from headway.runner.start import START

LIMIT_S = 120
Sockets = tuple[socket.socket, socket.socket]


@dataclass(frozen=True)
class Ended:
    """The output and the exit code of a process."""

    code: int
    out: str
    err: str


@pytest.fixture
def events() -> Iterator[Sockets]:
    """The supervisor's end and the worker's end."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    with ours, theirs:
        yield ours, theirs


def plain(folder: Path, *words: str) -> Ended:
    """Run the script as torchrun starts it."""
    return run([sys.executable, "-u", *words], folder, dict(os.environ))


def under_boot(folder: Path, events: Sockets, *words: str) -> Ended:
    page, theirs = os.memfd_create("heartbeat"), events[1].fileno()
    os.ftruncate(page, HeartbeatPage.bytes_for(1))
    own = {"HEARTBEAT_FD": page, "EVENTS_FD": theirs, "GENERATION": 1, "ATTEMPT": 0, "BASE": "null"}
    place = {"RANK": 0, "LOCAL_RANK": 0, "WORLD_SIZE": 1, "LOCAL_WORLD_SIZE": 1, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": 1}
    named = {**place, "HEADWAY_RUN_JSON": folder / "run.json", **{f"HEADWAY_{name}": value for name, value in own.items()}}
    environment = {**os.environ, **{name: str(value) for name, value in named.items()}}
    try:
        return run([sys.executable, "-u", START, "headway.runner.boot", *words], folder, environment, page, theirs)
    finally:
        os.close(page)


def run(argv: list[str], folder: Path, environment: dict[str, str], *descriptors: int) -> Ended:
    streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    place = {"cwd": folder, "env": environment, "pass_fds": descriptors}
    done = subprocess.run(argv, **streams, **place, text=True, check=False, timeout=LIMIT_S)  # type: ignore[call-overload]
    return Ended(done.returncode, *(re.sub("0x[0-9a-f]+", "0x", text) for text in (done.stdout, done.stderr)))


ENDINGS = {
    "raises": "def deep(): raise ValueError('no such layer')\ndeep()",
    "raises-from": "try:\n    1 / 0\nexcept ZeroDivisionError as error:\n    raise RuntimeError('x') from error",
    "raises-within": "try:\n    {}['a']\nexcept KeyError:\n    raise OSError(5, 'within')",
    "raises-with-notes": "error = ValueError('x')\nerror.add_note('a note')\nraise error",
    "raises-a-group": "raise ExceptionGroup('both', [ValueError(1), TypeError('two')])",
    "raises-in-a-thread": "import threading\nt = threading.Thread(target=lambda: 1 / 0, name='t')\nt.start(); t.join(); print('on')",
    "does-not-compile": "x = (\n",
    "exits": "import sys\nsys.exit()",
    "exits-with-a-number": "import sys\nsys.exit(3)",
    "exits-with-a-text": "import sys\nsys.exit('no data')",
    "exits-with-none": "raise SystemExit(None)",
    "exits-with-anything": "raise SystemExit((1, 'two'))",
    "exits-with-much": "raise SystemExit(256 + 7)",
    "is-interrupted": "raise KeyboardInterrupt",
    "interrupts-itself": "import os, signal, time\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(60)",
    "is-killed": "import os, signal\nos.kill(os.getpid(), signal.SIGTERM)",
    "leaves-at-once": "import os\nos._exit(4)",
    "has-a-hook": "import sys\nsys.excepthook = lambda kind, error, trace: print('hook', kind, trace.tb_lineno, trace.tb_next)\n1 / 0",
    "has-no-hook": "import sys\ndel sys.excepthook\nsys.exit(5)",
    "has-exit-hooks": "import atexit, __main__\nfor i in range(3): atexit.register(print, i)\n"
    "atexit.register(lambda: print(hasattr(__main__, '__file__'), __main__.i))",
    "has-exit-hooks-and-raises": "import atexit, sys, __main__\n"
    "atexit.register(lambda: print(hasattr(__main__, '__file__'), sys.last_value, sys.last_traceback.tb_lineno))\n1 / 0",
    "has-exit-hooks-and-exits": "import atexit, __main__\natexit.register(lambda: print(hasattr(__main__, '__file__')))\nexit(2)",
    "has-an-exit-hook-that-fails": "import atexit\natexit.register(lambda: 1 / 0)",
    "has-a-thread-that-goes-on": "import threading\ngo = threading.Event()\n"
    "threading.Thread(target=lambda: (go.wait(), print('last'))).start()\nthreading.Timer(0.1, go.set).start()",
    "has-a-daemon": "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()",
    "has-a-finalizer": "class C:\n    def __del__(self): print('gone')\nc = C(); c.itself = c\nd = C()",
    "forks": "import atexit, os\natexit.register(lambda: print('bye', flush=True))\n"
    "if os.fork() == 0:\n    raise ValueError('the child')\nprint(os.wait()[1])",
    "has-a-closed-stream": "import sys\nsys.stdout.close()",
    "uses-processes": "import multiprocessing\ndef f(x): return x + 1\n"
    "if __name__ == '__main__':\n    with multiprocessing.get_context('spawn').Pool(1) as p: print(p.map(f, [1, 2]))",
    "shows-itself": "'''Doc.'''\nimport inspect, sys, pickle\ndef f(): pass\n"
    "print(__doc__, list(globals())[:9], __file__, __spec__, type(__loader__).__name__, __builtins__, inspect.getsource(f))\n"
    "print(sys.argv, sys.path[0], pickle.loads(pickle.dumps(f)) is f, sys.orig_argv[1:], sys.flags)",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", ENDINGS)
def test_a_script_prints_and_ends_as_under_python(name: str, tmp_path: Path, events: Sockets) -> None:
    (tmp_path / "train.py").write_text(ENDINGS[name])
    assert under_boot(tmp_path, events, "train.py", "--lr=1") == plain(tmp_path, "train.py", "--lr=1")


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    ["absent.py", "-m absent", "-m package", "-m package.fails x", "-m package.fails.absent", "package", "a.zip", "empty"],
)
def test_modules_folders_and_archives_run_as_under_python(words: str, tmp_path: Path, events: Sockets) -> None:
    package = tmp_path / "package"
    package.mkdir()
    (tmp_path / "empty").mkdir()
    (package / "__init__.py").write_text("NAME = 'package'\n")
    (package / "fails.py").write_text("import sys\nfrom . import NAME\nprint(NAME, sys.argv, sys.path[0], __spec__.name)\nNO\n")
    (package / "__main__.py").write_text("import sys\nprint(__package__, sys.argv, sys.path[0], __spec__.name, __file__)\n")
    zipped = "import zipfile; zipfile.ZipFile('a.zip', 'w').write('package/__main__.py', '__main__.py')"
    subprocess.run([sys.executable, "-c", zipped], cwd=tmp_path, check=True)
    assert under_boot(tmp_path, events, *words.split()) == plain(tmp_path, *words.split())


@pytest.mark.slow
def test_a_compiled_script_and_a_safe_path_behave_as_under_python(
    tmp_path: Path, events: Sockets, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "train.py").write_text("import sys\nprint(sys.path[:2], type(__loader__).__name__)\n1 / 0\n")
    compiled = "import py_compile; py_compile.compile('train.py', 'train.pyc')"
    subprocess.run([sys.executable, "-c", compiled], cwd=tmp_path, check=True)
    assert under_boot(tmp_path, events, "train.pyc") == plain(tmp_path, "train.pyc")
    monkeypatch.setenv("PYTHONSAFEPATH", "1")
    assert under_boot(tmp_path, events, "train.py") == plain(tmp_path, "train.py")


OPEN_FILES = """
import csv, gzip, json, zipfile
rows = csv.writer(log := open("rows.csv", "w"))
rows.writerows([step, 1 / (step + 1)] for step in range(50))
result = open("result.json", "w"); json.dump({"accuracy": 0.9}, result)
packed = gzip.open("packed.gz", "wt"); packed.write("a line " * 100)
archive = zipfile.ZipFile("archive.zip", "w"); archive.writestr("a.txt", "hello")
"""


@pytest.mark.slow
def test_files_that_a_script_leaves_open_are_complete(tmp_path: Path, events: Sockets) -> None:
    found = []
    for name in ("plain", "boot"):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "train.py").write_text(OPEN_FILES)
        ended = plain(folder, "train.py") if name == "plain" else under_boot(folder, events, "train.py")
        assert ended.code == 0, ended.err
        found.append({path.name: path.stat().st_size for path in folder.iterdir()})
    assert found[0] == found[1]
    assert min(found[1].values()) > 0


def events_of(ours: socket.socket) -> list[dict[str, object]]:
    found = []
    while True:
        try:
            found.append(json.loads(ours.recv(1 << 16, socket.MSG_DONTWAIT)))
        except BlockingIOError:
            return found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "code"),
    [("pass", 0), ("1 / 0", 1), ("raise SystemExit(3)", 3), ("raise KeyboardInterrupt", -signal.SIGINT), ("exit('x')", 1)],
)
def test_a_rank_reports_leaving_last_and_its_forked_child_reports_nothing(
    script: str, code: int, tmp_path: Path, events: Sockets
) -> None:
    (tmp_path / "train.py").write_text(
        f"import os\nif (child := os.fork()) == 0:\n    raise ValueError('of the child')\nos.waitpid(child, 0)\n{script}\n"
    )
    assert under_boot(tmp_path, events, "train.py").code == code
    heard = events_of(events[0])
    assert [each["code"] for each in heard if each["what"] == "leaving"] == [code]
    assert heard[-1]["what"] == "leaving"
    assert not any(each.get("text") == "of the child" for each in heard)
