"""`headway torchrun ARGS`: runs torchrun's command line under headway's agents and prints the cost of failures as the last line."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from headway.cli.log_tail import following
from headway.infra.submit.libraries import lacking_to_run
from headway.infra.submit.parent import ending_with_parent
from headway.runner.contract import VERDICTS, Exit, RunDirectory

# Those that --signals-to-handle names by default or in its help; what they do there is the runner's business.
FORWARDED = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)


def run(words: list[str]) -> int:
    """Return the runner's exit code; 2 for arguments that torchrun would refuse or headway does not support, 3 without its libraries."""
    if lacking := lacking_to_run():
        print(f"error: {lacking}", file=sys.stderr)
        return 3
    read, write = os.pipe()
    command = [sys.executable, "-P", "-m", "headway.runner.torchrun", *words]
    environment = {**os.environ, "HEADWAY_TERMINAL_FD": str(write)}
    own = {"env": environment, "pass_fds": [write], "preexec_fn": ending_with_parent()}
    runner: subprocess.Popen[bytes] = subprocess.Popen(command, **own)  # type: ignore[call-overload]
    os.close(write)
    with _signals_forwarded(runner), os.fdopen(read) as pipe:
        said = pipe.read()
        terminal = json.loads(said) if said else {"run": None, "logs": None, "teed": {}}
        with following(terminal):
            code = runner.wait()
    if terminal["run"] and has_the_report(terminal):
        _say_what_it_cost(Path(terminal["run"]))
    elif terminal["run"] and code in VERDICTS and code != Exit.COMPLETED:
        logs = RunDirectory(Path(terminal["run"]), terminal["attempt"]).logs
        print(f"headway: {VERDICTS[Exit(code)]} (exit code {code}); this node's logs: {logs}", file=sys.stderr)
    return code


def has_the_report(terminal: Mapping[str, Any]) -> bool:
    """Return whether this node prints the summary: of several nodes the last that coordinated, since the others' files do not describe the
    run."""
    published = RunDirectory(Path(terminal["run"]), terminal["attempt"]).coordinator
    try:
        last = json.loads(published.read_text())["node"]
    except (OSError, ValueError, KeyError):  # it ended before there was one
        last = 0
    return bool(terminal["node"] == last and (terminal["shared"] or terminal["node"] == 0))


@contextmanager
def _signals_forwarded(runner: "subprocess.Popen[bytes]") -> Iterator[None]:
    """Pass on a signal that only this process got; an interrupt at the terminal reaches both. One that nohup ignores stays ignored."""

    def forward(number: int, _: Any) -> None:
        if runner.poll() is None:
            runner.send_signal(number)

    before = {number: signal.signal(number, forward) for number in FORWARDED if signal.getsignal(number) is not signal.SIG_IGN}
    before[signal.SIGINT] = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _say_what_it_cost(directory: Path) -> None:
    from headway.report.directory import RunError  # noqa: PLC0415  the workers wait for no report
    from headway.report.summary import summarize  # noqa: PLC0415
    from headway.report.wording import bottom_line  # noqa: PLC0415

    try:
        print(f"headway: {bottom_line(summarize(directory))}; `headway report {directory}` shows more", file=sys.stderr)
    except RunError as error:
        print(f"headway: {error}", file=sys.stderr)
