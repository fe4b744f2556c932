"""The checksum of a file that a script saved, in a hidden file beside it: `.NAME.xxh3`.

Hidden, so that no script's own search (`ckpt-*`, the last name of a sorted listing) takes it for a checkpoint.
"""

import json
import math
import os
import re
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import xxhash

from headway.runner.contract import RecordError, from_json, to_json

BLOCKS = 64
_READ_BYTES = 1 << 24
_SUFFIX = ".xxh3"
# What headway leaves beside a script's checkpoints: sidecars, and what it has refused.
_OWN = re.compile(r"\..+\.(xxh3(\.\d+)?|refused(-\d+)?)")


@dataclass(frozen=True)
class Sidecar:
    """`blocks` are xxh3_64 of at most BLOCKS equal pieces: they tell a damaged file from one that somebody has written anew. As long as the
    file is being saved there is no checksum."""

    bytes: int
    mtime_ns: int
    xxh3_128: str
    blocks: tuple[str, ...]
    run: str | None
    generation: int
    step: int
    schema: str = "headway.saved/1"


class Found(StrEnum):
    """What a file is, compared with its sidecar."""

    GOOD = "good"
    UNKNOWN = "unknown"  # no sidecar, or one of other bytes
    DAMAGED = "damaged"


@dataclass(frozen=True)
class Verified:
    """`expected` and `actual` are checksums; empty where there is none."""

    found: Found
    expected: str = ""
    actual: str = ""


def sidecar_of(path: Path) -> Path:
    return path.with_name(f".{path.name}{_SUFFIX}")


def file_of(sidecar: Path) -> Path:
    """The file that a sidecar is of."""
    return sidecar.with_name(sidecar.name[1 : -len(_SUFFIX)])


def is_own(name: str) -> bool:
    """Whether a name in a script's folder is one that headway gave."""
    return _OWN.fullmatch(name) is not None


def write_sidecar(path: Path, run: str | None, generation: int, step: int) -> None:
    """Reads the file, which has just been written and so lies in memory, and puts its sidecar beside it, unless the file changes
    meanwhile. Raises OSError."""
    stat = path.stat()
    whole, blocks = _hashes(path, stat.st_size)
    if _identity(path.stat()) != _identity(stat):
        return  # another process writes it
    _put(path, Sidecar(stat.st_size, stat.st_mtime_ns, whole, blocks, run, generation, step))


def mark_begun(path: Path, run: str | None, generation: int, step: int) -> None:
    """Puts a sidecar without a checksum beside a file that is about to be written. Raises OSError."""
    _put(path, Sidecar(0, 0, "", (), run, generation, step))


def _put(path: Path, record: Sidecar) -> None:
    target = sidecar_of(path)
    temporary = target.with_name(f"{target.name}.{os.getpid()}")
    # Not synced, like the file itself: what a crash of the machine leaves half is read as none.
    temporary.write_text(to_json(record))
    temporary.replace(target)


def is_cut_off(path: Path) -> bool:
    """Whether a save that never ended has left what cannot be whole: nothing, an archive without its directory (torch.save writes that
    last), or less than a safetensors header says. Raises OSError."""
    record = recorded(path)
    if record is None or record.xxh3_128:
        return False
    size = path.stat().st_size
    with path.open("rb") as file:
        head = file.read(8)
        if head.startswith(b"PK\3\4"):
            return not zipfile.is_zipfile(path)
        if path.suffix != ".safetensors":
            return size == 0
        length = int.from_bytes(head, "little")
        return size < 8 + length or size < 8 + length + _end(file.read(length))


def _end(header: bytes) -> float:
    """Where the data of a safetensors file ends, behind its header (huggingface/safetensors: README.md, Format); with a header that is none
    it would never end."""
    try:
        entries = [entry for name, entry in json.loads(header).items() if name != "__metadata__"]
        return max((entry["data_offsets"][1] for entry in entries), default=0)
    except (ValueError, AttributeError, TypeError, LookupError):
        return math.inf


def sweep(directory: Path) -> None:
    """Deletes the sidecars of files that are gone."""
    for sidecar in directory.glob(f".*{_SUFFIX}"):
        if not file_of(sidecar).exists():
            sidecar.unlink(missing_ok=True)


def verify(path: Path) -> Verified:
    """Compares a file with its sidecar.

    Other bytes than were saved are damage, whatever the times say: a copy, a rename or a restored backup changes those. Only a file of
    another time most of whose pieces differ has been put there by somebody who left no checksum. What was appended later (a second object
    in an open file, the end of a gzip stream) is nobody's damage, and nothing is known of a file that changes meanwhile. Raises OSError.
    """
    if (record := recorded(path)) is None or not record.xxh3_128:
        return Verified(Found.UNKNOWN)
    before = path.stat()
    whole, blocks = _hashes(path, record.bytes)
    if whole == record.xxh3_128:
        return Verified(Found.GOOD, record.xxh3_128, whole)
    if recorded(path) != record or _identity(path.stat()) != _identity(before):
        return Verified(Found.UNKNOWN, record.xxh3_128, whole)
    same = sum(before == now for before, now in zip(record.blocks, blocks, strict=False))
    comparable = min(len(record.blocks), len(blocks))
    anew = before.st_mtime_ns != record.mtime_ns and comparable > 1 and 2 * same < comparable
    return Verified(Found.UNKNOWN if anew else Found.DAMAGED, record.xxh3_128, whole)


def recorded(path: Path) -> Sidecar | None:
    """What is known of a file; None where there is nothing, or nothing that can be read. Raises OSError."""
    try:
        return from_json(Sidecar, sidecar_of(path).read_text())
    except (FileNotFoundError, RecordError, UnicodeDecodeError):
        return None


def _identity(stat: os.stat_result) -> tuple[int, int, int]:
    return stat.st_ino, stat.st_size, stat.st_mtime_ns


def differ(path: Path, record: Sidecar, first: int, end: int) -> bool:
    """Whether any of the blocks from `first` up to `end` has other bytes than were saved. Raises OSError."""
    blocks = dict[int, xxhash.xxh3_64]()
    for number, data in _read(path, record.bytes, first, end):
        blocks.setdefault(number, xxhash.xxh3_64()).update(data)
    return any(number not in blocks or blocks[number].hexdigest() != record.blocks[number] for number in range(first, end))


def _read(path: Path, size: int, first: int, end: int) -> Iterator[tuple[int, bytes]]:
    """The bytes of blocks of the first `size` bytes of a file, each with its block's number, as far as there are any."""
    piece = max(1, -(-size // BLOCKS))
    with path.open("rb") as file:
        file.seek(first * piece)
        for number in range(first, end):
            left = min(piece, size - number * piece)
            while left > 0 and (data := file.read(min(left, _READ_BYTES))):
                yield number, data
                left -= len(data)


def _hashes(path: Path, size: int) -> tuple[str, tuple[str, ...]]:
    """xxh3_128 of the first `size` bytes of the file, and xxh3_64 of each of at most BLOCKS equal pieces of them."""
    whole, blocks = xxhash.xxh3_128(), dict[int, xxhash.xxh3_64]()
    for number, data in _read(path, size, 0, BLOCKS):
        whole.update(data)
        blocks.setdefault(number, xxhash.xxh3_64()).update(data)
    return whole.hexdigest(), tuple(block.hexdigest() for block in blocks.values())
