"""Starts processes that cannot outlive their parent, and ends whole process groups."""

import contextlib
import ctypes
import os
import re
import signal
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_PR_GET_PDEATHSIG = 2
_PR_SET_CHILD_SUBREAPER = 36
# Linux arch/x86/entry/syscalls/syscall_64.tbl, include/uapi/asm-generic/unistd.h.
_TGKILL = {"x86_64": 234, "aarch64": 131}
_libc = ctypes.CDLL(None, use_errno=True)
# What a process has open that computes on a device, by any vendor's driver. NVML, which only looks, has nvidiactl open.
_DEVICE = re.compile(r"/dev/(nvidia\d+|nvidia-uvm|kfd|dri/renderD\d+)")


def become_subreaper() -> None:
    """Orphaned grandchildren (data loaders of a killed worker) come to this process, so that they can be reaped (prctl(2))."""
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def fall_with_parent() -> None:
    """If this process gets a signal at its parent's death, make that SIGKILL, as at a node's death (prctl(2), kept by execve)."""
    asked = ctypes.c_int()
    _libc.prctl(_PR_GET_PDEATHSIG, ctypes.byref(asked), 0, 0, 0)
    if asked.value:
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def spawn(
    argv: Sequence[str],
    environment: Mapping[str, str],
    pass_fds: Iterable[int] = (),
    log: Path | None = None,
    errors: Path | None = None,
    cpus: Iterable[int] | None = None,
    *,
    stdin: bool = False,
) -> int:
    """Starts `argv` in a session of its own and returns its pid. Output is appended to `log`, stderr to `errors`; without a file, it goes
    where ours goes. `cpus` are those that it may run on. With `stdin` it reads what we would; else nothing.

    The child carries PDEATHSIG, which fires when the forking thread ends: so only a single-threaded process may call this.
    """
    parent = os.getpid()
    led, leads = os.pipe2(os.O_CLOEXEC)
    opened = {standard: open_log(path) for standard, path in ((1, log), (2, errors)) if path is not None}
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        _become(argv, environment, pass_fds, opened, cpus, parent, leads, stdin=stdin)
    for descriptor in (leads, *opened.values()):
        os.close(descriptor)
    # From here on `kill_group` finds the session.
    os.read(led, 1)
    os.close(led)
    return pid


def open_log(path: Path) -> int:
    """A descriptor that appends to `path`, whose folder is made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)


def _become(
    argv: Sequence[str],
    environment: Mapping[str, str],
    pass_fds: Iterable[int],
    opened: Mapping[int, int],
    cpus: Iterable[int] | None,
    parent: int,
    leads: int,
    *,
    stdin: bool,
) -> None:
    """The child's side of `spawn`; never returns."""
    try:
        os.setsid()
        os.close(leads)
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:  # it died before PDEATHSIG was set
            os._exit(127)
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD, signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)
        if not stdin:
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        for standard, descriptor in opened.items():
            os.dup2(descriptor, standard)
        if cpus is not None:
            os.sched_setaffinity(0, cpus)
        for descriptor in pass_fds:
            os.set_inheritable(descriptor, True)
        os.execvpe(argv[0], list(argv), dict(environment))
    except BaseException as error:
        os.write(2, f"cannot start {argv[0]}: {error}\n".encode())
    os._exit(127)


def kill_group(pid: int, number: signal.Signals) -> None:
    """Signal the whole session that `spawn` began. A group that is gone is fine; 0 is ignored (killpg would take it for its own group)."""
    if pid <= 0:
        return
    try:
        os.killpg(pid, number)
    except (ProcessLookupError, PermissionError):
        return


def signal_main_thread(pid: int, number: int) -> bool:
    """Signals the main thread of a process that handles the signal; False when there is none such: others would die of it."""
    if not catches(pid, number):
        return False
    return bool(_libc.syscall(_TGKILL[os.uname().machine], pid, pid, number) == 0)


def catches(pid: int, number: int) -> bool:
    """Whether the process has a handler for the signal (proc(5), SigCgt)."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return False
    (mask,) = (line.split()[1] for line in lines if line.startswith("SigCgt:"))
    return bool(int(mask, 16) >> (number - 1) & 1)


def children(pid: int | None = None) -> list[int]:
    """The living and unreaped children of a process's main thread, ours by default (proc(5)); none of a process that is gone."""
    pid = os.getpid() if pid is None else pid
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def opens_a_device(pid: int) -> bool:
    """Whether the process has a device open; False where that cannot be seen."""
    try:
        return any(_DEVICE.fullmatch(str(entry.readlink())) for entry in Path(f"/proc/{pid}/fd").iterdir())
    except OSError:
        return False


def state_of(pid: int) -> str:
    """The letter of proc(5), stat: R, S, D, T, Z; empty once the process is gone."""
    fields = _stat(pid)
    return fields[0] if fields else ""


def activity(pid: int) -> tuple[int, int]:
    """The clock ticks that the process has computed, and the bytes that it has read and written."""
    fields, moved = _stat(pid), 0
    with contextlib.suppress(OSError):
        moved = sum(int(line.split()[1]) for line in Path(f"/proc/{pid}/io").read_text().splitlines()[:2])
    return (int(fields[11]) + int(fields[12]) if fields else 0), moved


def _stat(pid: int) -> list[str]:
    """The fields of proc(5), stat, from the state on."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def describe_status(status: int) -> str:
    """A wait status in words: "killed by SIGKILL", "exit code 1"."""
    return describe_code(os.waitstatus_to_exitcode(status))


def describe_code(code: int) -> str:
    """The same of an exit code; a signal's number is negative."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:  # a real-time signal has no name
        return f"killed by signal {-code}"
