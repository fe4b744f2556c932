"""Where the files of one checkpoint can be read: a directory, an object store, a node's memory."""

import os
import threading
from pathlib import Path
from typing import Protocol

from headway.runner.checkpoint.bucket import READ_BYTES, Bucket
from headway.runner.checkpoint.chain import CheckpointId


class Source(Protocol):
    """The files of one checkpoint, by the names that its manifest and parts use."""

    def read(self, name: str) -> bytes:
        """The whole file. Raises OSError."""
        ...

    def read_into(self, name: str, offset: int, out: memoryview) -> None:
        """Fills `out` with the file's bytes from `offset` on. Raises OSError, EOFError (an OSError does not say it) when it ends before."""
        ...


class DirectorySource:
    """A checkpoint's directory on a file system."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def read(self, name: str) -> bytes:
        return (self._directory / name).read_bytes()

    def read_into(self, name: str, offset: int, out: memoryview) -> None:
        descriptor = os.open(self._directory / name, os.O_RDONLY | os.O_CLOEXEC)
        try:
            read_fully(descriptor, offset, out)
        finally:
            os.close(descriptor)


def read_fully(descriptor: int, offset: int, out: memoryview) -> None:
    """Fills `out` from `offset` of an open file on. Raises OSError, EOFError when it ends before."""
    done = 0
    while done < len(out):
        if (count := os.preadv(descriptor, [out[done:]], offset + done)) == 0:
            raise EOFError(f"ends after {done} of {len(out)} bytes")
        done += count


class Reads:
    """What has been asked of a remote store, by all threads: it costs money and time by the request and by the byte."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.requests = self.bytes = 0

    def count(self, size: int) -> None:
        """One request, answered with `size` bytes."""
        with self._lock:
            self.requests += 1
            self.bytes += size


class ObjectSource:
    """A checkpoint in an object store, below `<url>/<run>/<checkpoint>/`. `reads` counts what was read from there."""

    def __init__(self, url: str, run: str, checkpoint: CheckpointId) -> None:
        self._bucket, self._folder = Bucket(url), f"{run}/{checkpoint.directory}"
        self.reads = Reads()

    def read(self, name: str) -> bytes:
        raw = self._bucket.get(f"{self._folder}/{name}")
        self.reads.count(len(raw))
        return raw

    def read_into(self, name: str, offset: int, out: memoryview) -> None:
        """One request for each READ_BYTES: several threads read a checkpoint faster than one."""
        done = 0
        while done < len(out):
            count = self._bucket.read_at(f"{self._folder}/{name}", offset + done, out[done:])
            self.reads.count(count)
            if (done := done + count) < len(out) and count < READ_BYTES:
                raise EOFError(f"ends after {done} of {len(out)} bytes")
