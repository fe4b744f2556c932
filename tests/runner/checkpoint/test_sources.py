"""Tests sources: a directory and an object store give the same bytes and refusals, and remote reads are counted."""

from collections.abc import Callable
from pathlib import Path

import pytest

from headway.runner.checkpoint.bucket import READ_BYTES, ObjectBucket
from headway.runner.checkpoint.format import RefusedError, chunk_hash
from headway.runner.checkpoint.keeper.disk import DiskStorage
from headway.runner.checkpoint.read import Reader
from headway.runner.checkpoint.remote import RemoteStorage, write_manifest
from headway.runner.checkpoint.sources import DirectorySource, ObjectSource, Source
from headway.runner.contract import CheckpointId
from headway.runner.posix import TEMPORARY
from tests.real.s3 import S3Server
from tests.support.captures import RUN, captured, content, manifest

AT = CheckpointId(10, 1)
FOLDER = f"{RUN}/{AT.directory}"
Files = dict[str, bytes]


def directory_with(tmp_path: Path, files: Files) -> Source:
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    return DirectorySource(tmp_path)


@pytest.fixture(params=["directory", "objects"])
def source_of(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[Files], Source]:
    """Either kind of source, made of the files."""
    if request.param == "directory":
        return lambda files: directory_with(tmp_path, files)
    url = str(request.getfixturevalue("bucket"))

    def objects(files: Files) -> Source:
        for name, data in files.items():
            ObjectBucket(url).put(f"{FOLDER}/{name}", data)
        return ObjectSource(url, RUN, AT)

    return objects


def test_a_file_is_read_whole_and_in_ranges(source_of: Callable[[Files], Source]) -> None:
    source, out = source_of({"part-0.json": b"0123456789", "empty": b""}), bytearray(4)
    assert source.read("part-0.json") == b"0123456789"
    assert source.read("empty") == b""
    source.read_into("part-0.json", 3, memoryview(out))
    assert out == b"3456"
    source.read_into("part-0.json", 10, memoryview(b""))


def test_a_range_is_hashed_with_the_seed(source_of: Callable[[Files], Source]) -> None:
    data = content(0, READ_BYTES + 15)
    source, out = source_of({"data-0-0.bin": data}), bytearray(READ_BYTES + 10)
    assert source.read_into("data-0-0.bin", 3, memoryview(out), 7) == chunk_hash(data[3:-2], 7)
    assert out == data[3:-2]
    assert source.read_into("data-0-0.bin", 3, memoryview(b""), 7) == chunk_hash(b"", 7)


def test_a_range_beyond_the_end_is_reported_with_the_available_bytes(source_of: Callable[[Files], Source]) -> None:
    source = source_of({"data-0-0.bin": b"0123456789"})
    with pytest.raises(EOFError, match=r"^ends after 3 of 5 bytes$"):
        source.read_into("data-0-0.bin", 7, memoryview(bytearray(5)))


def test_a_range_after_the_end_and_a_missing_file_are_refused(source_of: Callable[[Files], Source]) -> None:
    source = source_of({"data-0-0.bin": b"0123456789"})
    with pytest.raises((OSError, EOFError)):
        source.read_into("data-0-0.bin", 20, memoryview(bytearray(5)))
    with pytest.raises(FileNotFoundError):
        source.read("part-7.json")
    with pytest.raises(FileNotFoundError):
        source.read_into("data-7-0.bin", 0, memoryview(bytearray(5)))


def test_a_long_range_is_read_in_bounded_and_counted_requests(bucket: str, s3: S3Server) -> None:
    data, out = content(0, 2 * READ_BYTES + 5), bytearray(2 * READ_BYTES)
    ObjectBucket(bucket).put(f"{FOLDER}/data-0-0.bin", data)
    source = ObjectSource(bucket, RUN, AT)
    source.read_into("data-0-0.bin", 3, memoryview(out))
    assert out == data[3 : 3 + 2 * READ_BYTES]
    assert (source.reads.requests, source.reads.bytes) == (2, 2 * READ_BYTES)
    assert sum(line.startswith("GET ") for line in s3.answered(bucket)) == 2


def test_disk_and_store_hold_equal_checkpoints_read_once_per_byte(bucket: str, tmp_path: Path) -> None:
    with captured(10, [5000, 20]) as node:
        on_disk, remote = DiskStorage(tmp_path).store(node), RemoteStorage(bucket).store(node)
        raw, base = manifest(node, remote)
    assert on_disk == remote
    written = tmp_path / f"{TEMPORARY}{AT.directory}"
    write_manifest(bucket, RUN, AT, raw)
    for name in ("data-0-0.bin", "part-0.json", "part-1.json"):
        assert ObjectBucket(bucket).get(f"{FOLDER}/{name}") == (written / name).read_bytes()
    source = ObjectSource(bucket, RUN, AT)
    reader = Reader(source, RUN, base)
    tensors = reader.tensors()
    for rank, length in enumerate([5000, 20]):
        assert [bytes(reader.chunk(f"w.{rank}", chunk)) for chunk in tensors[f"w.{rank}"].chunks] == [content(rank, length)]
    assert reader.objects(1) == {"step": 10}
    assert tensors["shared"].chunks == ()  # written by a rank of another node
    files = len(raw) + sum((written / part).stat().st_size for part in ("part-0.json", "part-1.json"))
    assert (source.reads.requests, source.reads.bytes) == (3 + 2, files + 5020)


@pytest.mark.parametrize("name", ["manifest.json", "part-0.json", "data-0-0.bin"])
def test_a_flipped_bit_and_a_lost_object_are_refused_by_name(bucket: str, name: str) -> None:
    with captured(10, [100]) as node:
        raw, base = manifest(node, RemoteStorage(bucket).store(node))
    write_manifest(bucket, RUN, AT, raw)

    def read_all() -> None:
        reader = Reader(ObjectSource(bucket, RUN, AT), RUN, base)
        for tensor, found in reader.tensors().items():
            for chunk in found.chunks:
                reader.chunk(tensor, chunk)

    read_all()
    path = f"{FOLDER}/{name}"
    damaged = bytearray(ObjectBucket(bucket).get(path))
    damaged[50] ^= 4
    ObjectBucket(bucket).put(path, bytes(damaged))
    with pytest.raises(RefusedError) as flipped:
        read_all()
    assert flipped.value.name == name
    ObjectBucket(bucket).delete([path])
    with pytest.raises(RefusedError, match="NoSuchKey") as lost:
        read_all()
    assert lost.value.name == name
