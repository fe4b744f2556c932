"""Provides a worker in this process for hooks under test: the events that it sends, and the contents of its page."""

import json
import mmap
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

from torch._C._distributed_c10d import HashStore

from headway.runner import worker as workers
from headway.runner.boot import files, heartbeat, records
from headway.runner.boot.shares import verify_first
from headway.runner.contract import DEFAULT_TIMEOUTS, SECTIONS, HeartbeatPage, RunDirectory
from headway.runner.worker import Worker

VERIFY_S = DEFAULT_TIMEOUTS["verify"].floor_s


@dataclass
class Booted:
    """The other side of a worker: the agent's and the coordinator's."""

    worker: Worker
    directory: RunDirectory
    page: HeartbeatPage
    _said: socket.socket

    def said(self) -> list[dict[str, Any]]:
        """The events since the last call."""
        found = []
        while True:
            try:
                found.append(json.loads(self._said.recv(1 << 16)))
            except BlockingIOError:
                return found

    def shown(self, word: str) -> int:
        return self.page.read(0)[word]

    def verify(self) -> None:
        """Prepare the state before a script's first line."""
        verify_first(self.worker, HashStore(), VERIFY_S)

    @property
    def section(self) -> str:
        return SECTIONS[self.shown("section")]


@contextmanager
def booted(root: Path, world_size: int = 1) -> Iterator[Booted]:
    """Rank 0 of a run below `root`, current while the block runs. Whatever the file system and the clock are, saves get their
    checksums at the next call of a hook."""
    directory = RunDirectory(root, 0)
    directory.attempt_directory.mkdir(parents=True)
    (root / "shared").mkdir()
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    with ours, theirs:
        ours.settimeout(0)
        page = HeartbeatPage(memoryview(mmap.mmap(-1, HeartbeatPage.bytes_for(world_size))))
        worker = Worker(0, 0, world_size, 1, 0, str(directory.run_json), None, page, theirs)
        workers._current[:] = [worker]
        heartbeat.report_heartbeats(worker, "script")
        with patch.multiple(files, TICK_S=0.0, WHOLE_SECONDS_S=0.0), patch.object(records, "TIMELESS", frozenset[str]()):
            try:
                yield Booted(worker, directory, page, ours)
            finally:
                workers._current.clear()
                heartbeat._current.clear()
                files._pending.clear()
                files._verified.clear()
                records._known.clear()


def flip(path: Path, at: int | None = None) -> None:
    """Flip a bit, as a disk does: no program has written the file."""
    stat, content = path.stat(), bytearray(path.read_bytes())
    content[len(content) // 2 if at is None else at] ^= 4
    path.write_bytes(content)
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
