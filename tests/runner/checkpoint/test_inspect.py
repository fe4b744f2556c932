"""Tests listing, verifying and comparing checkpoints, and building runs and chains from them."""

import json
import random
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.state_dict_saver import save as dcp_save

from headway.runner.checkpoint import chain as chain_module
from headway.runner.checkpoint.__main__ import main
from headway.runner.checkpoint.bucket import ObjectBucket
from headway.runner.checkpoint.chain import Commit, Committed, Retire, lineage, newest_base
from headway.runner.checkpoint.format import MANIFEST, RefusedError
from headway.runner.checkpoint.interop.archive import Verified
from headway.runner.checkpoint.interop.dcp import StorageWriter
from headway.runner.checkpoint.interop.plain_dcp import export_dcp, read_dcp
from headway.runner.checkpoint.tools.adopt import (
    VerifiedDirectory,
    contradicted,
    found_again,
    newest_generation,
    readable,
    survey,
)
from headway.runner.checkpoint.tools.compare import CheckpointDifference, compare
from headway.runner.checkpoint.tools.inspect import (
    FileRefusal,
    InspectedRun,
    PlaceError,
    Progress,
    Row,
    chosen,
    open_run,
    rows,
    verify,
)
from headway.runner.checkpoint.tools.rebuild import Contents, commit_first, contents_of_dcp, contents_of_safetensors, found_run
from headway.runner.contract import Base, Checkpoint, CheckpointId, Tier, to_json
from tests.runner.checkpoint.test_huggingface import Tensors
from tests.runner.train.test_imports import CONFIG_OF_JOB
from tests.support.checkpoints import Piece, RankState, claim, new_run, save, write

FULL = torch.arange(40.0).reshape(8, 5)


def state(value: float) -> list[RankState]:
    """Two ranks: a tensor in halves, one that both have whole and both write, and separate objects."""
    halves = [Piece(FULL[4 * rank : 4 * rank + 4] + value, (8, 5), 4 * rank) for rank in range(2)]
    return [
        RankState({"w": half, "n": torch.tensor(float(value))}, {"step": value, "rank": rank}) for rank, half in enumerate(halves)
    ]


@pytest.fixture
def run(tmp_path: Path) -> InspectedRun:
    return new_run(tmp_path / "run-1")


@pytest.fixture
def rolled_back(run: InspectedRun) -> InspectedRun:
    """Steps 10, 20 and 30 of generation 1; generation 2 continues from 20 to 35."""
    claim(run)
    _, base, _ = (save(run, step, state(step)) for step in (10, 20, 30))
    claim(run, base)
    save(run, 35, state(35), ("shared", "remote"))
    return run


@pytest.fixture
def no_stale_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """A local directory shows its contents at once, so no wait is needed."""
    monkeypatch.setattr(chain_module, "STALE_WAITS_S", ())


def records(run: InspectedRun) -> Sequence[Any]:
    return run.chain().read()


# --- ls ---------------------------------------------------------------------------------------------------------------


def test_a_row_shows_where_a_checkpoint_is_and_whether_it_counts(rolled_back: InspectedRun) -> None:
    found = {row.step: (row.generation, row.tiers, row.states) for row in rows(rolled_back, records(rolled_back))}
    assert found == {
        10: (1, ("shared",), ()),
        20: (1, ("shared",), ("base of generation 2",)),
        30: (1, ("shared",), ("rolled back",)),
        35: (2, ("shared", "remote"), ("newest",)),
    }


def test_a_row_has_the_data_files_size_and_the_commits_time(rolled_back: InspectedRun) -> None:
    (first, *_) = rows(rolled_back, records(rolled_back))
    files = (rolled_back.checkpoints / first.directory).glob("data-*")
    assert first.bytes == sum(file.stat().st_size for file in files) == 168
    assert first.made_at == records(rolled_back)[1].made_at


def test_a_tier_that_finished_later_is_in_the_same_row(rolled_back: InspectedRun) -> None:
    newest = records(rolled_back)[-1]
    save_again = Commit(35, newest.entry.manifest_xxh3_128, ("remote",))
    rolled_back.chain().append(save_again, 2, 0, "a test")
    assert [row.tiers for row in rows(rolled_back, records(rolled_back)) if row.step == 35] == [("shared", "remote")]


def test_retired_missing_and_uncommitted_checkpoints_are_marked(rolled_back: InspectedRun) -> None:
    rolled_back.chain().append(Retire((CheckpointId(10, 1),)), 2, 0, "a test")
    shutil.rmtree(rolled_back.checkpoints / CheckpointId(10, 1).directory)
    shutil.rmtree(rolled_back.checkpoints / CheckpointId(20, 1).directory)
    write(rolled_back, CheckpointId(36, 2), state(36))
    (rolled_back.checkpoints / ".tmp-step-000000040.g000002").mkdir()
    found = rows(rolled_back, records(rolled_back))
    assert [(row.step, row.states) for row in found] == [
        (10, ("retired",)),
        (20, ("base of generation 2", "missing in shared storage")),
        (30, ("rolled back",)),
        (35, ("newest",)),
        (40, ("not committed",)),
        (36, ("not committed",)),
    ]
    assert found[4] == Row(40, 2, (), 0, None, ("not committed",), ".tmp-step-000000040.g000002")
    assert (found[0].tiers, found[0].bytes) == ((), None)


def test_a_run_without_checkpoints_has_no_rows(run: InspectedRun) -> None:
    assert rows(run, records(run)) == []


def test_the_checkpoint_of_a_step_is_the_valid_one(rolled_back: InspectedRun) -> None:
    assert [chosen(rolled_back, records(rolled_back), step).step for step in (None, 20)] == [35, 20]
    with pytest.raises(PlaceError, match="run `run-1` has no checkpoint of step 30; it has: 35, 20, 10"):
        chosen(rolled_back, records(rolled_back), 30)


def test_a_checkpoint_deleted_from_disk_is_read_where_run_json_specifies(rolled_back: InspectedRun, bucket: str) -> None:
    at = CheckpointId(35, 2)
    for path in (rolled_back.checkpoints / at.directory).iterdir():
        ObjectBucket(bucket).put(f"run-1/{at.directory}/{path.name}", path.read_bytes())
    shutil.rmtree(rolled_back.checkpoints / at.directory)
    save(rolled_back, 40, state(40))
    rolled_back.chain().append(Retire((at,), ("shared",)), 2, 0, "a test")
    base = chosen(rolled_back, records(rolled_back), 35)
    with pytest.raises(PlaceError, match=r"is on `remote` only, and no run\.json of the run has its location"):
        rolled_back.reader(base)
    config = replace(CONFIG_OF_JOB, checkpoint=Checkpoint((Tier("remote", every_steps=1, url=bucket),)))
    (rolled_back.directory / "attempts/0").mkdir(parents=True)
    (rolled_back.directory / "attempts/0/run.json").write_text(to_json(config))
    assert findings(rolled_back, base) == []


def test_a_run_keeps_its_name_when_its_directory_moves(rolled_back: InspectedRun, tmp_path: Path) -> None:
    moved = tmp_path / "elsewhere"
    rolled_back.directory.rename(moved)
    assert open_run(moved) == InspectedRun(moved, "run-1")
    (moved / "handle.json").write_text(json.dumps({"run": "as the handle says"}))
    assert open_run(moved).name == "as the handle says"


def test_a_directory_that_is_not_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PlaceError, match="it has no shared/chain"):
        open_run(tmp_path)


# --- verify -----------------------------------------------------------------------------------------------------------


def findings(run: InspectedRun, base: Base) -> list[FileRefusal]:
    return [found for found in verify(run.reader(base)) if isinstance(found, FileRefusal)]


def test_a_whole_checkpoint_is_verified_to_its_last_byte(rolled_back: InspectedRun) -> None:
    found = list(verify(rolled_back.reader(chosen(rolled_back, records(rolled_back), None))))
    assert found[-1] == Progress(168, 168)
    assert not any(isinstance(one, FileRefusal) for one in found)


def test_every_file_and_tensor_that_differs_from_its_commit_is_named(rolled_back: InspectedRun) -> None:
    base = chosen(rolled_back, records(rolled_back), None)
    folder, rng = rolled_back.checkpoints / base.checkpoint.directory, random.Random(3)
    for path in sorted(path for path in folder.iterdir() if path.name != MANIFEST):
        good = path.read_bytes()
        for at in rng.sample(range(len(good)), 20):
            path.write_bytes(good[:at] + bytes([good[at] ^ (1 << rng.randrange(8))]) + good[at + 1 :])
            (only,) = findings(rolled_back, base)
            assert only.name == path.name
            assert path.suffix == ".json" or only.reason.startswith("tensor `w`" if at < 80 else "tensor `n`")
        path.unlink()
        assert {found.name for found in findings(rolled_back, base)} == {path.name}
        path.write_bytes(good)
    assert findings(rolled_back, base) == []


def test_damage_in_two_places_is_reported_twice(rolled_back: InspectedRun) -> None:
    base = chosen(rolled_back, records(rolled_back), None)
    for rank in range(2):
        path = rolled_back.checkpoints / base.checkpoint.directory / f"data-{rank}-0.bin"
        path.write_bytes(b"\xff" + path.read_bytes()[1:])
    assert [found.name for found in findings(rolled_back, base)] == ["data-0-0.bin", "data-1-0.bin"]


def test_elements_missing_from_every_part_are_counted(run: InspectedRun) -> None:
    claim(run)
    base = save(run, 1, state(1)[:1])
    assert findings(run, base) == [FileRefusal(MANIFEST, "tensor `w`: 20 of 40 elements are present")]


def test_an_unreadable_object_is_named(run: InspectedRun) -> None:
    claim(run)
    base = save(run, 1, [RankState({}, {"odd": {"nested": 1}})])
    path = run.checkpoints / base.checkpoint.directory / "part-0.json"
    path.write_bytes(path.read_bytes().replace(b'"dict"', b'"dish"'))
    assert [found.name for found in findings(run, base)] == ["part-0.json"]


# --- diff -------------------------------------------------------------------------------------------------------------


class Archived(Tensors):
    """Tensors and objects in memory."""

    def __init__(self, tensors: dict[str, torch.Tensor], objects: dict[str, Any]) -> None:
        super().__init__(tensors)
        self._objects = objects

    def objects(self) -> dict[str, Any]:
        return self._objects


def test_differences_are_named_with_their_size(rolled_back: InspectedRun) -> None:
    old, new = (Verified(rolled_back.reader(chosen(rolled_back, records(rolled_back), step))) for step in (20, 35))
    assert list(compare(old, old)) == []
    assert list(compare(old, new)) == [
        CheckpointDifference("values", "n", "float32[]", "float32[]", 15.0, 0, 1),
        CheckpointDifference("values", "w", "float32[8, 5]", "float32[8, 5]", 15.0, 0, 40),
        CheckpointDifference("object", "objects.0.step", "20", "35"),
        CheckpointDifference("object", "objects.1.step", "20", "35"),
    ]


def test_added_removed_and_retyped_tensors_are_distinguished() -> None:
    old = Archived({"gone": torch.ones(1), "shape": torch.ones(2), "dtype": torch.ones(2)}, {})
    new = Archived({"shape": torch.ones(3), "dtype": torch.ones(2).half(), "came": torch.ones(4)}, {})
    assert list(compare(old, new)) == [
        CheckpointDifference("removed", "gone", old="float32[1]"),
        CheckpointDifference("changed", "shape", "float32[2]", "float32[3]"),
        CheckpointDifference("changed", "dtype", "float32[2]", "float16[2]"),
        CheckpointDifference("added", "came", new="float32[4]"),
    ]


def values(one: list[float], other: list[float]) -> tuple[float | None, int | None]:
    (difference,) = compare(Archived({"t": torch.tensor(one)}, {}), Archived({"t": torch.tensor(other)}, {}))
    return difference.max_abs, difference.equal


def test_values_are_compared_numerically_and_listed_when_their_bits_differ() -> None:
    nan, infinite = float("nan"), float("inf")
    assert values([1.0, nan, 3.0], [1.5, nan, 3.0]) == (0.5, 2)
    assert values([1.0, nan], [1.0, 2.0]) == (None, 1)
    assert values([infinite, 1.0], [0.0, 1.0]) == (None, 1)
    assert values([0.0], [-0.0]) == (0.0, 1)


def test_objects_are_compared_by_their_paths() -> None:
    old = {"0": {"a": [1, {"b": 2}], "gone": None, "kind": 1, "rng": bytes(9)}}
    new = {"0": {"a": [1, {"b": 3}], "came": (1,), "kind": 1.0, "rng": bytes(8)}}
    assert list(compare(Archived({}, old), Archived({}, new))) == [
        CheckpointDifference("object", "objects.0.a[1].b", "2", "3"),
        CheckpointDifference("object", "objects.0.gone", old="None"),
        CheckpointDifference("object", "objects.0.kind", "1", "1.0"),
        CheckpointDifference("object", "objects.0.rng", "9 bytes, xxh3_64 34499569f0391857", "8 bytes, xxh3_64 c77b3abb6f87acd9"),
        CheckpointDifference("object", "objects.0.came", new="(1,)"),
    ]


def test_a_tensor_is_assembled_from_all_ranks_or_refused(run: InspectedRun) -> None:
    claim(run)
    whole = Verified(run.reader(save(run, 1, state(1))))
    assert torch.equal(whole.tensor("w"), FULL + 1)
    assert whole.objects() == {"0": {"rank": 0, "step": 1}, "1": {"rank": 1, "step": 1}}
    half = Verified(run.reader(save(run, 2, state(2)[:1])))
    with pytest.raises(RefusedError, match="tensor `w`: 20 of 40 elements are present"):
        half.tensor("w")


# --- export and import ------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("error")
def test_an_exported_state_is_restored_unchanged_from_plain_dcp(rolled_back: InspectedRun, tmp_path: Path) -> None:
    archive = Verified(rolled_back.reader(chosen(rolled_back, records(rolled_back), None)))
    export_dcp(archive, tmp_path / "plain")
    assert list(compare(archive, read_dcp(tmp_path / "plain"))) == []
    with pytest.raises(FileExistsError, match="pass a directory that does not exist yet"):
        export_dcp(archive, tmp_path / "plain")


@pytest.mark.parametrize("form", ["dcp", "safetensors"])
def test_an_export_of_a_damaged_checkpoint_names_the_damage_and_is_removed(
    rolled_back: InspectedRun, form: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base = chosen(rolled_back, records(rolled_back), None)
    path = rolled_back.checkpoints / base.checkpoint.directory / "data-1-0.bin"
    path.write_bytes(b"\xff" + path.read_bytes()[1:])
    out = tmp_path / "exports" / "new"
    out.parent.mkdir()
    assert main(["export", str(rolled_back.directory), "--to", str(out), "--format", form]) == 1
    reason = json.loads(capsys.readouterr().out)["reason"]
    assert reason.startswith("step-000000035.g000002/data-1-0.bin: tensor `w` at [4, 0]+[4, 5]: ")
    assert list(out.parent.iterdir()) == []


def test_output_of_headways_storage_classes_is_not_a_plain_checkpoint(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.warns(UserWarning, match="torch.distributed is disabled"):
        dcp_save({"w": FULL}, storage_writer=StorageWriter(tmp_path / "own"), no_dist=True)
    assert main(["import", "dcp", str(tmp_path / "own"), "--to", str(tmp_path / "new")]) == 2
    said = json.loads(capsys.readouterr().out)["reason"]
    assert said.endswith(f"`headway checkpoint export {tmp_path / 'own'} --format dcp --to DIR` makes one")


def test_an_imported_run_starts_with_a_claim_and_a_verified_commit(tmp_path: Path) -> None:
    run = found_run(tmp_path / "new", None, None)
    base = commit_first(run, 7, Contents({"w": FULL}, {"step": 7}), Path("/somewhere"))
    run = open_run(tmp_path / "new")
    assert [record.kind for record in records(run)] == ["claim", "commit"]
    assert newest_base(records(run)) == base == Base(7, 1, base.manifest_xxh3_128)
    assert findings(run, base) == []
    assert run.reader(base).manifest.trust == "imported from /somewhere"
    with pytest.raises(PlaceError, match="an import creates a new run"):
        found_run(tmp_path / "new", None, None)


def test_nested_plain_dcp_values_are_found_under_headways_names(tmp_path: Path) -> None:
    nested = {
        "model": {"a.weight": torch.ones(2)},
        "optimizer": {"state": {"a.weight": {"step": torch.tensor(3.0)}}, "groups": [{"lr": 0.5}]},
    }
    with pytest.warns(UserWarning, match="torch.distributed is disabled"):
        dcp_save({**nested, "step": 4}, storage_writer=FileSystemWriter(tmp_path / "plain"), no_dist=True)
    contents = contents_of_dcp(read_dcp(tmp_path / "plain"))
    assert {name: tensor.tolist() for name, tensor in contents.tensors.items()} == {
        "model/a.weight": [1.0, 1.0],
        "optimizer/state/a.weight/step": 3.0,
    }
    assert contents.objects == {"state": {"optimizer/groups": [{"lr": 0.5}], "step": 4}, "rng": None}


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_a_failed_import_leaves_no_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dcp_save({"w": torch.ones(2), "odd": torch.float16}, storage_writer=FileSystemWriter(tmp_path / "plain"), no_dist=True)
    assert main(["import", "dcp", str(tmp_path / "plain"), "--to", str(tmp_path / "new")]) == 1
    reason = json.loads(capsys.readouterr().out)["reason"]
    assert reason == "state['odd'] is a torch.dtype, which a checkpoint cannot hold"
    assert not (tmp_path / "new").exists()


def test_safetensors_are_imported_below_model() -> None:
    contents = contents_of_safetensors(Tensors({"a.weight": torch.ones(2)}))
    assert (list(contents.tensors), len(contents.tensors)) == (["model/a.weight"], 1)
    assert contents.tensors["model/a.weight"].tolist() == [1.0, 1.0]


# --- adopt ------------------------------------------------------------------------------------------------------------


def surveyed(run: InspectedRun) -> list[VerifiedDirectory]:
    return [found for found in survey(run) if isinstance(found, VerifiedDirectory)]


@pytest.mark.usefixtures("no_stale_reads")
def test_records_before_a_gap_are_read_and_the_fault_is_reported(rolled_back: InspectedRun) -> None:
    assert readable(rolled_back) == (records(rolled_back), None)
    third = rolled_back.chain_directory / "000000003.json"
    good = third.read_bytes()
    third.write_bytes(good[:50])
    found, reason = readable(rolled_back)
    assert (len(found), "000000003.json is not a chain record" in str(reason)) == (2, True)
    third.unlink()
    found, reason = readable(rolled_back)
    assert (len(found), "000000003.json is missing" in str(reason)) == (2, True)


def test_checkpoints_are_verified_through_their_manifests(rolled_back: InspectedRun) -> None:
    damaged = rolled_back.checkpoints / CheckpointId(20, 1).directory / "data-1-0.bin"
    damaged.write_bytes(b"\xff" + damaged.read_bytes()[1:])
    (rolled_back.checkpoints / CheckpointId(30, 1).directory / MANIFEST).unlink()
    (rolled_back.checkpoints / CheckpointId(10, 1).directory).rename(rolled_back.checkpoints / CheckpointId(11, 1).directory)
    assert [
        (found.directory[:14], found.refused and (found.refused.name, found.refused.reason[:14]))
        for found in surveyed(rolled_back)
    ] == [
        ("step-000000011", (MANIFEST, "is of step 10,")),
        ("step-000000020", ("data-1-0.bin", "tensor `w` at ")),
        ("step-000000030", (MANIFEST, "No such file o")),
        ("step-000000035", None),
    ]


@pytest.mark.usefixtures("no_stale_reads")
def test_a_chain_is_rebuilt_from_verified_checkpoints_and_the_old_one_kept(rolled_back: InspectedRun) -> None:
    before, kept = records(rolled_back), lineage(records(rolled_back))
    (rolled_back.chain_directory / "000000006.json").unlink()
    (rolled_back.chain_directory / "000000002.json").unlink()
    read, _ = readable(rolled_back)
    found = [one.committed for one in surveyed(rolled_back) if one.committed is not None]
    old = found_again(rolled_back, read, found, newest_generation(rolled_back))
    assert [path.name for path in sorted(old.iterdir())] == [f"{number:09d}.json" for number in (1, 3, 4, 5)]
    after = records(rolled_back)
    assert (after[-1].kind, after[-1].generation) == ("claim", before[-1].generation + 1)
    newest = newest_base(after)
    assert newest is not None
    assert (newest.checkpoint, newest.manifest_xxh3_128) == (kept[0].checkpoint, kept[0].manifest_xxh3_128)
    save(rolled_back, 40, state(40))
    assert findings(rolled_back, chosen(rolled_back, records(rolled_back), 40)) == []


def test_a_lost_chain_is_reported_by_every_verb_that_reads_it(
    rolled_back: InspectedRun, capsys: pytest.CaptureFixture[str]
) -> None:
    for path in rolled_back.chain_directory.iterdir():
        path.unlink()
    assert main(["ls", str(rolled_back.directory)]) == 1
    assert json.loads(capsys.readouterr().out.splitlines()[-1]) == {
        "what": "damaged",
        "reason": "it is empty, but there are 4 checkpoints beside it",
    }
    for words in (["verify"], ["verify", "--all"], ["diff", str(rolled_back.directory)]):
        assert main([words[0], str(rolled_back.directory), *words[1:]]) == 2
        said = json.loads(capsys.readouterr().out)["reason"]
        assert said.startswith("the chain of run `run-1` is lost: it is empty, but there are 4 checkpoints beside it")


def test_a_step_that_is_no_longer_valid_is_verified(rolled_back: InspectedRun, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", f"{rolled_back.directory}@20"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["checkpoint"] == "step-000000020.g000001"


def test_a_run_with_an_empty_chain_gets_one(rolled_back: InspectedRun) -> None:
    for path in rolled_back.chain_directory.iterdir():
        path.unlink()
    assert readable(rolled_back) == ([], None)
    found_again(
        rolled_back, [], [one.committed for one in surveyed(rolled_back) if one.committed], newest_generation(rolled_back)
    )
    assert chosen(rolled_back, records(rolled_back), None).step == 35


def test_checkpoints_that_contradict_readable_records_are_not_adopted(rolled_back: InspectedRun) -> None:
    other = Committed(20, 1, "0" * 32, ("shared",))
    refused = contradicted(records(rolled_back), other)
    assert refused is not None
    assert (refused.name, "was committed" in refused.reason) == (MANIFEST, True)
    assert contradicted(records(rolled_back), lineage(records(rolled_back))[0]) is None
    assert contradicted([], other) is None


def test_the_newest_generation_is_also_read_from_the_journal(rolled_back: InspectedRun) -> None:
    assert newest_generation(rolled_back) == 2
    journal = rolled_back.directory / "shared" / "journal"
    journal.mkdir()
    (journal / "000007.jsonl").touch()
    assert newest_generation(rolled_back) == 7


def test_a_chain_opened_for_reading_is_never_written(rolled_back: InspectedRun) -> None:
    before = sorted(path.name for path in rolled_back.chain_directory.iterdir())
    (rolled_back.chain_directory / before[2]).write_bytes(b"torn")
    readable(rolled_back)
    assert sorted(path.name for path in rolled_back.chain_directory.iterdir()) == before
