"""Reads and appends JSON lines that one process writes and others read meanwhile; a line is valid once it is complete."""

import errno
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any


def append_line(path: Path, record: Mapping[str, Any]) -> None:
    """Appends one record in a single write. Raises OSError when the disk took only a part, and takes that part back."""
    line = json.dumps(record, allow_nan=True).encode() + b"\n"
    with path.open("ab", buffering=0) as file:
        if (written := file.write(line)) != len(line):
            file.truncate(file.tell() - (written or 0))
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))


def read_lines(path: Path, start: int = 0) -> Iterator[tuple[dict[str, Any], int]]:
    """The whole lines from byte `start` on, each with the offset behind it. A file that is not there has none.

    A line that is no record (a disk that was full, a writer on another node that died) is passed over: nothing is decided by these files.
    """
    if not path.exists():
        return
    with path.open("rb") as file:
        file.seek(start)
        for raw in file:
            if not raw.endswith(b"\n"):
                return
            start += len(raw)
            try:
                record = json.loads(raw)
            except ValueError:
                continue
            if isinstance(record, dict):
                yield record, start


def read_last(path: Path, size: int) -> Iterator[dict[str, Any]]:
    """The whole lines among the last `size` bytes. A file that is not there has none."""
    start = max(0, path.stat().st_size - size) if path.exists() else 0
    return (line for line, _ in read_lines(path, start))


def cut_torn_line(path: Path) -> None:
    """Takes back half a line that a killed writer left, before the next writer's first line is glued to it."""
    if path.exists():
        whole = path.read_bytes().rfind(b"\n") + 1
        os.truncate(path, whole)
