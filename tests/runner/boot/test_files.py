"""Tests the hooks of saves and loads: files are unchanged, no file is added, and damaged files are not loaded."""

import errno
import gzip
import io
import os
import re
import shutil
import types
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch.distributed.checkpoint import filesystem, state_dict_loader, state_dict_saver
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

from headway.runner.boot import dcp_calls, files, limitations, records, saved
from headway.runner.boot.records import FileState, registry_of, verify
from headway.runner.checkpoint.interop.root import ROOT
from headway.runner.checkpoint.sources import DirectorySource
from tests.runner.boot.test_saved import names
from tests.support.worker import Booted, booted, flip

# These tests use a single process.
pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled", "ignore:Detected an existing checkpoint")

STATE: dict[str, Any] = {"weight": torch.arange(1000.0), "step": 30}
save: Callable[..., Any] = files.saving(torch.save, 1, "f")
load: Callable[..., Any] = files.loading(torch.load, "f")


@pytest.fixture
def boot(tmp_path: Path) -> Iterator[Booted]:
    with booted(tmp_path / "run") as found:
        yield found
    limitations._seen.clear()


def found(path: Path) -> FileState:
    files.settle()
    return verify(path, saved.here()).found


def test_a_file_has_torchs_bytes_and_loads_again(tmp_path: Path, boot: Booted) -> None:
    torch.save(STATE, tmp_path / "state.pt")
    expected = (tmp_path / "state.pt").read_bytes()
    save(STATE, tmp_path / "state.pt")
    assert (tmp_path / "state.pt").read_bytes() == expected
    assert found(tmp_path / "state.pt") is FileState.GOOD
    assert names(tmp_path) == ["run", "state.pt"]
    assert load(tmp_path / "state.pt")["step"] == 30


@pytest.mark.parametrize("given", [str, Path, lambda path: open(path, "wb")], ids=["text", "path", "open file"])  # noqa: PTH123, SIM115
def test_every_kind_of_file_argument_is_recorded(given: Callable[[str], Any], tmp_path: Path, boot: Booted) -> None:
    target = given(str(tmp_path / "state.pt"))
    save(obj=STATE, f=target)
    if isinstance(target, io.IOBase):
        target.close()
    assert found(tmp_path / "state.pt") is FileState.GOOD


def test_a_stream_closed_after_the_save_is_not_damaged(tmp_path: Path, boot: Booted) -> None:
    with gzip.open(tmp_path / "state.pt.gz", "wb") as stream:
        save(STATE, stream)
    with gzip.open(tmp_path / "state.pt.gz") as stream:
        assert load(stream)["step"] == 30


def test_a_process_killed_while_overwriting_leaves_no_stale_checksum(tmp_path: Path, boot: Booted) -> None:
    save(STATE, tmp_path / "state.pt")

    def dies(*_: Any) -> None:
        assert found(tmp_path / "state.pt") is FileState.UNKNOWN
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        files.saving(dies, 1, "f")(STATE, tmp_path / "state.pt")
    assert found(tmp_path / "state.pt") is FileState.UNKNOWN
    boot.verify()
    assert names(tmp_path) == ["run", "state.pt"], "it is whole"


def torch_file(path: Path) -> None:
    torch.save(STATE, path)


def old_torch_file(path: Path) -> None:
    torch.save(STATE, path, _use_new_zipfile_serialization=False)


def safetensors_file(path: Path) -> None:
    safetensors.torch.save_file({"weight": STATE["weight"], "bias": torch.ones(7)}, path)


@pytest.mark.parametrize("left", [0, 5, 900, -1], ids=["nothing", "its first bytes", "a part", "all but one byte"])
@pytest.mark.parametrize(("write", "suffix"), [(torch_file, ".pt"), (safetensors_file, ".safetensors")])
def test_a_file_of_a_killed_save_is_refused_before_the_script_starts(
    write: Callable[[Path], None], suffix: str, left: int, tmp_path: Path, boot: Booted
) -> None:
    def dies(path: Path) -> None:
        write(path)
        path.write_bytes(path.read_bytes()[:left])
        raise KeyboardInterrupt

    files.saving(write, 0, "path")(tmp_path / f"step-10{suffix}")
    with pytest.raises(KeyboardInterrupt):
        files.saving(dies, 0, "path")(tmp_path / f"step-20{suffix}")
    boot.verify()
    assert names(tmp_path) == ["run", f"step-10{suffix}"]
    assert [note["why"] for note in boot.said()] == [f"step-20{suffix} is truncated: its save did not finish"]


@pytest.mark.parametrize(("write", "suffix"), [(torch_file, ".pt"), (old_torch_file, ".pt"), (safetensors_file, ".safetensors")])
def test_a_complete_file_without_its_checksum_is_kept(
    write: Callable[[Path], None], suffix: str, tmp_path: Path, boot: Booted
) -> None:
    def dies(path: Path) -> None:
        write(path)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        files.saving(dies, 0, "path")(tmp_path / f"step-20{suffix}")
    boot.verify()
    assert names(tmp_path) == ["run", f"step-20{suffix}"]


def test_a_safetensors_file_with_an_invalid_header_is_truncated(tmp_path: Path, boot: Booted) -> None:
    path = tmp_path / "step-20.safetensors"
    files.begin(path)
    path.write_bytes((8).to_bytes(8, "little") + bytes(100))
    boot.verify()
    assert names(tmp_path) == ["run"]


@pytest.mark.parametrize("name", ["/dev/null", "s3://bucket/state.pt"])
def test_a_name_that_is_not_a_local_file_is_not_recorded(name: str, boot: Booted) -> None:
    files.begin(name)
    files.ended(name)
    assert not registry_of(boot.worker).exists()


@pytest.mark.parametrize("later", [False, True], ids=["at once", "later"])
def test_a_file_written_by_another_process_after_a_killed_save_is_kept(
    later: bool, tmp_path: Path, boot: Booted, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "step-20.pt"
    files.begin(path)
    path.write_bytes(b"PK\3\4 half of an archive")
    if later:  # between two attempts
        boot.worker.generation = 2
        journal = boot.directory.journal(1)
        journal.parent.mkdir()
        journal.touch()
        os.utime(journal, (1e9, 1e9))
    else:
        monkeypatch.setattr("time.sleep", lambda _: path.write_bytes(b"PK\3\4 more than half of an archive"))
    boot.verify()
    assert names(tmp_path) == ["run", "step-20.pt"]
    assert boot.said() == []


def test_a_save_into_memory_leaves_no_trace(tmp_path: Path, boot: Booted) -> None:
    memory = io.BytesIO()
    save(STATE, memory)
    memory.seek(0)
    assert load(memory)["step"] == 30
    assert not registry_of(boot.worker).exists()
    assert boot.said() == []


def test_a_file_with_a_flipped_bit_is_not_loaded_and_is_moved(tmp_path: Path, boot: Booted) -> None:
    path = tmp_path / "state.pt"
    save(STATE, path)
    files.settle()
    flip(path)
    with pytest.raises(saved.DamagedFileError, match=r"state\.pt: xxh3_128 is [0-9a-f]{32}, but [0-9a-f]{32} was saved"):
        load(path)
    assert names(tmp_path) == ["run"]
    assert [note["kind"] for note in boot.said()] == ["refused file"]


def test_a_damaged_file_that_cannot_be_moved_is_not_loaded_either(
    tmp_path: Path, boot: Booted, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(STATE, tmp_path / "state.pt")
    files.settle()
    flip(tmp_path / "state.pt")
    monkeypatch.setattr(saved, "refuse", lambda *_: (_ for _ in ()).throw(PermissionError(13, "Permission denied")))
    with pytest.raises(saved.DamagedFileError, match=r"it could not be moved \(.*Permission denied\) and is not loaded"):
        load(tmp_path / "state.pt")


def test_a_file_that_is_loaded_twice_is_hashed_once(tmp_path: Path, boot: Booted, monkeypatch: pytest.MonkeyPatch) -> None:
    save(STATE, tmp_path / "state.pt")
    looked: list[Path] = []
    original = saved.damage_of_file

    def look(path: Path) -> str | None:
        looked.append(path)
        return original(path)

    monkeypatch.setattr(saved, "damage_of_file", look)
    load(tmp_path / "state.pt")
    load(tmp_path / "state.pt")
    assert looked == [tmp_path / "state.pt"]
    save({"step": 40, "weight": torch.zeros(3)}, tmp_path / "state.pt")
    load(tmp_path / "state.pt")
    assert len(looked) == 2


def test_a_save_succeeds_if_its_checksum_cannot_be_written_and_reports_it(
    tmp_path: Path, boot: Booted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "append", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    save(STATE, tmp_path / "state.pt")
    assert torch.load(tmp_path / "state.pt")["step"] == 30
    limitations.report_limitations()
    assert [note["calls"] for note in boot.said()] == [["a hook failed: begin: OSError"]]


def test_a_failing_load_raises_torchs_error(tmp_path: Path, boot: Booted) -> None:
    with pytest.raises(FileNotFoundError):
        load(tmp_path / "none.pt")
    (tmp_path / "text.pt").write_text("no checkpoint")
    with pytest.raises(Exception, match="load"):
        load(tmp_path / "text.pt")


@pytest.mark.parametrize("unit", ["step-20.pt", "checkpoint-20/state.pt"])
def test_a_refused_file_is_not_refused_again_and_leaves_nothing(unit: str, tmp_path: Path, boot: Booted) -> None:
    folder = tmp_path / "saved"
    (folder / unit).parent.mkdir(parents=True)
    save(STATE, folder / unit)
    files.settle()
    flip(folder / unit)
    for _ in range(3):
        boot.verify()
    assert len(boot.said()) == 1
    assert list(folder.iterdir()) == []
    folder.rmdir()


def test_the_checksum_of_a_save_is_written_at_the_next_step(tmp_path: Path, boot: Booted) -> None:
    hooks = list[Any]()
    files.hook_optimizer(types.SimpleNamespace(register_optimizer_step_post_hook=hooks.append))
    save(STATE, tmp_path / "state.pt")
    hooks[0]()
    assert saved.here().by_path.keys() == {str(tmp_path / "state.pt")}
    (begun, ended) = records.read(registry_of(boot.worker), None)
    assert (begun["kind"], ended["kind"], ended["path"]) == ("begun", "file", str(tmp_path / "state.pt"))


def test_a_child_does_not_read_its_parents_saves(tmp_path: Path, boot: Booted, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "TICK_S", 1e6)
    save(STATE, tmp_path / "state.pt")
    pid = os.fork()
    if pid == 0:
        os._exit(len(files._pending))
    assert os.waitpid(pid, 0)[1] == 0
    assert len(files._pending) == 1


def test_safetensors_are_verified_through_previously_imported_functions(
    tmp_path: Path, boot: Booted, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("serialize_file", "safe_open"):
        monkeypatch.setattr(safetensors.torch, name, getattr(safetensors.torch, name))
    save_file, load_file = safetensors.torch.save_file, safetensors.torch.load_file
    files.hook_safetensors_torch(safetensors.torch)
    path = tmp_path / "model.safetensors"
    save_file({"weight": STATE["weight"]}, path)
    assert load_file(path)["weight"].equal(STATE["weight"])
    files._verified.clear()
    flip(path)
    with pytest.raises(saved.DamagedFileError):
        load_file(path)


def test_the_safetensors_reader_is_still_a_class_with_its_instances(
    tmp_path: Path, boot: Booted, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = safetensors.safe_open
    monkeypatch.setattr(safetensors, "safe_open", original)
    files.hook_safetensors(safetensors)
    hooked: Any = safetensors.safe_open
    assert hooked is not original
    path = tmp_path / "model.safetensors"
    safetensors.torch.save_file({"weight": STATE["weight"]}, path)
    files.expect(boot.worker, str(path), records.FILE)
    with hooked(path, framework="pt") as reader:
        assert (isinstance(reader, hooked), isinstance(path, hooked), type(reader) is original) == (True, False, True)
        assert hooked.get_tensor(reader, "weight").equal(STATE["weight"])
    assert (issubclass(hooked, hooked), issubclass(original, hooked), issubclass(Path, hooked)) == (True, True, False)
    assert (isinstance(hooked, type), hooked.__name__, hooked.__doc__) == (True, original.__name__, original.__doc__)
    assert isinstance(None, hooked | None)
    files._verified.clear()
    flip(path)
    with pytest.raises(saved.DamagedFileError):
        hooked(filename=path, framework="pt")


# --- torch.distributed.checkpoint -------------------------------------------------------------------------------------


@pytest.fixture
def hooked(boot: Booted, monkeypatch: pytest.MonkeyPatch) -> Booted:
    """dcp.save and dcp.load as a script imports them."""
    monkeypatch.setattr(state_dict_saver, "_save_state_dict", dcp_calls._saving(state_dict_saver._save_state_dict))
    monkeypatch.setattr(state_dict_loader, "_load_state_dict", dcp_calls._loading(state_dict_loader._load_state_dict))
    for name in ("read_data", "read_metadata"):
        monkeypatch.setattr(FileSystemReader, name, getattr(FileSystemReader, name))
    dcp_calls.hook_filesystem(filesystem)
    return boot


def loaded(path: Path) -> torch.Tensor:
    state = {"weight": torch.zeros(1000)}
    state_dict_loader.load(state, checkpoint_id=path, no_dist=True)
    return state["weight"]


@pytest.fixture
def chosen(hooked: Booted, monkeypatch: pytest.MonkeyPatch) -> Booted:
    """As if the script's environment requested headway's format."""
    monkeypatch.setenv("HEADWAY_DCP", "headway")
    return hooked


def dcp_save(path: Path, state: dict[str, Any] | None = None, **more: Any) -> Path:
    state_dict_saver.save(STATE if state is None else state, checkpoint_id=path, no_dist=True, **more)
    files.settle()
    return path


def test_dcp_saves_are_torchs_byte_for_byte(tmp_path: Path, hooked: Booted) -> None:
    dcp_save(tmp_path / "step-10")
    plain = state_dict_saver._save_state_dict.__wrapped__  # type: ignore[attr-defined]
    plain(STATE, FileSystemWriter(tmp_path / "plain"), no_dist=True)
    both = [tmp_path / "step-10", tmp_path / "plain"]
    assert [sorted(path.name for path in folder.iterdir()) for folder in both] == [[".metadata", "__0_0.distcp"]] * 2
    first, second = ((folder / "__0_0.distcp").read_bytes() for folder in both)
    assert first == second
    dcp_to_torch_save(tmp_path / "step-10", tmp_path / "out.pt")
    assert torch.load(tmp_path / "out.pt")["weight"].equal(STATE["weight"])
    assert loaded(tmp_path / "step-10").equal(STATE["weight"])


@pytest.mark.parametrize("before", [True, False], ids=["before the save", "after the save"])
@pytest.mark.parametrize("name", ["checkpoint.json", ROOT])
def test_a_scripts_file_next_to_a_dcp_checkpoint_is_unchanged(name: str, before: bool, tmp_path: Path, hooked: Booted) -> None:
    own = tmp_path / "step-1" / name
    own.parent.mkdir()
    if before:
        own.write_text('{"step": 1, "tokens": 12345}')
    dcp_save(own.parent)
    own.write_text('{"step": 1, "tokens": 12345}')
    hooked.verify()
    assert loaded(own.parent).equal(STATE["weight"])
    assert own.read_text() == '{"step": 1, "tokens": 12345}'
    assert hooked.said() == []


@pytest.mark.parametrize("name", ["__0_0.distcp", ".metadata"])
def test_a_flipped_bit_in_a_dcp_checkpoint_is_refused_before_the_script(name: str, tmp_path: Path, hooked: Booted) -> None:
    for step in (10, 20):
        dcp_save(tmp_path / f"step-{step}")
    flip(tmp_path / "step-20" / name)
    hooked.verify()
    assert names(tmp_path) == ["run", "step-10"]
    (note,) = hooked.said()
    assert note["why"].startswith(f"{name}: xxh3_128 is ")


@pytest.mark.parametrize("thread_count", [1, 3])
@pytest.mark.parametrize("single", [True, False], ids=["a file per rank", "a file per tensor"])
def test_a_flipped_bit_in_a_dcp_checkpoint_is_refused_when_loaded(
    single: bool, thread_count: int, tmp_path: Path, hooked: Booted
) -> None:
    writer = FileSystemWriter(tmp_path / "step-10", single_file_per_rank=single, thread_count=thread_count)
    state = {"weight": torch.arange(1000.0), "other": torch.arange(500.0), "step": 3}
    state_dict_saver.save(state, storage_writer=writer, no_dist=True)
    files.settle()
    largest = max((tmp_path / "step-10").iterdir(), key=lambda path: path.stat().st_size)
    flip(largest)
    with pytest.raises(CheckpointException, match=rf"{largest.name}: xxh3_128 is [0-9a-f]+, but [0-9a-f]+ was saved"):
        loaded(tmp_path / "step-10")
    assert names(tmp_path) == ["run"]
    assert [Path(note["path"]).name for note in hooked.said()] == ["step-10"]


def test_only_the_bytes_read_from_a_dcp_file_are_compared(
    tmp_path: Path, hooked: Booted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "BLOCK_BYTES", 1000)
    dcp_save(tmp_path / "step-10", {"weight": torch.arange(1000.0), "other": torch.arange(20_000.0)})
    compared, original = list[int](), records.differ

    def differ(path: Path, size: int, blocks: Sequence[str], first: int) -> bool:
        compared.append(first)
        return original(path, size, blocks, first)

    monkeypatch.setattr(records, "differ", differ)
    for _ in range(2):
        loaded(tmp_path / "step-10")
    assert 4 <= len(compared) <= 10
    assert len(compared) == len(set(compared)), "once each"


def test_a_dcp_checkpoint_overwritten_by_another_program_is_kept(tmp_path: Path, hooked: Booted) -> None:
    dcp_save(tmp_path / "step-10")
    plain = state_dict_saver._save_state_dict.__wrapped__  # type: ignore[attr-defined]
    plain({"weight": torch.ones(1000)}, FileSystemWriter(tmp_path / "step-10"), no_dist=True)
    hooked.verify()
    assert loaded(tmp_path / "step-10").equal(torch.ones(1000))
    shutil.copytree(tmp_path / "step-10", tmp_path / "copy")
    shutil.rmtree(tmp_path / "step-10")
    (tmp_path / "copy").rename(tmp_path / "step-10")
    hooked.verify()
    assert loaded(tmp_path / "step-10").equal(torch.ones(1000))
    assert hooked.said() == []


def test_a_killed_first_dcp_save_does_not_hide_an_older_checkpoint(tmp_path: Path, hooked: Booted) -> None:
    dcp_save(tmp_path / "step-10")
    flip(tmp_path / "step-10/__0_0.distcp")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FileSystemWriter, "finish", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt()))
        with pytest.raises(CheckpointException):
            dcp_save(tmp_path / "step-20")
    hooked.verify()
    assert names(tmp_path) == ["run", "step-20"], "a script passes over it, for it has no .metadata"


def killed_over(path: Path, left: Callable[[Path], object], state: dict[str, Any]) -> None:
    """A save over a checkpoint, killed after `left` was done to its data files."""

    def finish(*_: Any, **__: Any) -> None:
        left(path)
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FileSystemWriter, "finish", finish)
        writer = FileSystemWriter(path, thread_count=2)
        with pytest.raises(CheckpointException):
            state_dict_saver.save(state, storage_writer=writer, no_dist=True)


OLD, NEW = ({"a": torch.full((100,), value), "b": torch.full((100,), value)} for value in (1.0, 2.0))


def cut(path: Path) -> None:
    os.truncate(path / "__0_1.distcp", 100)


def touched(path: Path) -> None:
    for file in path.iterdir():
        file.touch()


@pytest.mark.parametrize(
    ("left", "state", "why"),
    [
        (cut, NEW, "__0_1.distcp is truncated: a save over the checkpoint did not finish"),
        (
            lambda _: None,
            {**NEW, "b": OLD["b"]},
            "is from a different save than the rest: a save over the checkpoint did not finish",
        ),
        (lambda _: None, NEW, None),
        (lambda _: None, OLD, None),
        (touched, NEW, None),
    ],
    ids=[
        "a file cut off",
        "files of two saves",
        "all files of the new one",
        "all files of the old one",
        "rewritten since",
    ],
)
def test_a_killed_save_over_a_dcp_checkpoint_is_refused_unless_complete(
    left: Callable[[Path], object], state: dict[str, Any], why: str | None, tmp_path: Path, hooked: Booted
) -> None:
    path = tmp_path / "last"
    state_dict_saver.save(OLD, storage_writer=FileSystemWriter(path, thread_count=2), no_dist=True)
    files.settle()
    killed_over(path, left, state)
    hooked.verify()
    notes = hooked.said()
    assert names(tmp_path) == (["last", "run"] if why is None else ["run"])
    assert [note["why"].endswith(why) for note in notes if why] == [True] * len(notes)


def test_an_unreadable_dcp_checkpoint_stays_in_place(tmp_path: Path, hooked: Booted, monkeypatch: pytest.MonkeyPatch) -> None:
    for step in (10, 20, 30):
        dcp_save(tmp_path / f"step-{step}")
    flip(tmp_path / "step-20/__0_0.distcp")
    original = records.differ

    def differ(path: Path, *args: Any) -> bool:
        if path.parent.name == "step-30":
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
        return original(path, *args)

    monkeypatch.setattr("headway.runner.boot.shares.differ", differ)
    hooked.verify()
    assert names(tmp_path) == ["run", "step-10", "step-30"]


def test_a_file_missing_from_a_dcp_checkpoint_is_not_damage(tmp_path: Path, hooked: Booted) -> None:
    """The file may be on another node's disk."""
    dcp_save(tmp_path / "step-10")
    (tmp_path / "step-10/__0_0.distcp").unlink()
    hooked.verify()
    assert names(tmp_path) == ["run", "step-10"]


def test_a_save_in_a_thread_has_its_checksums_when_it_ends(tmp_path: Path, hooked: Booted) -> None:
    with ThreadPoolExecutor(1) as pool:
        pool.submit(state_dict_saver.save, STATE, checkpoint_id=tmp_path / "step-10", no_dist=True).result()
    kinds = [(line["kind"], Path(line["path"]).name) for line in records.read(registry_of(hooked.worker), None)]
    assert kinds == [("dcp begun", "step-10"), ("dcp", "step-10"), ("part", "__0_0.distcp"), ("part", ".metadata")]


def test_another_librarys_storage_writer_is_left_unchanged_and_reported(tmp_path: Path, chosen: Booted) -> None:
    class Own(FileSystemWriter):
        pass

    state_dict_saver.save(STATE, storage_writer=Own(tmp_path / "own"), no_dist=True)
    assert not (tmp_path / "own" / ROOT).exists()
    assert not registry_of(chosen.worker).exists()
    limitations.report_limitations()
    (note,) = chosen.said()
    assert note["calls"] == ["dcp.save through Own with a custom write method: not verified"]


# --- headway's format, on request -------------------------------------------------------------------------------------


def test_optional_verified_storage_of_dcp_looks_complete_as_torchs_does(
    tmp_path: Path, chosen: Booted, monkeypatch: pytest.MonkeyPatch
) -> None:
    dcp_save(tmp_path / "step-10")
    assert {ROOT, ".metadata"} <= {path.name for path in (tmp_path / "step-10").iterdir()}
    monkeypatch.delenv("HEADWAY_DCP")
    assert loaded(tmp_path / "step-10").equal(STATE["weight"]), "the format is recognized by the files"


def test_a_flipped_bit_in_headways_format_is_refused_at_start_and_at_load(tmp_path: Path, chosen: Booted) -> None:
    for step in (10, 20, 30):
        dcp_save(tmp_path / f"step-{step}")
    for step in (20, 30):
        (data,) = (tmp_path / f"step-{step}").glob("data-*.bin")
        flip(data)
    saved.verify_newest(saved.units(registry_of(chosen.worker), None)[:1])
    assert names(tmp_path) == ["run", "step-10", "step-20"]
    with pytest.raises(CheckpointException, match="the bytes differ from those that were committed"):
        loaded(tmp_path / "step-20")
    assert names(tmp_path) == ["run", "step-10"]
    assert [Path(note["path"]).name for note in chosen.said()] == ["step-30", "step-20"]


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE, errno.EACCES])
@pytest.mark.parametrize("called", ["read", "read_into"])
def test_unreadable_headway_storage_stays_and_the_previous_is_verified(
    called: str, number: int, tmp_path: Path, chosen: Booted, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in (10, 20, 30):
        dcp_save(tmp_path / f"step-{step}")
    (data,) = (tmp_path / "step-20").glob("data-*.bin")
    flip(data)
    original = getattr(DirectorySource, called)

    def read(self: Any, *args: Any) -> Any:
        if self._directory.name == "step-30":
            raise OSError(number, os.strerror(number), str(self._directory))
        return original(self, *args)

    monkeypatch.setattr(DirectorySource, called, read)
    with pytest.raises(CheckpointException, match=re.escape(os.strerror(number))):
        loaded(tmp_path / "step-30")
    assert "step-30" in names(tmp_path), "a load tells as little"
    chosen.verify()
    assert names(tmp_path) == ["run", "step-10", "step-30"]


@pytest.mark.parametrize("kind", ["data-*.bin", "part-*.json"])
def test_a_file_missing_from_headways_format_is_damage(kind: str, tmp_path: Path, chosen: Booted) -> None:
    dcp_save(tmp_path / "step-10")
    (lost,) = (tmp_path / "step-10").glob(kind)
    lost.unlink()
    chosen.verify()
    assert names(tmp_path) == ["run"]


def test_a_directory_that_torch_overwrote_is_loaded_as_torchs(tmp_path: Path, chosen: Booted) -> None:
    dcp_save(tmp_path / "step-10")
    dcp_plain = state_dict_saver._save_state_dict.__wrapped__  # type: ignore[attr-defined]
    dcp_plain({"weight": torch.ones(1000)}, FileSystemWriter(tmp_path / "step-10"), no_dist=True)
    assert loaded(tmp_path / "step-10").equal(torch.ones(1000))


def test_values_that_headways_storage_cannot_hold_are_saved_by_torch(tmp_path: Path, chosen: Booted) -> None:
    dcp_save(tmp_path / "step-10", {"weight": STATE["weight"], "odd": types.SimpleNamespace(a=1)})
    assert loaded(tmp_path / "step-10").equal(STATE["weight"])
    limitations.report_limitations()
    (note,) = chosen.said()
    assert note["calls"][0].startswith(f"dcp.save to {tmp_path}/step-10: torch saved it: ObjectError: `odd`")
