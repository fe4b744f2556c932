"""Hooks of saves and loads: the file is as it was, its checksum is beside it, and what is damaged is not loaded."""

import errno
import gzip
import io
import os
import re
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter

from headway.runner.boot import dcp_calls, files, saved, unseen
from headway.runner.boot.sidecar import Found, sidecar_of, verify, write_sidecar
from headway.runner.checkpoint.sources import DirectorySource
from tests.runner.boots import Booted, booted
from tests.runner.test_boot_saved import flip, names

# One process is what is wanted here.
pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled", "ignore:Detected an existing checkpoint")

STATE: dict[str, Any] = {"weight": torch.arange(1000.0), "step": 30}
save: Callable[..., Any] = files.saving(torch.save, 1, "f")
load: Callable[..., Any] = files.loading(torch.load, "f")


@pytest.fixture
def boot(tmp_path: Path) -> Iterator[Booted]:
    with booted(tmp_path / "run") as found:
        yield found
    unseen._seen.clear()


def test_a_file_is_what_torch_writes_and_loads_again(tmp_path: Path, boot: Booted) -> None:
    torch.save(STATE, tmp_path / "state.pt")
    expected = (tmp_path / "state.pt").read_bytes()
    save(STATE, tmp_path / "state.pt")
    assert (tmp_path / "state.pt").read_bytes() == expected
    assert verify(tmp_path / "state.pt").found is Found.GOOD
    assert load(tmp_path / "state.pt")["step"] == 30


@pytest.mark.parametrize("given", [str, Path, lambda path: open(path, "wb")], ids=["text", "path", "open file"])  # noqa: PTH123, SIM115
def test_a_checksum_stands_beside_whatever_names_a_file(given: Callable[[str], Any], tmp_path: Path, boot: Booted) -> None:
    target = given(str(tmp_path / "state.pt"))
    save(obj=STATE, f=target)
    if isinstance(target, io.IOBase):
        target.close()
    assert verify(tmp_path / "state.pt").found is Found.GOOD


def test_a_stream_that_is_closed_after_the_save_is_no_damage(tmp_path: Path, boot: Booted) -> None:
    with gzip.open(tmp_path / "state.pt.gz", "wb") as stream:
        save(STATE, stream)
    with gzip.open(tmp_path / "state.pt.gz") as stream:
        assert load(stream)["step"] == 30


def test_who_dies_while_a_file_is_written_over_leaves_no_checksum_of_what_was_there(tmp_path: Path, boot: Booted) -> None:
    save(STATE, tmp_path / "state.pt")

    def dies(*_: Any) -> None:
        assert verify(tmp_path / "state.pt").found is Found.UNKNOWN
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        files.saving(dies, 1, "f")(STATE, tmp_path / "state.pt")
    assert verify(tmp_path / "state.pt").found is Found.UNKNOWN
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
def test_a_file_whose_save_was_killed_is_refused_before_the_script_and_the_one_before_stays(
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
    assert [note["why"] for note in boot.said()] == [f"step-20{suffix} is cut off: its save did not end"]


@pytest.mark.parametrize(("write", "suffix"), [(torch_file, ".pt"), (old_torch_file, ".pt"), (safetensors_file, ".safetensors")])
def test_a_file_that_is_whole_stays_where_its_checksum_was_not_written_any_more(
    write: Callable[[Path], None], suffix: str, tmp_path: Path, boot: Booted
) -> None:
    def dies(path: Path) -> None:
        write(path)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        files.saving(dies, 0, "path")(tmp_path / f"step-20{suffix}")
    boot.verify()
    assert names(tmp_path) == ["run", f"step-20{suffix}"]


def test_a_safetensors_file_with_a_header_that_is_none_is_cut_off(tmp_path: Path, boot: Booted) -> None:
    path = tmp_path / "step-20.safetensors"
    files.begin(path)
    path.write_bytes((8).to_bytes(8, "little") + bytes(100))
    boot.verify()
    assert names(tmp_path) == ["run"]


@pytest.mark.parametrize("name", ["/dev/null", "s3://bucket/state.pt"])
def test_what_is_no_file_of_this_machine_gets_no_mark(name: str, boot: Booted) -> None:
    files.begin(name)
    assert not saved.registry_of(boot.worker).exists()


def test_what_is_saved_into_memory_leaves_no_trace(tmp_path: Path, boot: Booted) -> None:
    memory = io.BytesIO()
    save(STATE, memory)
    memory.seek(0)
    assert load(memory)["step"] == 30
    assert not saved.registry_of(boot.worker).exists()
    assert boot.said() == []


def test_a_flipped_bit_is_not_loaded_and_the_file_gets_out_of_the_way(tmp_path: Path, boot: Booted) -> None:
    path = tmp_path / "state.pt"
    save(STATE, path)
    flip(path)
    with pytest.raises(saved.DamagedFileError, match=r"state\.pt: xxh3_128 is [0-9a-f]{32}, and [0-9a-f]{32} was saved"):
        load(path)
    assert names(tmp_path) == ["run"]
    assert [note["kind"] for note in boot.said()] == ["refused file"]


def test_a_damaged_file_that_cannot_be_renamed_is_not_loaded_either(
    tmp_path: Path, boot: Booted, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(STATE, tmp_path / "state.pt")
    flip(tmp_path / "state.pt")
    monkeypatch.setattr(saved, "refuse", lambda *_: (_ for _ in ()).throw(PermissionError(13, "Permission denied")))
    with pytest.raises(saved.DamagedFileError, match=r"it could not be renamed \(.*Permission denied\) and is not loaded"):
        load(tmp_path / "state.pt")


def test_a_file_that_is_loaded_twice_is_read_for_its_checksum_once(
    tmp_path: Path, boot: Booted, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_a_save_whose_checksum_cannot_be_written_is_a_save_and_is_said(
    tmp_path: Path, boot: Booted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "write_sidecar", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    save(STATE, tmp_path / "state.pt")
    assert torch.load(tmp_path / "state.pt")["step"] == 30
    unseen.say_unseen()
    assert [note["calls"] for note in boot.said()] == [["a hook failed: keep_checksum: OSError"]]


def test_a_load_that_fails_fails_as_torch_says(tmp_path: Path, boot: Booted) -> None:
    with pytest.raises(FileNotFoundError):
        load(tmp_path / "none.pt")
    (tmp_path / "text.pt").write_text("no checkpoint")
    with pytest.raises(Exception, match="load"):
        load(tmp_path / "text.pt")


def test_a_file_that_is_renamed_into_place_keeps_its_checksum(tmp_path: Path, boot: Booted) -> None:
    save(STATE, tmp_path / "part")
    files._renaming(os.replace)(tmp_path / "part", str(tmp_path / "state.pt"))
    assert verify(tmp_path / "state.pt").found is Found.GOOD
    assert not sidecar_of(tmp_path / "part").exists()
    flip(tmp_path / "state.pt")
    boot.verify()
    assert names(tmp_path) == ["run"]


def test_who_dies_right_after_a_rename_leaves_no_checksum_of_what_was_there(tmp_path: Path, boot: Booted) -> None:
    save(STATE, tmp_path / "state.pt")
    save({"step": 40}, tmp_path / "part")

    def dies(source: Path, target: Path) -> None:
        source.replace(target)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        files._renaming(dies)(tmp_path / "part", tmp_path / "state.pt")
    assert not sidecar_of(tmp_path / "state.pt").exists()


def test_a_rename_of_nothing_or_onto_itself_takes_no_checksum(tmp_path: Path, boot: Booted) -> None:
    save(STATE, tmp_path / "state.pt")
    with pytest.raises(FileNotFoundError):
        files._renaming(os.replace)(tmp_path / "gone", tmp_path / "state.pt")
    files._renaming(os.replace)(tmp_path / "state.pt", tmp_path / "state.pt")
    assert verify(tmp_path / "state.pt").found is Found.GOOD


def test_a_hidden_name_that_is_renamed_into_place_keeps_its_checksum(tmp_path: Path, boot: Booted) -> None:
    save(STATE, tmp_path / ".state.pt.tmp")
    files._renaming(os.replace)(tmp_path / ".state.pt.tmp", tmp_path / "state.pt")
    assert verify(tmp_path / "state.pt").found is Found.GOOD


def test_a_copy_that_is_renamed_over_a_file_is_not_held_against_its_checksum(tmp_path: Path, boot: Booted) -> None:
    (tmp_path / "copy").write_bytes(b"an older one")
    os.utime(tmp_path / "copy", (1, 1))
    save(STATE, tmp_path / "best.pt")
    files._renaming(os.replace)(tmp_path / "copy", tmp_path / "best.pt")
    assert verify(tmp_path / "best.pt").found is Found.UNKNOWN


@pytest.mark.parametrize("unit", ["step-20.pt", "checkpoint-20/state.pt"])
def test_what_was_refused_is_neither_refused_again_nor_found_by_a_scripts_listing(
    unit: str, tmp_path: Path, boot: Booted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "rename", files._renaming(os.rename))
    folder = tmp_path / "saved"
    (folder / unit).parent.mkdir(parents=True)
    save(STATE, folder / unit)
    flip(folder / unit)
    for _ in range(3):
        boot.verify()
    assert len(boot.said()) == 1
    assert [path.name for path in folder.glob("*refused*")] == [f".{unit.partition('/')[0]}.refused"]
    assert files._listing(os.listdir)(folder) == []
    files._removing(os.rmdir)(folder)
    assert not folder.exists()


def test_a_directory_that_is_renamed_into_place_is_known_by_its_new_name(tmp_path: Path, boot: Booted) -> None:
    (tmp_path / "tmp-checkpoint-10").mkdir()
    save(STATE, tmp_path / "tmp-checkpoint-10/optimizer.pt")
    files._renaming(os.rename)(tmp_path / "tmp-checkpoint-10", tmp_path / "checkpoint-10")
    flip(tmp_path / "checkpoint-10/optimizer.pt")
    boot.verify()
    assert names(tmp_path) == ["run"]


def test_a_directory_whose_files_are_deleted_one_by_one_can_be_deleted(tmp_path: Path, boot: Booted) -> None:
    (tmp_path / "old").mkdir()
    save(STATE, tmp_path / "old/state.pt")
    (tmp_path / "old/state.pt").unlink()
    files._removing(os.rmdir)(tmp_path / "old")
    assert not (tmp_path / "old").exists()


def test_a_directory_that_holds_something_is_not_deleted(tmp_path: Path, boot: Booted) -> None:
    (tmp_path / "old").mkdir()
    save(STATE, tmp_path / "old/state.pt")
    with pytest.raises(OSError, match="not empty"):
        files._removing(os.rmdir)(tmp_path / "old")
    assert verify(tmp_path / "old/state.pt").found is Found.GOOD


def test_safetensors_are_verified_through_functions_that_were_imported_before(
    tmp_path: Path, boot: Booted, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("serialize_file", "safe_open"):
        monkeypatch.setattr(safetensors.torch, name, getattr(safetensors.torch, name))
    save_file, load_file = safetensors.torch.save_file, safetensors.torch.load_file
    files.hook_safetensors_torch(safetensors.torch)
    path = tmp_path / "model.safetensors"
    save_file({"weight": STATE["weight"]}, path)
    assert load_file(path)["weight"].equal(STATE["weight"])
    flip(path)
    with pytest.raises(saved.DamagedFileError):
        load_file(path)


def test_safetensors_readers_class_is_still_a_class_and_its_readers_are_of_it(
    tmp_path: Path, boot: Booted, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = safetensors.safe_open
    monkeypatch.setattr(safetensors, "safe_open", original)
    files.hook_safetensors(safetensors)
    hooked: Any = safetensors.safe_open
    assert hooked is not original
    path = tmp_path / "model.safetensors"
    safetensors.torch.save_file({"weight": STATE["weight"]}, path)
    write_sidecar(path, None, 1, 1)
    with hooked(path, framework="pt") as reader:
        assert (isinstance(reader, hooked), isinstance(path, hooked), type(reader) is original) == (True, False, True)
        assert hooked.get_tensor(reader, "weight").equal(STATE["weight"])
    assert (issubclass(hooked, hooked), issubclass(original, hooked), issubclass(Path, hooked)) == (True, True, False)
    assert (isinstance(hooked, type), hooked.__name__, hooked.__doc__) == (True, original.__name__, original.__doc__)
    assert isinstance(None, hooked | None)
    flip(path)
    with pytest.raises(saved.DamagedFileError):
        hooked(filename=path, framework="pt")


# --- torch.distributed.checkpoint -------------------------------------------------------------------------------------


@pytest.fixture
def hooked(boot: Booted, monkeypatch: pytest.MonkeyPatch) -> Booted:
    """dcp.save and dcp.load as a script has them."""
    monkeypatch.setattr(state_dict_saver, "_save_state_dict", dcp_calls._saving(state_dict_saver._save_state_dict))
    monkeypatch.setattr(state_dict_loader, "_load_state_dict", dcp_calls._loading(state_dict_loader._load_state_dict))
    return boot


def loaded(path: Path) -> torch.Tensor:
    state = {"weight": torch.zeros(1000)}
    state_dict_loader.load(state, checkpoint_id=path, no_dist=True)
    return state["weight"]


def test_dcp_saves_go_through_verified_storage_and_look_finished_as_torchs_do(tmp_path: Path, hooked: Booted) -> None:
    state_dict_saver.save(STATE, checkpoint_id=tmp_path / "step-10", no_dist=True)
    assert {"checkpoint.json", ".metadata"} <= {path.name for path in (tmp_path / "step-10").iterdir()}
    assert loaded(tmp_path / "step-10").equal(STATE["weight"])


def test_a_flipped_bit_of_a_dcp_checkpoint_is_refused_before_the_script_and_at_its_load(tmp_path: Path, hooked: Booted) -> None:
    for step in (10, 20, 30):
        state_dict_saver.save(STATE, checkpoint_id=tmp_path / f"step-{step}", no_dist=True)
    for step in (20, 30):
        (data,) = (tmp_path / f"step-{step}").glob("data-*.bin")
        flip(data)
    saved.verify_newest(saved.units(saved.registry_of(hooked.worker), None)[:1])
    assert names(tmp_path) == ["run", "step-10", "step-20"]
    with pytest.raises(CheckpointException, match="the bytes are not those that were committed"):
        loaded(tmp_path / "step-20")
    assert names(tmp_path) == ["run", "step-10"]
    assert [Path(note["path"]).name for note in hooked.said()] == ["step-30", "step-20"]


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE, errno.EACCES])
@pytest.mark.parametrize("called", ["read", "read_into"])
def test_a_dcp_checkpoint_that_cannot_be_read_stays_and_the_one_before_is_verified(
    called: str, number: int, tmp_path: Path, hooked: Booted, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in (10, 20, 30):
        state_dict_saver.save(STATE, checkpoint_id=tmp_path / f"step-{step}", no_dist=True)
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
    hooked.verify()
    assert names(tmp_path) == ["run", "step-10", *([] if number == errno.EIO else ["step-30"])]


@pytest.mark.parametrize("kind", ["data-*.bin", "part-*.json"])
def test_a_file_that_a_dcp_checkpoint_has_lost_is_damage(kind: str, tmp_path: Path, hooked: Booted) -> None:
    state_dict_saver.save(STATE, checkpoint_id=tmp_path / "step-10", no_dist=True)
    (lost,) = (tmp_path / "step-10").glob(kind)
    lost.unlink()
    hooked.verify()
    assert names(tmp_path) == ["run"]


def test_a_directory_that_torch_wrote_is_loaded_and_said_to_be_unverified(tmp_path: Path, boot: Booted) -> None:
    state_dict_saver.save(STATE, checkpoint_id=tmp_path / "plain", no_dist=True)
    load_hooked = dcp_calls._loading(state_dict_loader._load_state_dict)
    state = {"weight": torch.zeros(1000)}
    load_hooked(state, FileSystemReader(tmp_path / "plain"), no_dist=True)
    assert state["weight"].equal(STATE["weight"])
    unseen.say_unseen()
    (note,) = boot.said()
    assert note["calls"] == [f"dcp.load of {tmp_path}/plain: torch wrote it, so nothing in it can be verified"]


def test_a_directory_that_torch_has_overwritten_since_is_torchs(tmp_path: Path, hooked: Booted) -> None:
    state_dict_saver.save(STATE, checkpoint_id=tmp_path / "step-10", no_dist=True)
    dcp_plain = state_dict_saver._save_state_dict.__wrapped__  # type: ignore[attr-defined]
    dcp_plain({"weight": torch.ones(1000)}, FileSystemWriter(tmp_path / "step-10"), no_dist=True)
    assert loaded(tmp_path / "step-10").equal(torch.ones(1000))


def test_what_headways_storage_cannot_hold_torch_saves_and_it_is_said(tmp_path: Path, hooked: Booted) -> None:
    state = {"weight": STATE["weight"], "odd": types.SimpleNamespace(a=1)}
    state_dict_saver.save(state, checkpoint_id=tmp_path / "step-10", no_dist=True)
    assert loaded(tmp_path / "step-10").equal(STATE["weight"])
    unseen.say_unseen()
    (note,) = hooked.said()
    assert note["calls"][0].startswith(f"dcp.save to {tmp_path}/step-10: torch saved it, unverified: ObjectError: `odd`")


def test_a_writer_of_somebody_elses_is_left_alone_and_said(tmp_path: Path, hooked: Booted) -> None:
    class Own(FileSystemWriter):
        pass

    state_dict_saver.save(STATE, storage_writer=Own(tmp_path / "own"), no_dist=True)
    assert not (tmp_path / "own/checkpoint.json").exists()
    unseen.say_unseen()
    (note,) = hooked.said()
    assert note["calls"] == ["dcp.save through Own with its own way of writing: not verified"]
