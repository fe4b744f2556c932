"""Records the files that the scripts of a run save, as lines in the run's directory; the script's folders stay untouched.

    shared/saved/HOST.ATTEMPT.GENERATION.N.jsonl    a line for each save begun and ended; the processes of a host append to one file

A record describes the bytes that a file had with this inode, length and time of change. Every write changes one of
these, so a file that another program has written, copied or restored has no record; a renamed file keeps its record.
"""

import functools
import io
import json
import os
import re
import socket
import threading
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import xxhash

from headway.runner.boot.limitations import note_limitation
from headway.runner.contract import RunDirectory, TextEnum
from headway.runner.lines import read_last
from headway.runner.posix import write_atomic
from headway.runner.worker import Worker

# Kinds of lines. A part is a file of a dcp checkpoint, which gets its own line when it is committed. A file has only ended, without a
# checksum, if something else wrote to it after its save.
BEGUN, ENDED, FILE, PART, DCP_BEGUN, DCP, OWN = "begun", "ended", "file", "part", "dcp begun", "dcp", "headway dcp"

# Pieces with separate hashes, which ranks verify in parallel: their size, or their largest number.
BLOCK_BYTES, BLOCKS = 16 << 20, 1024
_READ_BYTES = 1 << 24
# A longer appended file is followed by another; two of a host stay.
ROTATE_BYTES = 32 << 20
# Of a file's end: some 10,000 saves.
READ_BYTES = 4 << 20
# Lines of earlier generations that stay: so many of each folder, and so many bytes in total.
NEWEST, KEEP_BYTES = 50, 1 << 20
# Records that a process keeps in memory.
MOST = 100_000
# File systems that do not update the time of what is stored through a mapping: mmap(2) leaves that to the file system,
# tmpfs never does, ZFS seconds later.
TIMELESS = frozenset({"tmpfs", "ramfs", "devtmpfs", "hugetlbfs", "zfs"})
_FOLDER = re.compile(rb'"path":"((?:[^"\\]|\\.)*)/')


class Identity(NamedTuple):
    """The attributes of a file that change with every write."""

    inode: int
    bytes: int
    mtime_ns: int

    @classmethod
    def of(cls, stat: os.stat_result) -> "Identity":
        return cls(stat.st_ino, stat.st_size, stat.st_mtime_ns)


@dataclass(frozen=True)
class FileRecord:
    """The record of a saved file. `blocks` are xxh3_64 of equal pieces, in their order."""

    path: str
    identity: Identity
    xxh3_128: str
    blocks: tuple[str, ...]

    @classmethod
    def of_line(cls, line: Mapping[str, Any]) -> "FileRecord":
        """Parse a line. Raises LookupError, TypeError, ValueError."""
        identity = Identity(int(line["inode"]), int(line["bytes"]), int(line["mtime_ns"]))
        if not isinstance(line["xxh3_128"], str):
            raise TypeError
        return cls(line["path"], identity, line["xxh3_128"], tuple(map(str, line["blocks"])))

    def facts(self) -> dict[str, Any]:
        return {"path": self.path, **self.identity._asdict(), "xxh3_128": self.xxh3_128, "blocks": self.blocks}


class FileState(TextEnum):
    """The result of comparing a file with its record."""

    GOOD = "good"
    # No record, or none of the current content.
    UNKNOWN = "unknown"
    DAMAGED = "damaged"


@dataclass(frozen=True)
class FileVerification:
    """`expected` and `actual` are checksums; empty where there is none."""

    found: FileState
    expected: str = ""
    actual: str = ""


# --- writing ----------------------------------------------------------------------------------------------------------


def registry_of(worker: Worker) -> Path:
    """Return the folder with records of what the run's scripts have saved."""
    return _registry(worker.run_json, worker.attempt)


@functools.lru_cache(maxsize=1)
def _registry(run_json: str, attempt: int) -> Path:
    return RunDirectory.of(Path(run_json), attempt).saved


class _Appending:
    """This process's descriptor of its host's file: opened once, because a script may save thousands of small files a second."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self._place: tuple[str, int, int] | None = None
        self._descriptor, self._file, self._number = -1, (0, 0), 0

    def append(self, worker: Worker, raw: bytes) -> None:
        """Append in one write, as other processes of this host append too. Raises OSError."""
        with self.lock:
            place = worker.run_json, worker.attempt, worker.generation
            size = self._size() if self._place == place else None
            if size is None:
                self._number = 0
            if size is None or size > ROTATE_BYTES:
                size = self._open(worker, size is not None)
                self._place = place
            written = os.write(self._descriptor, raw)
            # A full disk: the next line must not continue the half line.
            if written != len(raw):
                os.write(self._descriptor, b"\n")

    def _size(self) -> int | None:
        """Return the file's size; None if the descriptor is no longer ours: a script may close unknown descriptors and
        reuse the number."""
        try:
            stat = os.fstat(self._descriptor)
        except OSError:
            return None
        return stat.st_size if (stat.st_dev, stat.st_ino) == self._file else None

    def _open(self, worker: Worker, ours: bool) -> int:
        if ours:
            os.close(self._descriptor)
        registry = registry_of(worker)
        registry.mkdir(parents=True, exist_ok=True)
        while True:
            path = _file_of(registry, worker, self._number)
            self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
            stat = os.fstat(self._descriptor)
            self._file = stat.st_dev, stat.st_ino
            if stat.st_size <= ROTATE_BYTES:
                return stat.st_size
            os.close(self._descriptor)
            self._number += 1
            _file_of(registry, worker, self._number - 2).unlink(missing_ok=True)


_appending = _Appending()


def _file_of(registry: Path, worker: Worker, number: int) -> Path:
    return registry / f"{socket.gethostname()}.{worker.attempt}.{worker.generation}.{number}.jsonl"


def _in_child() -> None:
    _appending.lock = threading.Lock()


os.register_at_fork(after_in_child=_in_child)


def append(worker: Worker, lines: Iterable[Mapping[str, Any]]) -> None:
    """Append lines, each with its kind, its path and the Unix time of the save. Raises OSError."""
    if raw := b"".join(map(_line, lines)):
        _appending.append(worker, raw)


def _line(facts: Mapping[str, Any]) -> bytes:
    return _encoded(facts).encode() + b"\n"


_encoded = json.JSONEncoder(separators=(",", ":")).encode


def line(worker: Worker, kind: str, path: str, wall: float, **facts: Any) -> dict[str, Any]:
    """Return a line. The path comes first: old lines are sorted by folder before they are parsed."""
    return {"path": path, "kind": kind, "wall": wall, "host": socket.gethostname(), "generation": worker.generation, **facts}


def record_of(path: str, expected: Identity) -> FileRecord | None:
    """Read the file, which is usually in the page cache; None if it is no longer what it was. Raises OSError."""
    with open(path, "rb", buffering=0) as file:  # noqa: PTH123
        if Identity.of(os.fstat(file.fileno())) != expected:
            return None
        whole, blocks = _hashes(file, expected.bytes)
        return FileRecord(path, expected, whole, blocks) if Identity.of(os.fstat(file.fileno())) == expected else None


# --- reading ----------------------------------------------------------------------------------------------------------


class Known:
    """The records of a run that this process has read or made, by file identity."""

    def __init__(self) -> None:
        self._records: dict[Identity, FileRecord | None] = {}
        self._checksums: set[str] = set()
        self.by_path: dict[str, FileRecord] = {}

    def add(self, record: FileRecord) -> None:
        if len(self._records) >= MOST:
            self.__init__()  # type: ignore[misc]  # a script that saves without end: forgotten files are not verified
        before = self._records.get(record.identity, record)
        # Two files of one identity: on two file systems, or within one tick of a coarse clock. Neither is verified.
        self._records[record.identity] = record if before is not None and before.xxh3_128 == record.xxh3_128 else None
        self._checksums.add(record.xxh3_128)
        self.by_path[record.path] = record

    def of(self, identity: Identity) -> FileRecord | None:
        return self._records.get(identity)

    def holds(self, checksum: str) -> bool:
        """Return whether any save had these bytes."""
        return checksum in self._checksums


_known: dict[Path, Known] = {}


def known(registry: Path) -> Known:
    """Return this process's records; the first call reads those of other processes."""
    if registry not in _known:
        read(registry, None)
    return _known[registry]


def read(registry: Path, host: str | None) -> list[dict[str, Any]]:
    """Return the complete lines of a registry in the order of appending, and learn the records among them; with `host`,
    only of saves there."""
    found, learnt = list[dict[str, Any]](), _known.setdefault(registry, Known())
    for file in sorted(registry.glob("*.jsonl"), key=_generation):
        for each in read_last(file, READ_BYTES):
            if not isinstance(each.get("path"), str) or not isinstance(each.get("wall"), int | float):
                continue
            if each.get("kind") in (FILE, PART):
                try:
                    learnt.add(FileRecord.of_line(each))
                except (LookupError, TypeError, ValueError):
                    continue
            if host is None or each.get("host") == host:
                found.append(each)
    return found


def _generation(file: Path) -> tuple[int, ...]:
    """Return the attempt and generation that a file was begun in; those of earlier ones may be merged."""
    words = file.name.rsplit(".", 4)[1:4]
    return tuple(map(int, words[:2])) if len(words) == 3 and all(word.isdecimal() for word in words) else (-1, -1)


def shorten(worker: Worker) -> None:
    """Merge the files of earlier generations, whose processes have ended, and keep the newest lines.

    Several processes may do this at once: each deletes only what it has copied. Raises OSError.
    """
    registry = registry_of(worker)
    now = worker.attempt, worker.generation
    earlier = sorted((file for file in registry.glob("*.jsonl") if _generation(file) < now), key=_generation)
    if len(earlier) < 2 and sum(file.stat().st_size for file in earlier) <= 2 * KEEP_BYTES:
        return
    kept = _newest(raw for file in earlier for raw in _raw_lines(file))
    merged = registry / f"{socket.gethostname()}-{os.getpid()}.{worker.attempt}.{worker.generation}.0.jsonl"
    write_atomic(merged, b"".join(kept))
    for file in earlier:
        file.unlink(missing_ok=True)


def _raw_lines(file: Path) -> list[bytes]:
    """Return the complete lines at the end of a file."""
    try:
        with file.open("rb") as stream:
            stream.seek(max(0, os.fstat(stream.fileno()).st_size - ROTATE_BYTES))
            raw = stream.read()
    except FileNotFoundError:
        return []
    return [each + b"\n" for each in raw[: raw.rfind(b"\n") + 1].split(b"\n") if each.startswith(b'{"path":')]


def _newest(lines: Iterable[bytes]) -> list[bytes]:
    """Return the newest lines of each folder, and in total, in their order."""
    ordered = list(lines)
    of_folder, kept, room = defaultdict[bytes, int](int), set[int](), KEEP_BYTES
    for number in range(len(ordered) - 1, -1, -1):
        found = _FOLDER.match(ordered[number], 1)
        folder = found[1] if found else b""
        of_folder[folder] += 1
        room -= len(ordered[number])
        if room >= 0 or of_folder[folder] <= NEWEST:
            kept.add(number)
    return [ordered[number] for number in sorted(kept)]


# --- verifying --------------------------------------------------------------------------------------------------------


def verify(path: Path, found: Known) -> FileVerification:
    """Compare a file with the record of its identity.

    A file is damaged only if no program can have written it: inode, length and time are as recorded, and the bytes are
    those of no save. Raises OSError.
    """
    before = path.stat()
    record = found.of(Identity.of(before))
    if record is None:
        return FileVerification(FileState.UNKNOWN)
    whole = checksum(path, record.identity.bytes)
    if whole == record.xxh3_128:
        return FileVerification(FileState.GOOD, record.xxh3_128, whole)
    if Identity.of(path.stat()) != record.identity or found.holds(whole):
        return FileVerification(FileState.UNKNOWN, record.xxh3_128, whole)
    if (kind := file_system(before.st_dev)) in TIMELESS:
        note_limitation(
            f"{path}: xxh3_128 is {whole}, but {record.xxh3_128} was saved; {kind} does not show whether another program wrote it"
        )
        return FileVerification(FileState.UNKNOWN, record.xxh3_128, whole)
    return FileVerification(FileState.DAMAGED, record.xxh3_128, whole)


def checksum(path: Path, size: int) -> str:
    """Return xxh3_128 of the first `size` bytes. Raises OSError."""
    with path.open("rb", buffering=0) as file:
        return _hashes(file, size)[0]


def file_system(device: int) -> str | None:
    """Return the type of the file system with this device number; None if it is not listed (a part of btrfs or of an overlay)."""
    wanted = f"{os.major(device)}:{os.minor(device)}"
    for mount in Path("/proc/self/mountinfo").read_text().splitlines():
        fields, _, more = mount.partition(" - ")
        if fields.split()[2] == wanted:
            return more.split()[0]
    return None


def differ(path: Path, size: int, blocks: Sequence[str], first: int) -> bool:
    """Return whether any of these blocks, from the number `first` on, has other bytes than were saved. Raises OSError."""
    found = _block_hashes(path, size, first, first + len(blocks))
    return any(found.get(first + number) != expected for number, expected in enumerate(blocks))


def block_bytes(size: int) -> int:
    """Return the length of a file's blocks, except the last one's."""
    return max(BLOCK_BYTES, -(-size // BLOCKS))


def _block_hashes(path: Path, size: int, first: int, end: int) -> dict[int, str]:
    blocks = dict[int, xxhash.xxh3_64]()
    with path.open("rb", buffering=0) as file:
        for number, data in _read(file, size, first, end):
            blocks.setdefault(number, xxhash.xxh3_64()).update(data)
    return {number: block.hexdigest() for number, block in blocks.items()}


def _read(file: io.FileIO, size: int, first: int, end: int) -> Iterator[tuple[int, bytes]]:
    """Yield the existing blocks within the first `size` bytes of a file, each with its number."""
    piece = block_bytes(size)
    file.seek(first * piece)
    for number in range(first, end):
        left = min(piece, size - number * piece)
        while left > 0 and (data := file.read(min(left, _READ_BYTES))):
            yield number, data
            left -= len(data)


def _hashes(file: io.FileIO, size: int) -> tuple[str, tuple[str, ...]]:
    """Return xxh3_128 of the first `size` bytes of the file, and xxh3_64 of each block of them."""
    whole, blocks = xxhash.xxh3_128(), dict[int, xxhash.xxh3_64]()
    for number, data in _read(file, size, 0, -(-size // block_bytes(size))):
        whole.update(data)
        blocks.setdefault(number, xxhash.xxh3_64()).update(data)
    return whole.hexdigest(), tuple(block.hexdigest() for block in blocks.values())
