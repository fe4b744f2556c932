"""Removes files in /dev/shm that killed workers left behind and that no process has open any more.

NCCL, torch's data loaders and others unlink theirs at an orderly end only, and a killed worker has none. All other files there are a
user's: only names that a library gives are removed, and only of files that were not there before the workers.
"""

import os
import re
import stat
from collections.abc import Iterable, Set
from pathlib import Path

# Only files that a worker has open are considered.
SHARED_MEMORY = Path("/dev/shm")
# Device, number: the same file under any name.
Inode = tuple[int, int]
# Names that only libraries give: torch's tensors (c10, NewProcessWideShmHandle), NCCL's and RCCL's channels, CUDA's memory, Python's
# multiprocessing (shared memory without a name, semaphores, arenas), loky's, OpenMP's registration, MPI's, UCX's and NVSHMEM's segments.
_OF_LIBRARIES = re.compile(
    r"torch_\d+_\d+_\d+|nccl-.*|cuda\.shm\..*|psm_[0-9a-f]{8}|sem\.(mp|loky)-.*|pym-\d+-.*|loky-\d+-.*"
    r"|__KMP_REGISTERED_LIB_\d+(_\d+)?|(vader|sm)_segment\..*|ucx_shm_posix_.*|nvshmem[-_].*"
)
_MAPPED = re.compile(rb"^\S+ \S+ \S+ ([0-9a-f]+):([0-9a-f]+) ([1-9]\d*) ", re.MULTILINE)  # proc(5), maps


def shared_memory_of(pids: Iterable[int]) -> set[Inode]:
    """Return the files of this user in /dev/shm that these processes and their descendants have open or mapped."""
    ours = {inode for inode, _ in _files()}
    return {inode for pid in pids for inode in _held(pid, ours)} if ours else set()


def present() -> set[Inode]:
    """Return the files of this user that are there now."""
    return {inode for inode, _ in _files()}


def remove_unused(inodes: Set[Inode]) -> list[str]:
    """Unlinks those of the files that carry a library's name and that no living process has open or mapped; returns their names."""
    if not inodes:
        return []
    held = {inode for entry in Path("/proc").glob("[0-9]*") for inode in _open_in(int(entry.name))}
    unused = [path for inode, path in _files() if inode in inodes - held and _OF_LIBRARIES.fullmatch(path.name)]
    for path in unused:
        path.unlink(missing_ok=True)
    return sorted(path.name for path in unused)


def _files() -> list[tuple[Inode, Path]]:
    """Regular files in /dev/shm that belong to this user."""
    found = []
    try:
        entries = list(os.scandir(SHARED_MEMORY))
    except OSError:
        return []
    for entry in entries:
        try:
            status = entry.stat(follow_symlinks=False)
        except OSError:
            continue  # it has just been removed
        if stat.S_ISREG(status.st_mode) and status.st_uid == os.getuid():
            found.append(((status.st_dev, status.st_ino), Path(entry.path)))
    return found


def _held(pid: int, ours: Set[Inode]) -> set[Inode]:
    held = _open_in(pid) & ours
    for child in _descendants(pid):
        held |= _open_in(child) & ours
    return held


def _descendants(pid: int) -> list[int]:
    found = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            below = [int(child) for child in path.read_text().split()]
        except OSError:
            continue
        found += below + [further for child in below for further in _descendants(child)]
    return found


def _open_in(pid: int) -> set[Inode]:
    """Return the files that a process has mapped or open; none if it belongs to another user or is gone."""
    found: set[Inode] = set()
    try:
        maps = Path(f"/proc/{pid}/maps").read_bytes()
        descriptors = list(Path(f"/proc/{pid}/fd").iterdir())
    except OSError:
        return found
    for major, minor, number in _MAPPED.findall(maps):
        found.add((os.makedev(int(major, 16), int(minor, 16)), int(number)))
    for descriptor in descriptors:
        try:
            status = descriptor.stat()
        except OSError:
            continue
        found.add((status.st_dev, status.st_ino))
    return found
