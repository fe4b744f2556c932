"""Reads the kernel's control groups of this node: how much memory a process may still take, and whether the OOM killer ran.

Version 2 has one tree, version 1 one for each controller (linux Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/memory.rst).
"""

from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
PROC = Path("/proc")


def out_of_memory_kills() -> int:
    """Processes of our control group that the kernel has killed for memory so far; 0 where it does not say.

    `memory.events` of version 2 and `memory.oom_control` of version 1 count every kind of out-of-memory kill, before the signal is sent.
    """
    return max(_counter(_file("memory.events"), "oom_kill"), _counter(_file("memory.oom_control"), "oom_kill"))


def available_bytes() -> int:
    """Return the bytes that may still be allocated on this node: by /proc/meminfo, and below the control group's limit."""
    meminfo = {line.split(":")[0]: line.split()[1] for line in (PROC / "meminfo").read_text().splitlines()}
    free = [int(meminfo["MemAvailable"]) * 1024]
    for limit, used in (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes")):
        if (bound := _number(_file(limit))) is not None:
            # Pages of files that were not used lately go first.
            reclaimable = _counter(_file("memory.stat"), "inactive_file")
            free.append(bound - (_number(_file(used)) or 0) + reclaimable)
    return min(free)


def _file(name: str) -> Path:
    """The file of our control group; that of the topmost one that is seen here, where a container shows no other."""
    for line in (PROC / "self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers not in ("", "memory"):
            continue
        mount = ROOT / controllers
        for folder in (mount / path.lstrip("/"), mount):
            if (folder / name).exists():
                return folder / name
    return ROOT / name


def _counter(path: Path, name: str) -> int:
    """The number behind `name` in a file of pairs."""
    try:
        pairs = [line.split() for line in path.read_text().splitlines()]
    except OSError:
        return 0
    return next((int(pair[1]) for pair in pairs if pair[0] == name), 0)


def _number(path: Path) -> int | None:
    """The number in a file; None for no such file or no limit."""
    try:
        text = path.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdecimal() else None
