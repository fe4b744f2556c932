"""Tests the records of files: what counts as damage, and that writes by other programs never do."""

import itertools
import mmap
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.runner.boot import files, limitations, records, saved
from headway.runner.boot.records import BLOCK_BYTES, FILE, FileState, Identity, Known, record_of, verify
from tests.runner.boot.test_saved import save
from tests.support.worker import Booted, booted, flip

CONTENT = bytes(range(256)) * 100


@pytest.fixture
def boot(tmp_path: Path) -> Iterator[Booted]:
    with booted(tmp_path / "run") as found:
        yield found
    limitations._seen.clear()


@pytest.fixture
def path(tmp_path: Path, boot: Booted) -> Path:
    return save(tmp_path / "model.pt", CONTENT)


def found(path: Path) -> FileState:
    return verify(path, saved.here()).found


def keeping_times(path: Path, change: Callable[[], object]) -> None:
    stat = path.stat()
    change()
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))


@pytest.mark.parametrize("place", [0, 12_345, len(CONTENT) - 1])
def test_a_flipped_bit_in_an_unmodified_file_is_damage(place: int, path: Path) -> None:
    assert found(path) is FileState.GOOD
    flip(path, place)
    verified = verify(path, saved.here())
    assert verified.found is FileState.DAMAGED
    assert verified.actual not in ("", verified.expected)


@pytest.mark.parametrize("seconds", [-5, 5])
def test_a_bit_changed_by_a_program_is_not_damage(seconds: int, path: Path) -> None:
    stat = path.stat()
    flip(path)
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns + seconds * 10**9))
    assert found(path) is FileState.UNKNOWN


@pytest.mark.parametrize("length", [0, 1, len(CONTENT) - 1, len(CONTENT) + 1])
def test_a_file_of_another_length_is_not_damaged(length: int, path: Path) -> None:
    keeping_times(path, lambda: os.truncate(path, length))
    assert found(path) is FileState.UNKNOWN


def test_another_file_with_the_same_name_length_and_time_is_not_damaged(path: Path) -> None:
    def replace() -> None:
        path.with_name("other").write_bytes(CONTENT[::-1])
        path.with_name("other").replace(path)

    keeping_times(path, replace)
    assert found(path) is FileState.UNKNOWN


def test_the_bytes_of_another_save_are_a_copy_and_not_damage(tmp_path: Path, path: Path) -> None:
    """`cp --preserve` of a file that was saved within the same tick of a coarse clock."""
    other = save(tmp_path / "other.pt", CONTENT[::-1])
    keeping_times(path, lambda: shutil.copyfile(other, path))
    assert found(path) is FileState.UNKNOWN


def test_without_times_of_mapped_writes_damage_is_not_judged_and_reported(
    path: Path, boot: Booted, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = records.file_system(path.stat().st_dev)
    monkeypatch.setattr(records, "TIMELESS", {kind})
    flip(path)
    assert found(path) is FileState.UNKNOWN
    limitations.report_limitations()
    (note,) = boot.said()
    assert note["calls"][0].endswith(f"was saved; {kind} does not show whether another program wrote it")


@pytest.mark.skipif(records.file_system(os.stat("/dev/shm").st_dev) != "tmpfs", reason="/dev/shm is no tmpfs")  # noqa: PTH116
def test_tmpfs_does_not_update_times_of_mapped_writes() -> None:
    assert "tmpfs" in records.TIMELESS


def test_a_file_overwritten_before_it_is_read_has_no_record(tmp_path: Path, boot: Booted) -> None:
    path = tmp_path / "model.pt"
    path.write_bytes(CONTENT)
    files.expect(boot.worker, str(path), FILE)
    path.write_bytes(CONTENT[1:])
    files.settle(1.0)
    assert [line["kind"] for line in records.read(records.registry_of(boot.worker), None)] == [records.ENDED]


def test_a_file_overwritten_while_it_is_read_has_no_record(tmp_path: Path, boot: Booted, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "model.pt"
    path.write_bytes(CONTENT)
    original = records._hashes

    def hashes(*args: Any) -> Any:
        done = original(*args)
        path.write_bytes(CONTENT[1:])
        return done

    monkeypatch.setattr(records, "_hashes", hashes)
    assert record_of(str(path), Identity.of(path.stat())) is None


def test_a_file_is_read_only_once_later_writes_would_change_its_time(
    tmp_path: Path, boot: Booted, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now_s[0])
    monkeypatch.setattr(files, "TICK_S", 0.02)
    monkeypatch.setattr(files, "WHOLE_SECONDS_S", 2.1)
    fine, coarse = tmp_path / "fine.pt", tmp_path / "coarse.pt"
    for path, mtime_ns in ((fine, 10**18 + 1), (coarse, 10**18)):
        path.write_bytes(CONTENT)
        os.utime(path, ns=(mtime_ns, mtime_ns))
        files.expect(boot.worker, str(path), FILE)
    kept = []
    for now_s[0] in (100.0, 100.01, 100.03, 102.0, 102.2):
        files.settle()
        kept.append([Path(line["path"]).stem for line in records.read(records.registry_of(boot.worker), None)])
    assert kept == [[], [], ["fine"], ["fine"], ["fine", "coarse"]]


def test_a_long_file_has_block_hashes_that_are_compared_separately(tmp_path: Path) -> None:
    path = tmp_path / "long"
    with path.open("wb") as file:
        for value in range(3):
            file.write(bytes([value]) * BLOCK_BYTES)
        file.write(b"end")
    record = record_of(str(path), Identity.of(path.stat()))
    assert record is not None
    assert len(record.blocks) == 4
    flip(path, BLOCK_BYTES + 5)
    size = record.identity.bytes
    assert [records.differ(path, size, record.blocks[at : at + 1], at) for at in range(4)] == [False, True, False, False]
    assert records.differ(path, size, record.blocks[:2], 0)
    os.truncate(path, BLOCK_BYTES)
    assert records.differ(path, size, record.blocks[3:], 3)


def test_two_files_with_one_identity_prove_nothing_about_each_other(path: Path, tmp_path: Path) -> None:
    known = Known()
    record = record_of(str(path), Identity.of(path.stat()))
    assert record is not None
    known.add(record)
    known.add(record)
    assert known.of(record.identity) == record
    known.add(records.FileRecord("/elsewhere", record.identity, "0" * 32, ()))
    assert known.of(record.identity) is None


def test_the_memory_for_records_is_bounded(boot: Booted, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "MOST", 10)
    known = Known()
    for number in range(25):
        known.add(records.FileRecord(f"/{number}", Identity(number, 1, 1), f"{number}", ()))
    assert len(known.by_path) == 5


# --- other programs ---------------------------------------------------------------------------------------------------

NAMES = ("a.pt", "b.pt", "backup.pt")


def mapped(path: Path, rng: random.Random) -> None:
    if path.stat().st_size == 0:
        return
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as view:
        view[rng.randrange(len(view))] ^= 1


def written_in_place(path: Path, rng: random.Random) -> None:
    with path.open("r+b") as file:
        file.seek(rng.randrange(max(path.stat().st_size, 1)))
        file.write(b"x")


def appended(path: Path, rng: random.Random) -> None:
    with path.open("ab") as file:
        file.write(rng.randbytes(4))


def touched(path: Path, rng: random.Random) -> None:
    now = path.stat().st_mtime_ns + rng.choice([-1, 1]) * rng.randrange(1, 10**12)
    os.utime(path, ns=(now, now))


def another(path: Path, rng: random.Random) -> Path:
    return path.with_name(rng.choice([name for name in NAMES if name != path.name]))


FOREIGN: dict[str, Callable[[Path, random.Random], object]] = {
    "copy": lambda path, rng: shutil.copy(path, another(path, rng)),
    "copy2": lambda path, rng: shutil.copy2(path, another(path, rng)),
    "write in place": written_in_place,
    "append": appended,
    "mmap": mapped,
    "utime": touched,
    # Not to zero bytes: an empty file right after a save, before its checksum is due, is a killed save.
    "truncate": lambda path, rng: os.truncate(path, 1 + rng.randrange(path.stat().st_size)),
    "rewrite": lambda path, rng: path.write_bytes(rng.randbytes(rng.choice([64, 4000]))),
    "rename": lambda path, rng: path.rename(another(path, rng)),
    "replace": lambda path, rng: (path.with_name("tmp").write_bytes(rng.randbytes(64)), path.with_name("tmp").replace(path)),
    "delete": lambda path, rng: path.unlink(),
}
actions = st.lists(st.tuples(st.sampled_from(["save", "load", "settle", *FOREIGN]), st.sampled_from(NAMES)), max_size=30)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(actions, st.randoms(use_true_random=False), st.booleans())
def test_writes_by_other_programs_are_never_damage_but_silent_changes_are(
    tmp_path_factory: pytest.TempPathFactory, actions: list[tuple[str, str]], rng: random.Random, late: bool
) -> None:
    folder = tmp_path_factory.mktemp("story")
    with booted(folder / "run") as boot:
        times = itertools.count(10**18, 1_000_003)

        def write(path: Path, content: bytes) -> None:
            """Write at a distinct time, however coarse the clock is, so that later writes have another time."""
            path.write_bytes(content)
            now = next(times)
            os.utime(path, ns=(now, now))

        if late:  # nothing is due before everything is
            files.TICK_S = 1e6
        for what, name in actions:
            path = folder / name
            if what == "save":
                files.saving(lambda path, content: path.write_bytes(content), 0, "path")(
                    path, rng.randbytes(rng.choice([64, 4000]))
                )
            elif what == "settle":
                files.settle()
            elif path.exists():
                if what == "load":
                    files.loading(Path.read_bytes, "path")(path)
                else:
                    FOREIGN[what](path, rng)
        files.TICK_S = 0.0
        files._pending[:] = [each for each in files._pending if each.due_s < 1e5]
        files.settle()
        left = sorted(folder.iterdir())
        boot.verify()
        assert boot.said() == []
        assert sorted(folder.iterdir()) == left
        path = save(folder / "b.pt", rng.randbytes(64))
        flip(path)
        with pytest.raises(saved.DamagedFileError):
            files.loading(Path.read_bytes, "path")(path)
        assert not path.exists()
        assert len(boot.said()) == 1


def test_a_save_truncated_later_by_another_program_is_not_a_killed_save(tmp_path: Path, boot: Booted) -> None:
    path = tmp_path / "a.pt"
    files.saving(lambda path, content: path.write_bytes(content), 0, "path")(path, b"x" * 64)
    os.truncate(path, 0)
    os.utime(path, ns=(10**18, 10**18))
    files.settle(1.0)
    boot.verify()
    assert boot.said() == []
    assert path.exists()


def listings(folder: Path) -> dict[str, list[str]]:
    """The names that each kind of listing shows."""
    return {
        "listdir": sorted(os.listdir(folder)),  # noqa: PTH208
        "scandir": sorted(entry.name for entry in os.scandir(folder)),
        "walk": sorted(name for _, folders, names in os.walk(folder) for name in folders + names),
        "iterdir": sorted(path.name for path in folder.iterdir()),
        "glob": sorted(path.name for path in folder.glob("*")),
        "rglob": sorted(path.name for path in folder.rglob("*")),
    }


def test_every_listing_shows_only_the_scripts_files_at_every_moment(tmp_path: Path, boot: Booted) -> None:
    folder = tmp_path / "ckpt"
    folder.mkdir()
    seen = []

    def write(path: Path) -> None:
        path.write_bytes(CONTENT)
        seen.append(listings(folder))

    for step in (1, 2):
        files.saving(write, 0, "path")(folder / f"{step}.pt")
        files.settle()
        seen.append(listings(folder))
        boot.verify()
        seen.append(listings(folder))
    expected = [["1.pt"]] * 3 + [["1.pt", "2.pt"]] * 3
    assert seen == [dict.fromkeys(listings(folder), names) for names in expected]


@pytest.mark.slow
def test_the_os_functions_remain_pythons_own() -> None:
    """Run in a process with all hooks installed."""
    code = (
        "import os, posix, pickle\nfrom headway.runner.boot.hooks import prepare\nprepare()\nimport torch\n"
        "names = ['rename', 'replace', 'rmdir', 'listdir', 'scandir', 'unlink', 'open']\n"
        "assert all(getattr(os, name) is getattr(posix, name) for name in names)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
