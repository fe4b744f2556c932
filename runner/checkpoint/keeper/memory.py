"""Allocates a node's memory for captures: unnamed shared files, populated from the start, within one limit."""

import fcntl
import mmap
import os
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from headway.runner.checkpoint.keeper.capture import ALIGN

_CGROUPS = Path("/sys/fs/cgroup")


class NoMemoryError(Exception):
    """The node's memory, or the run's limit, is too small; the message has the numbers."""


class Region:
    """`bytes` of shared memory that processes can map. It has no name: nothing is left behind when they die (memfd_create(2))."""

    def __init__(self, size: int) -> None:
        self.bytes = size
        self.descriptor = os.memfd_create("headway-capture", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            # All pages now: a first save would wait for them, and a page that cannot be allocated is a SIGBUS to the
            # writer.
            os.posix_fallocate(self.descriptor, 0, size)
            # A worker that shrank it would kill the keeper by SIGBUS.
            fcntl.fcntl(self.descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
            self._map = mmap.mmap(self.descriptor, size)
        except BaseException:
            os.close(self.descriptor)
            raise
        self.view = memoryview(self._map)

    def read_only(self) -> int:
        """Return a read-only descriptor; the caller must close it."""
        return os.open(f"/proc/self/fd/{self.descriptor}", os.O_RDONLY | os.O_CLOEXEC)

    def close(self) -> None:
        """Release the memory, which is freed once no process maps it."""
        os.close(self.descriptor)
        self.view.release()
        # A slice of it is still read; the map goes with the slice.
        with suppress(BufferError):
            self._map.close()


class KeeperMemory:
    """Makes regions while they stay within `limit_bytes` together, and within the node's free memory."""

    def __init__(self) -> None:
        self.limit_bytes: int | None = None
        self.taken_bytes = 0
        self._lock = threading.Lock()

    def region(self, size: int) -> Region:
        """Return at least `size` bytes. Raises NoMemoryError."""
        size = pages(size)
        # Until the pages are allocated: memory that is free for one is not free for the next.
        with self._lock:
            if self.limit_bytes is not None and self.taken_bytes + size > self.limit_bytes:
                raise NoMemoryError(
                    f"needs {size} bytes, but {self.taken_bytes} of host_memory_bytes {self.limit_bytes} are in use"
                )
            # Checked first: allocating pages that do not exist wakes the kernel's out-of-memory killer instead of
            # failing.
            if size > (free := free_bytes()):
                raise NoMemoryError(f"needs {size} bytes, but the node has {free} free")
            try:
                region = Region(size)
            except OSError as error:
                raise NoMemoryError(f"needs {size} bytes: {error.strerror}") from None
            self.taken_bytes += size
            return region

    def give_back(self, region: Region) -> None:
        region.close()
        with self._lock:
            self.taken_bytes -= region.bytes


def pages(size: int) -> int:
    """Return `size` rounded up to whole pages, at least one."""
    return max(1, -(-size // ALIGN)) * ALIGN


def free_bytes() -> int:
    """Return what this process may still allocate: on the machine (MemAvailable, proc(5)), and in each of its control groups."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    (available,) = (int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    return min([available, *_free_of_groups(Path("/proc/self/cgroup").read_text())])


@dataclass(frozen=True)
class ControlGroups:
    """The files in which a version of control groups reports limits and usage (kernel: cgroup-v1/memory, cgroup-v2)."""

    root: Path
    limit: str
    usage: str
    inactive: str

    def free_bytes(self, group: Path) -> Iterator[int]:
        """Yield the free bytes of the group and of its ancestors. Inactive file pages count as free: the kernel takes
        them back first."""
        for level in (group, *group.parents):
            # The root of version 2 has no limit, and in others it may be "max".
            with suppress(OSError, ValueError):
                limit, used = (int((level / name).read_text()) for name in (self.limit, self.usage))
                stat = dict(line.split() for line in (level / "memory.stat").read_text().splitlines())
                yield limit - used + int(stat[self.inactive])
            if level == self.root:
                return


V1 = ControlGroups(_CGROUPS / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
V2 = ControlGroups(_CGROUPS, "memory.max", "memory.current", "inactive_file")


def _free_of_groups(memberships: str) -> Iterator[int]:
    """Parse the lines of /proc/self/cgroup (cgroups(7))."""
    for line in memberships.splitlines():
        _, controllers, name = line.split(":", 2)
        if "memory" in controllers.split(","):
            yield from V1.free_bytes(V1.root / name.lstrip("/"))
        elif not controllers:
            yield from V2.free_bytes(V2.root / name.lstrip("/"))
