"""Tests captures of a node on disk: the stored bytes are the sealed ones, in few files, and a full disk keeps no partial checkpoint."""

import mmap
import os
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from headway.runner.checkpoint.format import MANIFEST
from headway.runner.checkpoint.keeper.capture import ALIGN
from headway.runner.checkpoint.keeper.disk import WRITE_BYTES, DiskStorage, write_regions
from headway.runner.checkpoint.read import Reader
from headway.runner.checkpoint.sources import DirectorySource
from headway.runner.contract import CheckpointId
from tests.support.captures import RUN, captured, content, manifest

TEMPORARY = f".tmp-{CheckpointId(3, 1).directory}"
# A rank that owns nothing, one with less than a block, one with a block, and one with more than a single write holds.
LENGTHS = [0, 100, ALIGN, WRITE_BYTES + 5]


@pytest.mark.slow
def test_stored_captures_are_read_back_and_verified(tmp_path: Path) -> None:
    with captured(3, LENGTHS) as node:
        raw, base = manifest(node, DiskStorage(tmp_path).store(node))
    (tmp_path / TEMPORARY / MANIFEST).write_bytes(raw)
    reader = Reader(DirectorySource(tmp_path / TEMPORARY), RUN, base)
    for rank, length in enumerate(LENGTHS):
        (chunk,) = reader.tensors()[f"w.{rank}"].chunks
        assert bytes(reader.chunk(f"w.{rank}", chunk)) == content(rank, length)
        assert reader.objects(rank) == {"step": 3}


def test_a_node_writes_one_data_file_and_one_part_per_rank(tmp_path: Path) -> None:
    with captured(3, LENGTHS, slot=7) as node:
        stored = DiskStorage(tmp_path).store(node)
    assert [one.rank for one in stored] == [0, 1, 2, 3]
    assert {(one.file, one.file_bytes) for one in stored} == {
        ("data-7-0.bin", (tmp_path / TEMPORARY / "data-7-0.bin").stat().st_size)
    }
    names = {path.name for path in (tmp_path / TEMPORARY).iterdir()}
    assert names == {"data-7-0.bin", "part-0.json", "part-1.json", "part-2.json", "part-3.json"}


def test_tensors_owned_by_another_rank_are_named_but_not_written(tmp_path: Path) -> None:
    with captured(3, [10]) as node:
        raw, base = manifest(node, DiskStorage(tmp_path).store(node))
    (tmp_path / TEMPORARY / MANIFEST).write_bytes(raw)
    entry = Reader(DirectorySource(tmp_path / TEMPORARY), RUN, base).part(0).tensors["shared"]
    assert (entry.held.shape, entry.chunks) == ((16,), ())


def test_a_retry_replaces_the_first_attempt(tmp_path: Path) -> None:
    for lengths in ([5 * ALIGN], [10]):
        with captured(3, lengths) as node:
            stored = DiskStorage(tmp_path).store(node)
    assert stored[0].file_bytes == ALIGN == (tmp_path / TEMPORARY / "data-0-0.bin").stat().st_size


def test_unaligned_bytes_are_written_through_the_page_cache(tmp_path: Path) -> None:
    """The address of the second region is not a multiple of a block: EINVAL under O_DIRECT (open(2))."""
    memory = mmap.mmap(-1, 3 * ALIGN)
    memory[:] = os.urandom(len(memory))
    with memoryview(memory) as view:
        regions = [view[:ALIGN], view[100 : 100 + ALIGN], view[2 * ALIGN :]]
        assert write_regions(tmp_path / "file", regions) == 3 * ALIGN
        assert (tmp_path / "file").read_bytes() == b"".join(regions)
        for region in regions:
            region.release()
    memory.close()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MiB."""
    path = tmp_path / "small"
    path.mkdir()
    argv = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(path)]
    mounting = subprocess.run(argv, capture_output=True, text=True, check=False)
    if mounting.returncode != 0:
        pytest.skip(f"mounting a small file system needs root: {mounting.stderr.strip()}")
    try:
        yield path
    finally:
        subprocess.run(["umount", str(path)], check=True)


@pytest.mark.parametrize("length", [1 << 20, 2 << 20, (1 << 20) - 2 * ALIGN], ids=["as large", "larger", "but for the part"])
def test_a_full_disk_is_named_and_left_clean(small_disk: Path, length: int) -> None:
    storage = DiskStorage(small_disk)
    with captured(2, [ALIGN]) as node:
        storage.store(node)
    with captured(3, [length]) as node, pytest.raises(OSError, match="No space left on device"):
        storage.store(node)
    assert [path.name for path in small_disk.iterdir()] == [f".tmp-{CheckpointId(2, 1).directory}"]
    with captured(3, [ALIGN]) as node:
        storage.store(node)


def test_files_of_other_nodes_are_kept_when_this_node_fails(small_disk: Path) -> None:
    with captured(3, [ALIGN]) as node:
        DiskStorage(small_disk).store(node)
    before = {path.name for path in (small_disk / TEMPORARY).iterdir()}
    with captured(3, [ALIGN, 2 << 20], slot=1) as node:
        other = replace(node, ranks=tuple(replace(capture, rank=capture.rank + 1) for capture in node.ranks))
        with pytest.raises(OSError, match="No space left on device"):
            DiskStorage(small_disk).store(other)
    assert {path.name for path in (small_disk / TEMPORARY).iterdir()} == before
