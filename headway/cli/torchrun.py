"""`headway torchrun ARGS`: torchrun's own command line, run by our agents, with a last line that says what failures cost."""

import importlib.util
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from headway.infra.submit.local import ending_with_parent
from headway.report.directory import RunError
from headway.report.summary import summarize
from headway.report.wording import bottom_line


def run(words: list[str]) -> int:
    """The runner's exit code; 2 for arguments that torchrun would refuse or that are not carried out, 3 without the runner's libraries."""
    if missing := [package for package in ("torch", "xxhash") if importlib.util.find_spec(package) is None]:
        print(f"error: the runner needs {' and '.join(missing)}; install headway with its extra `runner`", file=sys.stderr)
        return 3
    read, write = os.pipe()
    command = [sys.executable, "-m", "headway.runner.torchrun", *words]
    environment = {**os.environ, "HEADWAY_RUN_PATH_FD": str(write)}
    own = {"env": environment, "pass_fds": [write], "preexec_fn": ending_with_parent()}
    runner: subprocess.Popen[bytes] = subprocess.Popen(command, **own)  # type: ignore[call-overload]
    os.close(write)
    with _signals_forwarded(runner), os.fdopen(read) as pipe:
        directory = pipe.read()
        code = runner.wait()
    if directory:
        _say_what_it_cost(Path(directory))
    return code


@contextmanager
def _signals_forwarded(runner: "subprocess.Popen[bytes]") -> Iterator[None]:
    """An interrupt at the terminal reaches the runner by itself; a SIGTERM to this process alone does not."""

    def forward(number: int, _: Any) -> None:
        if runner.poll() is None:
            runner.send_signal(number)

    before = signal.signal(signal.SIGTERM, forward), signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        for number, handler in zip((signal.SIGTERM, signal.SIGINT), before, strict=True):
            signal.signal(number, handler)


def _say_what_it_cost(directory: Path) -> None:
    try:
        print(f"headway: {bottom_line(summarize(directory))}; `headway report {directory}` shows more", file=sys.stderr)
    except RunError as error:
        print(f"headway: {error}", file=sys.stderr)
