"""Reads the files of one checkpoint from a directory, an object store, or a node's memory."""

import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol, TypeVar

import xxhash

from headway.runner.checkpoint.bucket import READ_BYTES, ObjectBucket
from headway.runner.contract import CheckpointId

T = TypeVar("T")

PATIENCE_S = 20.0
FIRST_WAIT_S = 0.25
# A network file system answers few large reads faster than many small ones.
FILE_PIECE_BYTES = READ_BYTES
# Memory is read in pieces that the processor's cache holds, so that they are hashed from there.
MEMORY_PIECE_BYTES = 256 << 10


class Source(Protocol):
    """The files of one checkpoint, by the names that its manifest and parts use."""

    def read(self, name: str) -> bytes:
        """Return the whole file. Raises OSError."""
        ...

    def read_into(self, name: str, offset: int, out: memoryview, seed: int = 0) -> str:
        """Fill `out` with the file's bytes from `offset` on, and return their xxh3_128 with this seed. Raises OSError, or
        EOFError (which is no OSError) when it ends before."""
        ...

    def is_gone(self, name: str, error: OSError) -> bool:
        """Return whether `error`, raised for the file, proves that it no longer exists. Every other error proves
        nothing about the file."""
        ...


class DirectorySource:
    """A checkpoint's directory on a file system."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def __str__(self) -> str:
        return str(self._directory)

    def read(self, name: str) -> bytes:
        return (self._directory / name).read_bytes()

    def is_gone(self, name: str, error: OSError) -> bool:
        """Return whether the file's directory can be listed without it. An empty folder of checkpoints proves nothing:
        a missing mount looks the same."""
        if not isinstance(error, FileNotFoundError):
            return False
        try:
            known = {path.name for path in self._directory.parent.iterdir()}
            return bool(known) and (
                self._directory.name not in known or name not in {path.name for path in self._directory.iterdir()}
            )
        except OSError:
            return False

    def read_into(self, name: str, offset: int, out: memoryview, seed: int = 0) -> str:
        descriptor = os.open(self._directory / name, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return read_fully(descriptor, offset, out, seed, FILE_PIECE_BYTES)
        finally:
            os.close(descriptor)


def read_fully(descriptor: int, offset: int, out: memoryview, seed: int, piece_bytes: int) -> str:
    """Fill `out` from `offset` of an open file on, by reads of `piece_bytes`, and return its xxh3_128 with this seed. Raises OSError,
    EOFError when the file ends before."""
    hasher, done = xxhash.xxh3_128(seed=seed), 0
    while done < len(out):
        piece = out[done : done + piece_bytes]
        if (count := os.preadv(descriptor, [piece], offset + done)) == 0:
            raise EOFError(f"ends after {done} of {len(out)} bytes")
        hasher.update(piece[:count])
        done += count
    return hasher.hexdigest()


def patience_s() -> float:
    """Return how long reads are retried on a file system that answers with errors. Raises ValueError if it is not a number."""
    return float(os.environ.get("HEADWAY_READ_PATIENCE_S", PATIENCE_S))


class PatientSource:
    """A source that retries failed reads, with growing waits, until errors have lasted `patience_s`.

    It reports the wait once. After it has given up, no file is retried again: a checkpoint has thousands of chunks.
    """

    def __init__(self, source: Source, patience_s: float, wait: Callable[[float], None] = time.sleep) -> None:
        self._source, self._patience_s, self._wait = source, patience_s, wait
        self._lock = threading.Lock()
        # Of the thread that has waited longest; 0 again once a read has succeeded.
        self._waited_s = 0.0
        self._said = False

    def read(self, name: str) -> bytes:
        return self._patiently(name, lambda: self._source.read(name))

    def read_into(self, name: str, offset: int, out: memoryview, seed: int = 0) -> str:
        return self._patiently(name, lambda: self._source.read_into(name, offset, out, seed))

    def is_gone(self, name: str, error: OSError) -> bool:
        return self._source.is_gone(name, error)

    def _patiently(self, name: str, read: Callable[[], T]) -> T:
        waited_s, wait_s = 0.0, FIRST_WAIT_S
        while True:
            try:
                found = read()
            except OSError as error:
                if self._source.is_gone(name, error):
                    raise
                wait_s = min(wait_s, self._left_s())
                if wait_s <= 0:
                    raise
                self._say(name, error)
            else:
                if waited_s:
                    with self._lock:
                        self._waited_s = 0.0
                return found
            self._wait(wait_s)
            waited_s += wait_s
            with self._lock:
                self._waited_s = max(self._waited_s, waited_s)
            wait_s *= 2

    def _left_s(self) -> float:
        with self._lock:
            return self._patience_s - self._waited_s

    def _say(self, name: str, error: OSError) -> None:
        with self._lock:
            said, self._said = self._said, True
        if not said:
            why = error.strerror or str(error)
            print(f"{self._source}/{name}: {why}; tried again for {self._patience_s:g} s", file=sys.stderr, flush=True)


class Reads:
    """Counts the requests to a remote store and their bytes, over all threads: both cost money and time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.requests = self.bytes = 0

    def count(self, size: int) -> None:
        """Count one request, answered with `size` bytes."""
        with self._lock:
            self.requests += 1
            self.bytes += size


class ObjectSource:
    """A checkpoint in an object store, below `<url>/<run>/<checkpoint>/`. `reads` counts its requests and bytes."""

    def __init__(self, url: str, run: str, checkpoint: CheckpointId) -> None:
        self._bucket, self._folder = ObjectBucket(url), f"{run}/{checkpoint.directory}"
        self.reads = Reads()

    def read(self, name: str) -> bytes:
        raw = self._bucket.get(f"{self._folder}/{name}")
        self.reads.count(len(raw))
        return raw

    def read_into(self, name: str, offset: int, out: memoryview, seed: int = 0) -> str:
        """Read with one request per READ_BYTES: several threads read a checkpoint faster than one."""
        hasher, done = xxhash.xxh3_128(seed=seed), 0
        while done < len(out):
            count = self._bucket.read_at(f"{self._folder}/{name}", offset + done, out[done:])
            self.reads.count(count)
            hasher.update(out[done : done + count])
            if (done := done + count) < len(out) and count < READ_BYTES:
                raise EOFError(f"ends after {done} of {len(out)} bytes")
        return hasher.hexdigest()

    def is_gone(self, name: str, error: OSError) -> bool:
        """Return whether the bucket can be listed without the object: 404 is also the answer of a bucket that does not exist."""
        if not isinstance(error, FileNotFoundError):
            return False
        try:
            return f"{self._folder}/{name}" not in self._bucket.names(self._folder)
        except OSError:
            return False
