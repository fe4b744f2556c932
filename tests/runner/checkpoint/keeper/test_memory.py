"""Tests a node's memory for captures: its limit is checked before allocation, and allocated memory cannot be taken away."""

import mmap
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from headway.runner.checkpoint.keeper.capture import ALIGN
from headway.runner.checkpoint.keeper.memory import V1, ControlGroups, KeeperMemory, NoMemoryError, Region, free_bytes

MIB = 1 << 20


def test_a_region_has_its_pages_from_the_start() -> None:
    region = Region(3 * MIB)
    assert os.fstat(region.descriptor).st_blocks * 512 == 3 * MIB
    region.close()


def test_a_region_is_writable_by_one_descriptor_and_read_only_by_the_other() -> None:
    region = Region(ALIGN)
    with mmap.mmap(os.dup(region.descriptor), ALIGN) as writable:
        writable[0] = 7
    only = region.read_only()
    with pytest.raises(PermissionError):
        mmap.mmap(only, ALIGN)
    with mmap.mmap(only, ALIGN, prot=mmap.PROT_READ) as readable:
        assert readable[0] == 7 == region.view[0]
    os.close(only)
    region.close()


def test_no_process_can_shrink_a_region() -> None:
    region = Region(2 * ALIGN)
    with pytest.raises(PermissionError):
        os.ftruncate(region.descriptor, ALIGN)
    region.close()


def test_released_memory_can_be_allocated_again() -> None:
    memory = KeeperMemory()
    memory.limit_bytes = 2 * MIB
    region = memory.region(2 * MIB)
    with pytest.raises(NoMemoryError, match=f"needs {ALIGN} bytes, but {2 * MIB} of host_memory_bytes {2 * MIB} are in use"):
        memory.region(1)
    memory.give_back(region)
    assert memory.taken_bytes == 0
    memory.give_back(memory.region(2 * MIB))


def test_a_region_closed_during_a_read_stays_readable() -> None:
    region = Region(ALIGN)
    piece = region.view[:4]
    piece[:] = b"held"
    region.close()
    assert bytes(piece) == b"held"


# --- control groups -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def group() -> Iterator[Path]:
    """A control group of version 1 with a limit of 64 MiB."""
    own = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
    names = [name for _, controllers, name in own if "memory" in controllers.split(",")]
    path = V1.root / (names or [""])[0].lstrip("/") / f"headway-test-{os.getpid()}"
    try:
        path.mkdir()
        (path / V1.limit).write_text(str(64 * MIB))
    except OSError as error:
        pytest.skip(f"a memory control group of version 1 needs root and its file system: {error}")
    try:
        yield path
    finally:
        path.rmdir()


def test_a_control_group_limits_the_available_memory(group: Path) -> None:
    code = (
        "import os, sys\n"
        "open(sys.argv[1] + '/cgroup.procs', 'w').write(str(os.getpid()))\n"
        "from headway.runner.checkpoint.keeper.memory import KeeperMemory, NoMemoryError, free_bytes\n"
        "before, memory = free_bytes(), KeeperMemory()\n"
        "memory.region(16 << 20)\n"
        "print(before, free_bytes())\n"
        "try: memory.region(60 << 20)\n"
        "except NoMemoryError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(group)], capture_output=True, text=True, check=True)
    numbers, refused = done.stdout.splitlines()
    before, after = map(int, numbers.split())
    assert before <= 64 * MIB < free_bytes()
    assert before - after > 15 * MIB
    assert refused.startswith(f"needs {60 * MIB} bytes, but the node has ")


def test_the_smallest_nested_limit_counts_and_reclaimable_pages_are_free(tmp_path: Path) -> None:
    """Files as the kernel's cgroup-v2 document describes them."""
    inner = tmp_path / "job" / "step"
    inner.mkdir(parents=True)
    for level, limit, used, inactive in (
        (inner, "max", 900, 0),
        (tmp_path / "job", "1000", 900, 300),
        (tmp_path, "5000", 1000, 0),
    ):
        (level / "memory.max").write_text(f"{limit}\n")
        (level / "memory.current").write_text(f"{used}\n")
        (level / "memory.stat").write_text(f"anon 5\ninactive_file {inactive}\n")
    groups = ControlGroups(tmp_path, "memory.max", "memory.current", "inactive_file")
    assert list(groups.free_bytes(inner)) == [400, 4000]
