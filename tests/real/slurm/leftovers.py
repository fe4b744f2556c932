"""Finds everything that a cluster has left on this machine: processes, mounts, its folder."""

import contextlib
import errno
from collections.abc import Collection, Iterator
from pathlib import Path


def pid_namespace(pid: int) -> str:
    return str(Path(f"/proc/{pid}/ns/pid").readlink())


def leftovers(root: Path, namespaces: Collection[str]) -> list[str]:
    """Living processes in the cluster's PID namespaces or with its folder in their command, mounts of the folder, the folder."""
    found = [line for process in _processes() for line in _traces(process, root, namespaces)]
    return found + ([f"folder {root}"] if root.exists() else [])


def _processes() -> Iterator[Path]:
    return (path for path in Path("/proc").iterdir() if path.name.isdigit())


def _traces(process: Path, root: Path, namespaces: Collection[str]) -> Iterator[str]:
    # a process may end while it is examined
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        # PID 1 may reap late: a zombie no longer runs
        if (process / "stat").read_text().rpartition(") ")[2].startswith(("Z", "X")):
            return
        command = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        if str(root) in command or _is_in(process, namespaces):
            yield f"process {process.name}: {command}"
        yield from (f"mount of {process.name}: {line}" for line in _mounts(process) if str(root) in line)


def _mounts(process: Path) -> list[str]:
    try:
        return (process / "mountinfo").read_text().splitlines()
    except OSError as error:
        # an exiting process has left its mount namespace already
        if error.errno == errno.EINVAL:
            return []
        raise


def _is_in(process: Path, namespaces: Collection[str]) -> bool:
    # refused for a process with more capabilities than this one: this one started none
    with contextlib.suppress(PermissionError):
        return pid_namespace(int(process.name)) in namespaces
    return False
