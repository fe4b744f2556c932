"""Tests that the newest of a script's checkpoints are verified, and damaged ones moved where no search finds them."""

import errno
import json
import os
import shutil
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from headway.runner.boot import files, limitations, records, saved, shares
from headway.runner.boot.records import registry_of
from tests.support.worker import Booted, booted, flip


@pytest.fixture
def boot(tmp_path: Path) -> Iterator[Booted]:
    with booted(tmp_path / "run") as found:
        yield found
    limitations._seen.clear()


def save(path: Path, content: bytes = b"") -> Path:
    """Write a file as a hooked torch.save leaves it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    files.begin(path)
    path.write_bytes(content or os.urandom(5000))
    files.ended(path)
    files.settle()
    return path


def names(folder: Path) -> list[str]:
    """The names that a script's listing shows."""
    return sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))


def test_the_newest_intact_file_of_a_folder_stays_the_newest(tmp_path: Path, boot: Booted) -> None:
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


def test_a_refused_checkpoint_is_reported_with_both_checksums_and_new_name(tmp_path: Path, boot: Booted) -> None:
    path = save(tmp_path / "ckpt/model.pt", b"as it was saved")
    flip(path, 10)
    damaged = path.read_bytes()
    boot.verify()
    (note,) = boot.said()
    assert (note["what"], note["kind"], note["path"]) == ("note", "refused file", str(path))
    assert note["now"] == str(tmp_path / "run/shared/refused/model.pt/model.pt")
    assert Path(note["now"]).read_bytes() == damaged
    assert list((tmp_path / "ckpt").iterdir()) == []
    assert note["why"].startswith("xxh3_128 is ")
    assert note["why"].endswith(" was saved")


def test_a_second_refusal_with_the_same_name_keeps_the_first_file(tmp_path: Path, boot: Booted) -> None:
    for _ in range(2):
        flip(save(tmp_path / "ckpt/model.pt"))
        boot.verify()
    assert names(tmp_path / "run/shared/refused") == ["model.pt", "model.pt-2"]


def test_on_another_file_system_a_refused_file_is_hidden_in_its_folder(
    tmp_path: Path, boot: Booted, monkeypatch: pytest.MonkeyPatch
) -> None:
    rename = Path.rename

    def across(self: Path, target: Path) -> Path:
        if "refused" in target.parts:
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), str(self))
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", across)
    for _ in range(2):
        flip(save(tmp_path / "ckpt/model.pt"))
        boot.verify()
    assert sorted(path.name for path in (tmp_path / "ckpt").iterdir()) == [".model.pt.refused", ".model.pt.refused-2"]
    assert list((tmp_path / "run/shared/refused").iterdir()) == []


def test_a_numbered_directory_is_one_checkpoint_and_is_moved_as_a_whole(tmp_path: Path, boot: Booted) -> None:
    for step in (10, 20):
        for name in ("model.safetensors", "optimizer.pt"):
            save(tmp_path / f"out/checkpoint-{step}/{name}")
    flip(tmp_path / "out/checkpoint-20/optimizer.pt")
    boot.verify()
    assert names(tmp_path / "out") == ["checkpoint-10"]
    (note,) = boot.said()
    assert note["why"].startswith("optimizer.pt: xxh3_128 is ")


def test_directories_with_the_same_file_names_are_checkpoints(tmp_path: Path, boot: Booted) -> None:
    for name in ("first", "second"):
        save(tmp_path / f"out/{name}/model.pt")
    flip(tmp_path / "out/second/model.pt")
    boot.verify()
    assert names(tmp_path / "out") == ["first"]


@pytest.mark.parametrize("argv", [["{0}/train.py"], ["{1}/__main__.py", "{0}/train.py"]], ids=["in the script", "before it"])
def test_a_numbered_directory_with_a_running_process_is_not_a_checkpoint(
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
        with pytest.raises(OSError, match="it contains the script, its working directory or the run"):
            saved.refuse(tmp_path / "step1", "damaged")


def test_a_numbered_directory_of_several_checkpoints_is_not_a_checkpoint(tmp_path: Path, boot: Booted) -> None:
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


def test_files_numbered_by_accelerate_belong_to_one_checkpoint(tmp_path: Path, boot: Booted) -> None:
    for name in ("custom_checkpoint_0.pkl", "custom_checkpoint_1.pkl", "random_states_0.pkl"):
        flip(save(tmp_path / "checkpoint_7" / name))
    boot.verify()
    assert names(tmp_path) == ["run"]


def test_folders_that_hold_several_checkpoints_each_are_not_checkpoints(tmp_path: Path, boot: Booted) -> None:
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


def test_folders_written_alternately_are_not_checkpoints(tmp_path: Path, boot: Booted) -> None:
    for name in ("first", "a", "b", "a", "last"):
        save(tmp_path / f"out/{name}/model.pt")
        save(tmp_path / f"out/{name}/optimizer.pt")
    for name in ("last", "b", "a"):
        flip(tmp_path / f"out/{name}/optimizer.pt")
    boot.verify()
    left = {name: names(tmp_path / "out" / name) for name in names(tmp_path / "out")}
    assert left == {"a": ["model.pt"], "b": ["model.pt"], "first": ["model.pt", "optimizer.pt"]}


def test_a_single_file_of_a_folder_is_moved_alone(tmp_path: Path, boot: Booted) -> None:
    flip(save(tmp_path / "experiment-7/model.pt"))
    (tmp_path / "experiment-7/notes.txt").write_text("mine")
    boot.verify()
    assert names(tmp_path / "experiment-7") == ["notes.txt"]


def test_lightnings_resume_link_points_to_the_newest_intact_file(tmp_path: Path, boot: Booted) -> None:
    folder = tmp_path / "lightning"
    good = save(folder / "epoch=0-step=10.ckpt")
    damaged = [save(folder / "epoch=1-step=20.ckpt"), save(folder / "last.ckpt")]
    for path in damaged:
        flip(path)
    boot.verify()
    assert names(folder) == ["epoch=0-step=10.ckpt", "last.ckpt"]
    assert (folder / "last.ckpt").read_bytes() == good.read_bytes()


@pytest.mark.parametrize(
    ("pointer", "states", "named"),
    [
        ("latest", ("global_step10/state.pt", "global_step20/state.pt"), ("global_step20", "global_step10")),
        ("latest_checkpointed_iteration.txt", ("iter_0000010/state.pt", "iter_0000020/state.pt"), ("20", "10")),
    ],
)
def test_the_latest_file_names_the_newest_intact_directory(
    pointer: str, states: tuple[str, str], named: tuple[str, str], tmp_path: Path, boot: Booted
) -> None:
    """DeepSpeed and Megatron would start from scratch or fail if it named a missing directory."""
    folder = tmp_path / "saved"
    save(folder / states[0])
    flip(save(folder / states[1]))
    (folder / pointer).write_text(named[0])
    boot.verify()
    assert names(folder) == sorted([states[0].partition("/")[0], pointer])
    assert (folder / pointer).read_text() == named[1]


def test_a_latest_file_that_names_another_directory_is_unchanged(tmp_path: Path, boot: Booted) -> None:
    folder = tmp_path / "saved"
    save(folder / "global_step10/state.pt")
    flip(save(folder / "global_step20/state.pt"))
    (folder / "latest").write_text("best")
    boot.verify()
    assert (folder / "latest").read_text() == "best"


def test_deleted_or_overwritten_files_are_not_damaged(tmp_path: Path, boot: Booted) -> None:
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

    def fail(path: Path, size: int, blocks: Sequence[str], first: int) -> bool:
        if path in paths:
            raise OSError(number, os.strerror(number), str(path))
        return records.differ(path, size, blocks, first)

    monkeypatch.setattr(shares, "differ", fail)


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE, errno.EACCES, errno.ENOENT])
def test_if_nothing_is_readable_nothing_is_refused_and_it_is_reported(
    number: int, tmp_path: Path, boot: Booted, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    paths = [save(tmp_path / f"ckpt/step-{step}.pt") for step in (10, 20)]
    unreadable(monkeypatch, number, *paths)
    monkeypatch.setattr(saved, "verify", lambda path, _: (_ for _ in ()).throw(OSError(number, os.strerror(number), str(path))))
    boot.verify()
    assert names(tmp_path / "ckpt") == ["step-10.pt", "step-20.pt"]
    said = capfd.readouterr().err
    assert all(f"{path}: it cannot be read and is not verified" in said for path in paths)
    assert boot.said() == []


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE])
def test_older_checkpoints_are_verified_if_the_newest_is_unreadable(
    number: int, tmp_path: Path, boot: Booted, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = [save(tmp_path / f"ckpt/step-{step}.pt") for step in (10, 20, 30, 40)]
    flip(found[2])
    unreadable(monkeypatch, number, found[3])
    boot.verify()
    assert names(tmp_path / "ckpt") == ["step-10.pt", "step-20.pt", "step-40.pt"]
    assert [note["path"] for note in boot.said()] == [str(found[2])]


def test_a_file_that_cannot_be_moved_is_reported_and_others_are_verified(
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
    assert said.count("it is not moved: [Errno 13]") == 2


def lines_of(boot: Booted) -> list[dict[str, Any]]:
    return [json.loads(line) for file in sorted(registry_of(boot.worker).iterdir()) for line in file.read_text().splitlines()]


def test_incomplete_registry_lines_are_skipped(tmp_path: Path, boot: Booted) -> None:
    flip(save(tmp_path / "a/step-10.pt"))
    whole = lines_of(boot)[-1]
    for lacking in whole:
        records.append(boot.worker, [{key: value for key, value in whole.items() if key != lacking}, {**whole, lacking: None}])
    (file,) = registry_of(boot.worker).iterdir()
    with file.open("ab") as stream:
        stream.write(b"{\n[]\nnull\n\xff\n" + b'{"path": "half')
    boot.verify()
    assert names(tmp_path / "a") == []


def test_only_the_end_of_a_long_registry_is_read(tmp_path: Path, boot: Booted, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tmp_path / "a/step-10.pt")
    new = save(tmp_path / "b/step-20.pt")
    (file,) = registry_of(boot.worker).iterdir()
    monkeypatch.setattr(records, "READ_BYTES", file.stat().st_size - 1)
    assert [unit.path for unit in saved.units(registry_of(boot.worker), None) if unit.path.suffix == ".pt"] == [
        new,
        tmp_path / "a/step-10.pt",
    ]
    monkeypatch.setattr(records, "READ_BYTES", file.stat().st_size // 2)
    assert [unit.path for unit in saved.units(registry_of(boot.worker), None)] == [new]


def test_each_host_records_its_own_saves_and_all_are_found(tmp_path: Path, boot: Booted, monkeypatch: pytest.MonkeyPatch) -> None:
    one = save(tmp_path / "a/step-10.pt")
    monkeypatch.setattr("socket.gethostname", lambda: "another.example")
    monkeypatch.setattr(records, "_appending", records._Appending())
    other = save(tmp_path / "b/step-20.pt")
    registry = registry_of(boot.worker)
    assert len(list(registry.iterdir())) == 2
    assert [unit.path for unit in saved.units(registry, None)] == [other, one]
    assert [unit.path for unit in saved.units(registry, "another.example")] == [other]
    assert saved.units(registry, "a third") == []


def test_records_of_earlier_generations_are_merged_newest_per_folder(
    tmp_path: Path, boot: Booted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "KEEP_BYTES", 2000)
    monkeypatch.setattr(records, "NEWEST", 3)
    save(tmp_path / "a/step-10.pt")
    for step in range(20, 60):
        save(tmp_path / f"b/step-{step}.pt")
    boot.verify()
    before = lines_of(boot)
    assert len(before) == 2 * 41, "it may still be appended to"
    boot.worker.generation = 2
    boot.verify()
    kept = lines_of(boot)
    assert kept == [before[0], before[1], *before[-len(kept) + 2 :]]
    assert 3 <= len(kept) - 2 <= 10
    save(tmp_path / "a/step-70.pt")
    assert len(list(registry_of(boot.worker).iterdir())) == 2


def test_an_endless_registry_is_rotated_and_two_files_are_kept(
    tmp_path: Path, boot: Booted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "ROTATE_BYTES", 1000)
    for step in range(50):
        save(tmp_path / f"a/step-{step}.pt")
    found = sorted(registry_of(boot.worker).iterdir(), key=lambda path: path.stat().st_mtime_ns)
    assert len(found) == 2
    assert lines_of(boot)[-1]["path"] == str(tmp_path / "a/step-49.pt")
    assert max(path.stat().st_size for path in found) < 2000


def test_a_script_that_closes_every_descriptor_keeps_its_files(tmp_path: Path, boot: Booted) -> None:
    save(tmp_path / "a/step-10.pt")
    ours = records._appending._descriptor
    with (tmp_path / "mine").open("wb") as mine:
        # As if the descriptor had been closed and the next file opened with its number.
        os.dup2(mine.fileno(), ours)
        save(tmp_path / "a/step-20.pt")
        os.close(ours)
        save(tmp_path / "a/step-30.pt")
    assert (tmp_path / "mine").read_bytes() == b""
    assert {line["path"] for line in lines_of(boot)} == {str(tmp_path / f"a/step-{step}.pt") for step in (10, 20, 30)}


@pytest.mark.slow
def test_only_a_few_of_a_hundred_thousand_files_are_examined(
    tmp_path: Path, boot: Booted, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = save(tmp_path / "feat/0.pt")
    *_, line = lines_of(boot)
    records.append(
        boot.worker,
        ({**line, "path": f"{path.parent}/{number}.pt", "wall": line["wall"] - number} for number in range(1, 10_000)),
    )
    looked, original = list[str](), Path.stat

    def stat(self: Path, **named: bool) -> os.stat_result:
        looked.append(str(self))
        return original(self, **named)

    monkeypatch.setattr(Path, "stat", stat)
    assert len(saved.units(registry_of(boot.worker), None)) == 10_000
    boot.verify()
    assert sum(name.startswith(str(path.parent)) for name in looked) < 30


# --- files renamed after their save -----------------------------------------------------------------------------------


def test_a_file_is_recognized_by_the_name_it_was_renamed_or_linked_to(tmp_path: Path, boot: Booted) -> None:
    folder = tmp_path / "ckpt"
    for step in (10, 20, 30):
        save(folder / "part.tmp").rename(folder / f"step-{step}.pt")
    os.link(save(folder / "part.tmp"), folder / "step-40.pt")
    (folder / "part.tmp").unlink()
    flip(folder / "step-40.pt")
    flip(folder / "step-30.pt")
    boot.verify()
    assert names(folder) == ["step-10.pt", "step-20.pt"]


@pytest.mark.parametrize("inner", ["", "deep/er"])
def test_a_directory_renamed_into_place_is_recognized_by_its_new_name(inner: str, tmp_path: Path, boot: Booted) -> None:
    for step in (10, 20):
        save(tmp_path / f"out/tmp-checkpoint-{step}" / inner / "optimizer.pt")
        (tmp_path / f"out/tmp-checkpoint-{step}").rename(tmp_path / f"out/checkpoint-{step}")
    flip(tmp_path / "out/checkpoint-20" / inner / "optimizer.pt")
    boot.verify()
    (note,) = boot.said()
    assert (tmp_path / "out/checkpoint-20") in (Path(note["path"]), *Path(note["path"]).parents)
    boot.verify()
    assert boot.said() == []


def test_files_deleted_by_rotation_are_not_searched_for(tmp_path: Path, boot: Booted, monkeypatch: pytest.MonkeyPatch) -> None:
    for step in (10, 20, 30):
        save(tmp_path / f"out/checkpoint-{step}/optimizer.pt")
    for step in (10, 20):
        shutil.rmtree(tmp_path / f"out/checkpoint-{step}")
    monkeypatch.setattr(saved, "_inodes", None)
    boot.verify()
    assert boot.said() == []


def test_two_ranks_that_find_the_same_damage_refuse_it_once(tmp_path: Path, boot: Booted) -> None:
    path = save(tmp_path / "ckpt/step-10.pt")
    assert saved.refuse(path, "damaged") == tmp_path / "run/shared/refused/step-10.pt/step-10.pt"
    assert saved.refuse(path, "damaged") is None
    assert len(boot.said()) == 1
