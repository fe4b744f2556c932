"""Starts processes that cannot outlive who started them, and ends whole process groups."""

import ctypes
import os
import signal
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_libc = ctypes.CDLL(None, use_errno=True)


def become_subreaper() -> None:
    """Orphaned grandchildren (data loaders of a killed worker) come to this process, so that they can be reaped (prctl(2))."""
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def spawn(argv: Sequence[str], environment: Mapping[str, str], pass_fds: Iterable[int] = (), log: Path | None = None) -> int:
    """Starts `argv` in a session of its own and returns its pid. Output goes to `log`, or where ours goes.

    The child carries PDEATHSIG, which fires when the forking thread ends: so only a single-threaded process may call this.
    """
    parent = os.getpid()
    output = None
    if log is not None:
        log.parent.mkdir(parents=True, exist_ok=True)
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        _become(argv, environment, pass_fds, output, parent)
    if output is not None:
        os.close(output)
    return pid


def _become(
    argv: Sequence[str], environment: Mapping[str, str], pass_fds: Iterable[int], output: int | None, parent: int
) -> None:
    """The child's side of `spawn`; never returns."""
    try:
        os.setsid()
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:  # it died before PDEATHSIG was set
            os._exit(127)
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD, signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        if output is not None:
            os.dup2(output, 1)
            os.dup2(output, 2)
        for descriptor in pass_fds:
            os.set_inheritable(descriptor, True)
        os.execvpe(argv[0], list(argv), dict(environment))
    except BaseException as error:
        os.write(2, f"cannot start {argv[0]}: {error}\n".encode())
    os._exit(127)


def kill_group(pid: int, number: signal.Signals) -> None:
    """Signals the whole session that `spawn` began. A group that is gone is fine; 0 is nobody's (killpg would take it for our own)."""
    if pid <= 0:
        return
    try:
        os.killpg(pid, number)
    except (ProcessLookupError, PermissionError):
        return


def children() -> list[int]:
    """The living and unreaped children of this process (proc(5); single-threaded callers only)."""
    return [int(pid) for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()]


def describe_status(status: int) -> str:
    """A wait status in words: "killed by SIGKILL", "exit code 1"."""
    code = os.waitstatus_to_exitcode(status)
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:  # a real-time signal has no name
        return f"killed by signal {-code}"
