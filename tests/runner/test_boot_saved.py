"""Checkpoints that a script saved: the newest of each family is verified, and what is damaged gets out of every search's way."""

import errno
import json
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from headway.runner.boot import saved, shares, unseen
from headway.runner.boot.sidecar import Sidecar, differ, sidecar_of, write_sidecar
from headway.runner.lines import append_line
from tests.runner.boots import Booted, booted


@pytest.fixture
def boot(tmp_path: Path) -> Iterator[Booted]:
    with booted(tmp_path / "run") as found:
        yield found
    unseen._seen.clear()


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


@pytest.mark.parametrize("argv", [["{0}/train.py"], ["{1}/__main__.py", "{0}/train.py"]], ids=["in the script", "before it"])
def test_a_numbered_directory_in_which_something_runs_is_no_checkpoint(
    argv: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "step1/deep").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "step1/deep")
    monkeypatch.setattr("sys.argv", [word.format(tmp_path / "iter2", Path(saved.__file__).parent) for word in argv])
    with booted(tmp_path / "epoch3/run") as boot:
        for name in ("step1", "iter2", "epoch3", "step4"):
            flip(save(tmp_path / name / "last.pt"))
            (tmp_path / name / "train.py").touch()
        boot.verify()
        assert names(tmp_path) == ["epoch3", "iter2", "step1"]
        assert {name: names(tmp_path / name) for name in ("step1", "iter2", "epoch3")} == {
            "step1": ["deep", "train.py"],
            "iter2": ["train.py"],
            "epoch3": ["run", "train.py"],
        }
        with pytest.raises(OSError, match="the script, its working directory or the run lies in it"):
            saved.refuse(tmp_path / "step1", "damaged")


def test_a_numbered_directory_of_several_checkpoints_is_none_itself(tmp_path: Path, boot: Booted) -> None:
    files = [save(tmp_path / f"step1/step-{step}.pt") for step in (10, 20, 30)]
    for step in (10, 20):
        save(tmp_path / f"epoch2/checkpoint-{step}/model.pt")
    for path in (files[2], files[1], save(tmp_path / "epoch2/last.pt")):
        flip(path)
    boot.verify()
    assert (names(tmp_path / "step1"), names(tmp_path / "epoch2")) == (["step-10.pt"], ["checkpoint-10", "checkpoint-20"])
    flip(files[0])
    boot.verify()
    assert names(tmp_path / "step1") == []


def test_files_that_accelerate_numbers_are_of_one_checkpoint(tmp_path: Path, boot: Booted) -> None:
    for name in ("custom_checkpoint_0.pkl", "custom_checkpoint_1.pkl", "random_states_0.pkl"):
        flip(save(tmp_path / "checkpoint_7" / name))
    boot.verify()
    assert names(tmp_path) == ["run"]


def test_folders_that_hold_several_checkpoints_each_are_none_themselves(tmp_path: Path, boot: Booted) -> None:
    for step in (10, 20, 30):
        for rank in (0, 1):
            save(tmp_path / f"ck/rank{rank}/step-{step}.pt")
    save(tmp_path / "best/step-10.pt")
    flip(tmp_path / "ck/rank1/step-30.pt")
    flip(tmp_path / "best/step-10.pt")
    boot.verify()
    assert names(tmp_path / "ck/rank0") == ["step-10.pt", "step-20.pt", "step-30.pt"]
    assert names(tmp_path / "ck/rank1") == ["step-10.pt", "step-20.pt"]
    assert names(tmp_path / "best") == []


def test_folders_that_are_written_in_between_each_other_are_no_checkpoints(tmp_path: Path, boot: Booted) -> None:
    for name in ("first", "a", "b", "a", "last"):
        save(tmp_path / f"out/{name}/model.pt")
        save(tmp_path / f"out/{name}/optimizer.pt")
    for name in ("last", "b", "a"):
        flip(tmp_path / f"out/{name}/optimizer.pt")
    boot.verify()
    left = {name: names(tmp_path / "out" / name) for name in names(tmp_path / "out")}
    assert left == {"a": ["model.pt"], "b": ["model.pt"], "first": ["model.pt", "optimizer.pt"]}


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


def unreadable(monkeypatch: pytest.MonkeyPatch, number: int, *paths: Path) -> None:
    """Reads of these files fail."""

    def fail(path: Path, record: Sidecar, first: int, end: int) -> bool:
        if path in paths:
            raise OSError(number, os.strerror(number), str(path))
        return differ(path, record, first, end)

    monkeypatch.setattr(shares, "differ", fail)


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE, errno.EACCES, errno.ENOENT])
def test_where_nothing_can_be_read_nothing_is_refused_and_it_is_said(
    number: int, tmp_path: Path, boot: Booted, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    paths = [save(tmp_path / f"ckpt/step-{step}.pt") for step in (10, 20)]
    unreadable(monkeypatch, number, *paths)
    monkeypatch.setattr(saved, "verify", lambda path: (_ for _ in ()).throw(OSError(number, os.strerror(number), str(path))))
    boot.verify()
    assert names(tmp_path / "ckpt") == ["step-10.pt", "step-20.pt"]
    said = capfd.readouterr().err
    assert all(f"{path}: it cannot be read and is not verified" in said for path in paths)
    assert boot.said() == []


@pytest.mark.parametrize(
    ("number", "left"),
    [(errno.EIO, ["step-10.pt", "step-20.pt"]), (errno.ESTALE, ["step-10.pt", "step-20.pt", "step-40.pt"])],
)
def test_behind_what_cannot_be_read_the_older_are_verified_and_only_a_failed_disk_is_damage_then(
    number: int, left: list[str], tmp_path: Path, boot: Booted, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = [save(tmp_path / f"ckpt/step-{step}.pt") for step in (10, 20, 30, 40)]
    flip(files[2])
    unreadable(monkeypatch, number, files[3])
    boot.verify()
    assert names(tmp_path / "ckpt") == left
    assert {note["path"] for note in boot.said()} == {str(path) for path in files if path.name not in left}


def test_what_the_disk_cannot_read_stays_while_nothing_older_has_been_read(
    tmp_path: Path, boot: Booted, monkeypatch: pytest.MonkeyPatch
) -> None:
    sidecar_of(save(tmp_path / "ckpt/step-10.pt")).unlink()
    unreadable(monkeypatch, errno.EIO, save(tmp_path / "ckpt/step-20.pt"))
    boot.verify()
    assert names(tmp_path / "ckpt") == ["step-10.pt", "step-20.pt"]


def test_what_cannot_be_renamed_is_said_and_the_others_are_verified(
    tmp_path: Path, boot: Booted, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    files = [save(tmp_path / f"{folder}/step-{step}.pt") for step in (10, 20) for folder in ("a", "b")]
    for path in files[1:]:
        flip(path)
    original = saved.refuse

    def refuse(path: Path, why: str) -> Path | None:
        if path.name == "step-20.pt":
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return original(path, why)

    monkeypatch.setattr(saved, "refuse", refuse)
    boot.verify()
    assert (names(tmp_path / "a"), names(tmp_path / "b")) == (["step-10.pt", "step-20.pt"], ["step-20.pt"])
    said = capfd.readouterr().err
    assert all(f"{path}: xxh3_128 is " in said for path in files[2:])
    assert said.count("it is not renamed: [Errno 13]") == 2


def test_lines_of_a_registry_that_lack_something_are_passed_over(
    tmp_path: Path, boot: Booted, monkeypatch: pytest.MonkeyPatch
) -> None:
    flip(save(tmp_path / "a/step-10.pt"))
    (file,) = saved.registry_of(boot.worker).iterdir()
    whole = {"path": str(tmp_path / "b.pt"), "kind": saved.FILE, "wall": 1.0}
    for lacking in whole:
        append_line(file, {key: value for key, value in whole.items() if key != lacking})
        append_line(file, {**whole, lacking: None})
    monkeypatch.setattr(saved, "LONG_BYTES", 10)
    boot.verify()
    assert names(tmp_path / "a") == []
    assert len(file.read_text().splitlines()) == 1


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
