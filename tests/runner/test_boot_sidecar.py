"""Checksums beside files: what counts as damage, and what as somebody else's file."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headway.runner.boot import sidecar
from headway.runner.boot.sidecar import Found, sidecar_of, sweep, verify, write_sidecar

CONTENT = bytes(range(256)) * 100


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "model.pt"
    path.write_bytes(CONTENT)
    write_sidecar(path, "run-1", 2, 30)
    return path


def later(path: Path, seconds: int = 5) -> None:
    """Makes the file look as if it had been written so much later."""
    stat = path.stat()
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns + seconds * 10**9))


def flipped(content: bytes, place: int) -> bytes:
    return content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]


def test_the_bytes_that_were_saved_are_good_whatever_the_time_says(saved: Path) -> None:
    later(saved)
    assert verify(saved).found is Found.GOOD


@pytest.mark.parametrize("place", [0, 12_345, len(CONTENT) - 1])
@pytest.mark.parametrize("seconds", [-5, 0, 5])
def test_a_flipped_bit_is_damage_whatever_the_time_says(place: int, seconds: int, saved: Path) -> None:
    expected = verify(saved).expected
    before = saved.stat()
    saved.write_bytes(flipped(CONTENT, place))
    os.utime(saved, ns=(before.st_atime_ns, before.st_mtime_ns))
    later(saved, seconds)
    found = verify(saved)
    assert (found.found, found.expected) == (Found.DAMAGED, expected)
    assert found.actual not in ("", expected)


@pytest.mark.parametrize("length", [0, 1, len(CONTENT) // 2, len(CONTENT) - 1])
def test_a_file_that_was_cut_is_damage(length: int, saved: Path) -> None:
    os.truncate(saved, length)
    later(saved)
    assert verify(saved).found is Found.DAMAGED


def test_what_was_appended_since_is_no_damage_and_a_flipped_bit_before_it_is(saved: Path) -> None:
    saved.write_bytes(CONTENT + b"a second object")
    later(saved)
    assert verify(saved).found is Found.GOOD
    saved.write_bytes(flipped(CONTENT, 12_345) + b"a second object")
    assert verify(saved).found is Found.DAMAGED


@pytest.mark.parametrize("seconds", [-5, 5])
def test_a_file_that_another_program_has_put_there_is_not_ours_to_judge(seconds: int, saved: Path) -> None:
    before = saved.stat()
    saved.write_bytes(bytes(255 - value for value in CONTENT))
    os.utime(saved, ns=(before.st_atime_ns, before.st_mtime_ns))
    later(saved, seconds)
    assert verify(saved).found is Found.UNKNOWN


def while_hashing(monkeypatch: pytest.MonkeyPatch, happens: Callable[[], object]) -> None:
    """Something else happens once while a file is read."""
    original = sidecar._hashes

    def hashes(*args: Any) -> Any:
        monkeypatch.setattr(sidecar, "_hashes", original)
        found = original(*args)
        happens()
        return found

    monkeypatch.setattr(sidecar, "_hashes", hashes)


def test_a_mismatch_of_a_file_that_is_written_over_meanwhile_says_nothing(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = sidecar_of(saved).read_text()
    saved.write_bytes(flipped(CONTENT, 12_345))

    def replace() -> None:
        (saved.parent / "new").write_bytes(CONTENT)
        (saved.parent / "new").replace(saved)

    def save_anew() -> None:
        write_sidecar(saved, "run-1", 2, 40)

    for happens in (save_anew, sidecar_of(saved).unlink, replace):
        sidecar_of(saved).write_text(record)
        while_hashing(monkeypatch, happens)
        assert verify(saved).found is Found.UNKNOWN


def test_no_sidecar_is_left_of_a_file_that_is_written_over_while_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "model.pt"
    path.write_bytes(CONTENT)
    while_hashing(monkeypatch, lambda: path.write_bytes(CONTENT[1:]))
    write_sidecar(path, "run-1", 2, 30)
    assert list(tmp_path.iterdir()) == [path]


def test_other_bytes_of_the_same_time_are_damage(saved: Path) -> None:
    before = saved.stat()
    saved.write_bytes(bytes(255 - value for value in CONTENT))
    os.utime(saved, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert verify(saved).found is Found.DAMAGED


@pytest.mark.parametrize("record", [b"", b"{", b'{"schema": "headway.saved/9"}', b"\xff"])
def test_a_sidecar_that_cannot_be_read_says_nothing(record: bytes, saved: Path) -> None:
    sidecar_of(saved).write_bytes(record)
    assert verify(saved).found is Found.UNKNOWN


def test_a_file_without_a_sidecar_is_unknown(tmp_path: Path) -> None:
    (tmp_path / "other.pt").write_bytes(CONTENT)
    assert verify(tmp_path / "other.pt").found is Found.UNKNOWN


def test_the_sidecar_of_a_deleted_file_is_swept_away_and_the_others_stay(saved: Path) -> None:
    other = saved.with_name("other.pt")
    other.write_bytes(b"x")
    write_sidecar(other, "run-1", 2, 40)
    saved.unlink()
    sweep(saved.parent)
    assert sorted(path.name for path in saved.parent.iterdir()) == [".other.pt.xxh3", "other.pt"]
