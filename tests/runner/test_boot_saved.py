"""Checkpoints that a script saved: the newest of each family is verified, and what is damaged gets out of every search's way."""

import errno
import json
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from headway.runner.boot import saved, shares
from headway.runner.boot.sidecar import sidecar_of, write_sidecar
from headway.runner.lines import append_line
from tests.runner.boots import Booted, booted


@pytest.fixture
def boot(tmp_path: Path) -> Iterator[Booted]:
    with booted(tmp_path / "run") as found:
        yield found


def save(path: Path, content: bytes = b"") -> Path:
    """A file as a hooked torch.save leaves it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content or os.urandom(5000))
    write_sidecar(path, "run-1", 1, 10)
    saved.record(path, saved.FILE)
    return path


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(content)


def names(folder: Path) -> list[str]:
    """What a script's listing shows it."""
    return sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))


def test_of_files_in_a_folder_the_newest_good_one_stays_the_newest(tmp_path: Path, boot: Booted) -> None:
    files = [save(tmp_path / f"ckpt/step-{step}.pt") for step in (10, 20, 30, 40)]
    flip(files[1])
    flip(files[2])
    flip(files[3])
    flip(files[0])
    save(files[1])
    boot.verify()
    assert names(tmp_path / "ckpt") == ["step-10.pt", "step-20.pt", "step-30.pt", "step-40.pt"], "step-20 is the newest and good"
    flip(files[1])
    boot.verify()
    assert names(tmp_path / "ckpt") == []
    assert [note["path"] for note in boot.said()] == [str(files[at]) for at in (1, 3, 2, 0)]


def test_a_refused_checkpoint_is_said_with_both_checksums_and_its_new_name(tmp_path: Path, boot: Booted) -> None:
    path = save(tmp_path / "ckpt/model.pt", b"as it was saved")
    path.write_bytes(b"as it was daved")
    boot.verify()
    (note,) = boot.said()
    assert (note["what"], note["kind"], note["path"]) == ("note", "refused file", str(path))
    assert note["now"] == str(tmp_path / "ckpt/.model.pt.refused")
    assert Path(note["now"]).read_bytes() == b"as it was daved"
    assert note["why"].startswith("xxh3_128 is ")
    assert note["why"].endswith(" was saved")


def test_a_second_refusal_of_the_same_name_keeps_the_first(tmp_path: Path, boot: Booted) -> None:
    for _ in range(2):
        flip(save(tmp_path / "ckpt/model.pt"))
        boot.verify()
    assert sorted(path.name for path in (tmp_path / "ckpt").glob("*refused*")) == [
        ".model.pt.refused",
        ".model.pt.refused-2",
    ]


def test_a_numbered_directory_is_one_checkpoint_and_goes_as_a_whole(tmp_path: Path, boot: Booted) -> None:
    for step in (10, 20):
        for name in ("model.safetensors", "optimizer.pt"):
            save(tmp_path / f"out/checkpoint-{step}/{name}")
    flip(tmp_path / "out/checkpoint-20/optimizer.pt")
    boot.verify()
    assert names(tmp_path / "out") == ["checkpoint-10"]
    (note,) = boot.said()
    assert note["why"].startswith("optimizer.pt: xxh3_128 is ")


def test_directories_that_hold_the_same_names_are_checkpoints_whatever_they_are_called(tmp_path: Path, boot: Booted) -> None:
    for name in ("first", "second"):
        save(tmp_path / f"out/{name}/model.pt")
    flip(tmp_path / "out/second/model.pt")
    boot.verify()
    assert names(tmp_path / "out") == ["first"]


def test_a_single_file_of_a_folder_takes_nothing_else_with_it(tmp_path: Path, boot: Booted) -> None:
    flip(save(tmp_path / "experiment-7/model.pt"))
    (tmp_path / "experiment-7/notes.txt").write_text("mine")
    boot.verify()
    assert names(tmp_path / "experiment-7") == ["notes.txt"]


def test_the_name_that_lightning_resumes_from_goes_to_the_newest_good_file(tmp_path: Path, boot: Booted) -> None:
    folder = tmp_path / "lightning"
    good = save(folder / "epoch=0-step=10.ckpt")
    damaged = [save(folder / "epoch=1-step=20.ckpt"), save(folder / "last.ckpt")]
    for path in damaged:
        flip(path)
    boot.verify()
    assert names(folder) == ["epoch=0-step=10.ckpt", "last.ckpt"]
    assert (folder / "last.ckpt").read_bytes() == good.read_bytes()


def test_what_was_deleted_or_overwritten_since_is_no_damage(tmp_path: Path, boot: Booted) -> None:
    save(tmp_path / "ckpt/step-10.pt").unlink()
    shutil.rmtree(save(tmp_path / "out/checkpoint-10/optimizer.pt").parent)
    rewritten = save(tmp_path / "ckpt/step-20.pt")
    rewritten.write_bytes(os.urandom(6000))
    later = time.time() + 5
    os.utime(rewritten, (later, later))
    boot.verify()
    assert boot.said() == []
    assert names(tmp_path / "ckpt") == ["step-20.pt"]


@pytest.mark.parametrize(("number", "left"), [(errno.EIO, []), (errno.ESTALE, ["step-10.pt"]), (errno.EACCES, ["step-10.pt"])])
def test_only_a_file_that_its_disk_cannot_read_is_damaged(
    number: int, left: list[str], tmp_path: Path, boot: Booted, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path / "ckpt/step-10.pt")
    monkeypatch.setattr(shares, "differ", lambda path, *_: (_ for _ in ()).throw(OSError(number, os.strerror(number), str(path))))
    boot.verify()
    assert names(tmp_path / "ckpt") == left


def test_of_a_long_registry_only_the_end_is_read(tmp_path: Path, boot: Booted, monkeypatch: pytest.MonkeyPatch) -> None:
    old, new = save(tmp_path / "a/step-10.pt"), save(tmp_path / "b/step-20.pt")
    registry = saved.registry_of(boot.worker)
    (file,) = registry.iterdir()
    monkeypatch.setattr(saved, "REGISTRY_BYTES", file.stat().st_size - 1)
    assert [unit.path for unit in saved.units(registry, None)] == [new]
    append_line(file, {"path": str(old), "kind": saved.FILE, "wall": 1.0})
    assert {unit.path for unit in saved.units(registry, None)} == {new, old}


def test_each_host_notes_its_saves_for_itself_and_all_are_found(
    tmp_path: Path, boot: Booted, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = save(tmp_path / "a/step-10.pt")
    monkeypatch.setattr("socket.gethostname", lambda: "another")
    other = save(tmp_path / "b/step-20.pt")
    registry = saved.registry_of(boot.worker)
    assert [unit.path for unit in saved.units(registry, None)] == [other, one]
    assert [unit.path for unit in saved.units(registry, "another")] == [other]
    assert saved.units(registry, "a third") == []


def test_a_long_registry_keeps_what_is_there_and_its_newest_lines(
    tmp_path: Path, boot: Booted, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = save(tmp_path / "a/step-10.pt")
    for step in range(20, 60):
        save(tmp_path / f"a/step-{step}.pt").unlink()
    registry = saved.registry_of(boot.worker)
    (file,) = registry.iterdir()
    before = file.read_bytes()
    saved.shorten(registry)
    assert file.read_bytes() == before, "it is not long"
    monkeypatch.setattr(saved, "LONG_BYTES", 1000)
    monkeypatch.setattr(saved, "NEWEST", 3)
    boot.verify()
    paths = [json.loads(line)["path"] for line in file.read_text().splitlines()]
    assert paths == [str(kept), *(str(tmp_path / f"a/step-{step}.pt") for step in (57, 58, 59))]


def test_two_ranks_that_find_the_same_damage_refuse_it_once(tmp_path: Path, boot: Booted) -> None:
    path = save(tmp_path / "ckpt/step-10.pt")
    assert saved.refuse(path, "damaged") == tmp_path / "ckpt/.step-10.pt.refused"
    assert saved.refuse(path, "damaged") is None
    assert len(boot.said()) == 1
    assert sidecar_of(path).exists()
