"""Tests checkpoints: loads return what was saved under any layout, damage is refused by name, and a failed save commits nothing."""

import errno
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributed.tensor import DTensor, Replicate, Shard

from headway.runner.checkpoint.chain import (
    Chain,
    Commit,
    Retire,
    SupersededError,
    lineage,
    newest_base,
    retired,
)
from headway.runner.checkpoint.commit import Committer
from headway.runner.checkpoint.format import MANIFEST, Box, RefusedError, UnfitError
from headway.runner.checkpoint.layout import RankState
from headway.runner.checkpoint.load import Loader
from headway.runner.checkpoint.location import CheckpointLocation
from headway.runner.checkpoint.objects import ObjectError
from headway.runner.checkpoint.ranks import PeerError, Ranks
from headway.runner.checkpoint.read import Reader
from headway.runner.checkpoint.sources import DirectorySource
from headway.runner.checkpoint.stores.posix import PosixStore
from headway.runner.contract import Base, CheckpointId, Mesh
from tests.support.layouts import on_all_ranks, views
from tests.support.saves import Saved, save

RUN = "run-1"
FILES = ("manifest.json", "part-0.json", "data-0-0.bin")


class Run:
    """One run's store: a chain and checkpoints, saved and read by a generation of `world_size` ranks."""

    def __init__(self, root: Path, world_size: int = 1) -> None:
        self.root, self.world_size = root, world_size
        (root / "chain").mkdir(parents=True)
        (root / "checkpoints").mkdir()
        self.chain = self.opened()

    def opened(self) -> Chain:
        return Chain(PosixStore(self.root / "chain"), RUN)

    def claim(self, base: Base | None = None) -> CheckpointLocation:
        self.chain.read()
        record = self.chain.claim(base, 0, "tester")
        mesh = Mesh(dp_shard=self.world_size)
        return CheckpointLocation(self.root / "checkpoints", RUN, record.generation, 0, procs_per_slot=1, mesh=mesh)

    def save(self, place: CheckpointLocation, step: int, state: RankState, keep: int = 3) -> Base:
        save(place, self.opened(), Ranks(), step, state, keep)
        return self.newest()

    def save_all(self, place: CheckpointLocation, step: int, states: list[RankState]) -> list[Saved | Exception]:
        return on_all_ranks(len(states), lambda ranks: save(place, self.opened(), ranks, step, states[ranks.rank], keep=3))

    def newest(self) -> Base:
        base = newest_base(self.chain.read())
        assert base is not None
        return base

    def reader(self, base: Base | None = None) -> Reader:
        return opened(self.root, RUN, base or self.newest())

    def directories(self) -> list[str]:
        return sorted(path.name for path in (self.root / "checkpoints").iterdir())


def opened(root: Path, run: str, base: Base) -> Reader:
    return Reader(DirectorySource(root / "checkpoints" / base.checkpoint.directory), run, base)


def load(reader: Reader, tensors: dict[str, torch.Tensor]) -> None:
    """One rank loads everything."""
    with torch.no_grad():
        Loader(reader, tensors, Ranks()).load()


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path)


TENSORS = {
    "float32": torch.tensor([[1.5, float("nan"), -0.0], [float("inf"), 1e-45, -3.0]]),
    "bfloat16": torch.arange(7).to(torch.bfloat16) / 3,
    "int64": torch.tensor([-(2**63), 2**63 - 1, 0]),
    "bool": torch.tensor([[True], [False]]),
    "uint8": torch.arange(5, dtype=torch.uint8),
    "complex64": torch.tensor([1 + 2j]),
    "float64 scalar": torch.tensor(0.1, dtype=torch.float64),
    "empty": torch.empty(0, 3),
    "transposed": torch.arange(12.0).reshape(3, 4).t(),
    "a view": torch.arange(10.0)[2:8:2],
    "läng/er.name 7": torch.ones(2, 2, 2, dtype=torch.float16),
}
OBJECTS = {"step": 10, "rng": (1, b"\0\xff", [2.5, float("inf")]), "nested": {1: {"a": None}}}


def blank(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Tensors of the same kinds, with other contents."""
    return {name: torch.empty_like(tensor).fill_(1) for name, tensor in tensors.items()}


def raw(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def loaded(reader: Reader, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    target = blank(tensors)
    load(reader, target)
    return target


# --- round trip -------------------------------------------------------------------------------------------------------


def test_every_kind_of_tensor_is_restored_bit_for_bit(run: Run) -> None:
    base = run.save(run.claim(), 10, RankState(TENSORS, OBJECTS))
    assert (base.step, base.generation) == (10, 1)
    found = loaded(run.reader(), TENSORS)
    assert {name: raw(tensor) for name, tensor in found.items()} == {name: raw(tensor) for name, tensor in TENSORS.items()}
    assert run.reader().objects(0) == OBJECTS


def test_save_returns_the_size_of_its_data_files(run: Run) -> None:
    assert save(run.claim(), run.opened(), Ranks(), 10, RankState(TENSORS, OBJECTS), keep=3) == Saved(4096, ())
    assert (run.root / "checkpoints" / "step-000000010.g000001" / "data-0-0.bin").stat().st_size == 4096


def test_a_parameter_that_requires_gradients_is_filled_in_place(run: Run) -> None:
    run.save(run.claim(), 1, RankState({"w": torch.full((3,), 7.0)}, {}))
    parameter = torch.nn.Parameter(torch.zeros(3))
    load(run.reader(), {"w": parameter})
    assert parameter.tolist() == [7.0, 7.0, 7.0]


def test_a_checkpoint_has_no_pickle_and_no_other_files(run: Run) -> None:
    run.save(run.claim(), 10, RankState(TENSORS, OBJECTS))
    directory = run.root / "checkpoints" / "step-000000010.g000001"
    assert sorted(path.name for path in directory.iterdir()) == sorted(FILES)
    assert run.directories() == [directory.name]


def test_a_tensor_that_was_not_saved_is_refused_by_name(run: Run) -> None:
    run.save(run.claim(), 1, RankState({"w": torch.ones(3)}, {}))
    with pytest.raises(UnfitError, match=r"^step-000000001\.g000001: tensor `v`: 0 of 2 elements"):
        load(run.reader(), {"v": torch.zeros(2)})


@pytest.mark.parametrize("other", [torch.zeros(4), torch.zeros(1, 3), torch.zeros(3, dtype=torch.float64)])
def test_another_shape_or_dtype_is_refused_by_tensor(run: Run, other: torch.Tensor) -> None:
    run.save(run.claim(), 1, RankState({"w": torch.ones(3)}, {}))
    with pytest.raises(UnfitError, match=r"tensor `w` is float32\[3\] in the checkpoint"):
        load(run.reader(), {"w": other})


# --- damage -----------------------------------------------------------------------------------------------------------

TINY = RankState({"w": torch.arange(6.0).reshape(2, 3), "n": torch.tensor(3)}, {"step": 10})
OTHER = RankState({"w": torch.arange(6.0).reshape(2, 3) + 1, "n": torch.tensor(4)}, {"step": 20})


def refused(run: Run, base: Base) -> RefusedError:
    """The refusal that reading the whole checkpoint ends in."""
    with pytest.raises(RefusedError) as caught:
        read_whole(run, base)
    return caught.value


def read_whole(run: Run, base: Base) -> None:
    reader = run.reader(base)
    reader.objects(0)
    loaded(reader, dict(TINY.tensors))


@pytest.fixture
def tiny(run: Run) -> Base:
    return run.save(run.claim(), 10, TINY)


def folder(run: Run, base: Base) -> Path:
    return run.root / "checkpoints" / base.checkpoint.directory


def places(name: str, length: int) -> list[int]:
    """The bytes of TINY's files with a meaning: tensors begin at multiples of 64 in a data file, which ends at a multiple of 4096."""
    return [*range(24), *range(64, 72)] if name.startswith("data") else list(range(length))


@pytest.mark.parametrize("name", FILES)
def test_every_changed_byte_is_refused_by_its_file(run: Run, tiny: Base, name: str) -> None:
    path = folder(run, tiny) / name
    good = path.read_bytes()
    for at in places(name, len(good)):
        path.write_bytes(good[:at] + bytes([good[at] ^ (1 << at % 8)]) + good[at + 1 :])
        error = refused(run, tiny)
        assert (error.checkpoint, error.name) == (tiny.checkpoint, name)
    path.write_bytes(good)
    assert torch.equal(loaded(run.reader(), dict(TINY.tensors))["w"], TINY.tensors["w"])


@pytest.mark.parametrize("name", FILES)
def test_every_truncation_is_refused_by_its_file(run: Run, tiny: Base, name: str) -> None:
    path = folder(run, tiny) / name
    good = path.read_bytes()
    for length in places(name, len(good)):
        path.write_bytes(good[:length])
        assert refused(run, tiny).name == name


@pytest.mark.parametrize("name", FILES)
def test_a_missing_file_is_refused_by_name(run: Run, tiny: Base, name: str) -> None:
    (folder(run, tiny) / name).unlink()
    error = refused(run, tiny)
    assert (error.name, error.reason) == (name, "No such file or directory")


def test_a_missing_checkpoint_is_refused_by_name(run: Run, tiny: Base) -> None:
    shutil.rmtree(folder(run, tiny))
    assert str(refused(run, tiny)) == "step-000000010.g000001/manifest.json: No such file or directory"


@pytest.mark.parametrize("name", FILES)
def test_a_file_of_another_step_is_refused_by_name(run: Run, tiny: Base, name: str) -> None:
    other = run.save(replace_generation(run, tiny), 20, OTHER)
    swap(folder(run, tiny) / name, folder(run, other) / name)
    assert refused(run, tiny).name == refused(run, other).name == name


def test_equal_tensors_have_different_hashes_in_each_step_and_generation(run: Run, tiny: Base) -> None:
    """Correct bytes in the wrong place are wrong: a part with the data of another checkpoint does not fit."""
    later = run.save(replace_generation(run, tiny), 20, TINY)
    again = run.save(run.claim(tiny), 10, TINY)
    places = [folder(run, base) for base in (tiny, later, again)]
    assert len({(place / "data-0-0.bin").read_bytes() for place in places}) == 1
    chunks = [json.loads((place / "part-0.json").read_bytes())["tensors"]["w"]["chunks"][0] for place in places]
    assert len({chunk["xxh3_128"] for chunk in chunks}) == 3
    for base in (later, again):
        shutil.copy(folder(run, tiny) / "part-0.json", folder(run, base) / "part-0.json")
        assert refused(run, base).name == "part-0.json"


def replace_generation(run: Run, base: Base) -> CheckpointLocation:
    """The path that `base` was written to."""
    return CheckpointLocation(run.root / "checkpoints", RUN, base.generation, 0, 1, Mesh())


def swap(one: Path, two: Path) -> None:
    spare = one.with_name("spare")
    one.rename(spare)
    two.rename(one)
    spare.rename(two)


def test_a_complete_checkpoint_of_another_step_in_its_place_is_refused(run: Run, tiny: Base) -> None:
    other = run.save(replace_generation(run, tiny), 20, TINY)
    swap(folder(run, tiny), folder(run, other))
    assert refused(run, tiny).name == refused(run, other).name == MANIFEST


def test_a_checkpoint_of_another_run_is_refused(run: Run, tiny: Base) -> None:
    with pytest.raises(RefusedError, match="the bytes differ from those that were committed"):
        load(opened(run.root, "run-2", tiny), blank(dict(TINY.tensors)))


def test_two_swapped_tensors_are_refused(run: Run) -> None:
    state = RankState({"a": torch.zeros(4), "b": torch.ones(4)}, {})
    base = run.save(run.claim(), 1, state)
    path = folder(run, base) / "data-0-0.bin"
    good = path.read_bytes()
    path.write_bytes(good[64:80] + bytes(48) + good[:16] + good[80:])
    with pytest.raises(RefusedError, match="tensor `a`"):
        load(run.reader(base), {"a": torch.zeros(4)})
    with pytest.raises(RefusedError, match="tensor `b`"):
        load(run.reader(base), {"b": torch.zeros(4)})


# --- retention --------------------------------------------------------------------------------------------------------


def test_the_newest_are_kept_and_older_ones_retired_before_deletion(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    deleted: list[str] = []

    def rmtree(path: Path) -> None:
        assert path.name in {checkpoint.directory for checkpoint, _ in retired(run.opened().read())}
        deleted.append(path.name)
        real(path)

    real = shutil.rmtree
    monkeypatch.setattr(shutil, "rmtree", rmtree)
    place = run.claim()
    for step in (10, 20, 30, 40):
        run.save(place, step, TINY, keep=2)
    assert run.directories() == ["step-000000030.g000001", "step-000000040.g000001"]
    assert deleted == ["step-000000010.g000001", "step-000000020.g000001"]
    assert (run.newest().step, len(lineage(run.chain.read()))) == (40, 4)


def test_a_save_returns_what_was_retired_for_it(run: Run) -> None:
    place = run.claim()
    saved = [save(place, run.opened(), Ranks(), step, TINY, keep=2).retired for step in (10, 20, 30)]
    assert saved == [(), (), (CheckpointId(10, 1),)]


def test_a_retired_but_undeleted_checkpoint_is_deleted_by_the_next_save(run: Run) -> None:
    place = run.claim()
    old = run.save(place, 10, TINY)
    run.save(place, 20, TINY)
    run.opened().append(Retire((old.checkpoint,)), place.generation, 0, "a writer that then died")
    assert len(run.directories()) == 2
    run.save(place, 30, TINY)
    assert run.directories() == ["step-000000020.g000001", "step-000000030.g000001"]


def test_the_base_of_the_newest_claim_is_never_retired(run: Run) -> None:
    base = run.save(run.claim(), 10, TINY)
    place = run.claim(base)
    for step in (20, 30, 40, 50):
        run.save(place, step, TINY, keep=2)
        assert base.checkpoint.directory in run.directories()
    newest = run.newest()
    run.save(run.claim(newest), 60, TINY, keep=2)
    assert run.directories() == [newest.checkpoint.directory, "step-000000060.g000003"]


def test_every_valid_checkpoint_exists_and_loads(run: Run) -> None:
    place = run.claim()
    for step in range(1, 12):
        if step % 4 == 0:
            place = run.claim(run.newest())
        run.save(place, step, RankState({"w": torch.full((2,), float(step))}, {}), keep=3)
        records = run.chain.read()
        for base in lineage(records):
            if (base.checkpoint, "shared") not in retired(records):
                assert loaded(run.reader(base.on("shared")), {"w": torch.zeros(2)})["w"].tolist() == [base.step, base.step]


def test_only_unfinished_saves_of_earlier_generations_are_removed(run: Run) -> None:
    place = run.claim()
    root = place.root
    for name in (".tmp-step-000000010.g000001", ".tmp-stale-step-000000010.g000001-5", ".tmp-step-000000020.g000002", "notes"):
        (root / name).mkdir(parents=True)
    run.save(place, 5, TINY)
    assert len(run.directories()) == 5
    run.save(run.claim(run.newest()), 6, TINY)
    kept = ["step-000000005.g000001", "step-000000006.g000002"]
    assert run.directories() == [".tmp-step-000000020.g000002", "notes", *kept]


# --- saves that fail --------------------------------------------------------------------------------------------------


@pytest.fixture
def standing(run: Run) -> Iterator[Base]:
    """A run with one checkpoint; after the test it must still be the newest, and still load."""
    base = run.save(run.claim(), 10, TINY)
    before = len(run.chain.read())
    yield base
    assert run.newest() == base
    assert len(run.opened().read()) == before
    assert torch.equal(loaded(run.reader(base), dict(TINY.tensors))["w"], TINY.tensors["w"])
    final = [name for name in run.directories() if not name.startswith(".tmp-")]
    assert final == [base.checkpoint.directory]


def test_an_unsupported_object_fails_the_save_by_name(run: Run, standing: Base) -> None:
    with pytest.raises(ObjectError, match=r"^extra\['a'\] is a builtins\.set"):
        run.save(replace_generation(run, standing), 20, RankState(TINY.tensors, {"extra": {"a": {1}}}))


@pytest.mark.parametrize(("owner", "call"), [(Path, "mkdir"), (os, "pwrite"), (os, "fsync"), (Path, "rename")])
def test_a_full_disk_fails_the_save(run: Run, standing: Base, owner: object, call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "no space left on device")

    monkeypatch.setattr(owner, call, full)
    with pytest.raises(OSError, match="no space"):
        run.save(replace_generation(run, standing), 20, OTHER)
    monkeypatch.undo()


def test_a_file_in_place_of_the_folder_fails_the_save(run: Run, standing: Base) -> None:
    (run.root / "checkpoints" / ".tmp-step-000000020.g000001").write_text("in the way")
    with pytest.raises(FileExistsError):
        run.save(replace_generation(run, standing), 20, OTHER)


def test_a_superseded_generation_commits_nothing(run: Run) -> None:
    old = run.claim()
    base = run.save(old, 10, TINY)
    run.claim(base)
    with pytest.raises(SupersededError):
        run.save(old, 20, OTHER)
    assert run.newest() == base
    assert torch.equal(loaded(run.reader(base), dict(TINY.tensors))["w"], TINY.tensors["w"])


def test_a_renamed_but_uncommitted_save_is_moved_aside_by_the_next(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    place = run.claim()

    def fails(*_: Any, **__: Any) -> None:
        raise OSError(errno.EIO, "input/output error")

    monkeypatch.setattr(os, "link", fails)
    with pytest.raises(OSError, match="input/output"):
        run.save(place, 10, OTHER)
    monkeypatch.undo()
    assert run.directories() == ["step-000000010.g000001"]
    run.save(place, 10, TINY)
    assert torch.equal(loaded(run.reader(), dict(TINY.tensors))["w"], TINY.tensors["w"])
    assert [name[:11] for name in run.directories()] == [".tmp-stale-", "step-000000"]


def test_a_commit_is_kept_when_retiring_older_ones_fails(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    place, real = run.claim(), Chain.append
    run.save(place, 10, TINY, keep=1)

    def append(chain: Chain, entry: Any, *arguments: Any, **named: Any) -> Any:
        if isinstance(entry, Retire):
            raise OSError(errno.ENOSPC, "no space left on device")
        return real(chain, entry, *arguments, **named)

    monkeypatch.setattr(Chain, "append", append)
    assert run.save(place, 20, TINY, keep=1).step == 20
    assert len(run.directories()) == 2
    monkeypatch.undo()
    run.save(place, 30, TINY, keep=1)
    assert run.directories() == ["step-000000030.g000001"]


# --- several ranks ----------------------------------------------------------------------------------------------------

FULL = {"w": torch.arange(35.0).reshape(7, 5), "b": torch.arange(2, dtype=torch.int64), "n": torch.arange(6.0).to(torch.bfloat16)}
HSDP = (Replicate(), Shard(0))


def states(shape: tuple[int, ...], placements: Any) -> list[RankState]:
    """Sharded tensors of FULL and one that every rank has whole; objects that differ by rank."""
    plain = {"step": torch.tensor(4.0)}
    return [RankState({**view, **plain}, {"rank": rank}) for rank, view in enumerate(views(FULL, shape, placements))]


def check_loads(run: Run, full: dict[str, torch.Tensor], shape: tuple[int, ...], placements: Any) -> None:
    """Every rank of the layout gets exactly its shard."""
    wanted, targets = views(full, shape, placements), views(blank(full), shape, placements)
    base = run.newest()

    def load_one(ranks: Ranks) -> None:
        with torch.no_grad():
            Loader(run.reader(base), targets[ranks.rank], ranks).load()

    assert on_all_ranks(len(targets), load_one) == [None] * len(targets)
    for rank, (want, target) in enumerate(zip(wanted, targets, strict=True)):
        for name in full:
            found, expected = target[name], want[name]
            assert isinstance(found, DTensor)
            assert isinstance(expected, DTensor)
            assert torch.equal(found.to_local(), expected.to_local()), (rank, name)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("shape", "placements"),
    [((2,), [Shard(0)]), ((3,), [Shard(0)]), ((2, 2), HSDP), ((2, 2), (Shard(0), Replicate()))],
)
def test_a_sharded_checkpoint_loads_under_other_layouts(tmp_path: Path, shape: tuple[int, ...], placements: Any) -> None:
    parts = states(shape, placements)
    run = Run(tmp_path, len(parts))
    saved = run.save_all(run.claim(), 10, parts)
    assert saved == [Saved(4096 * len(parts), ())] * len(parts)
    reader = run.reader()
    assert reader.manifest.world_size == len(parts)
    assert [reader.objects(rank) for rank in range(len(parts))] == [{"rank": rank} for rank in range(len(parts))]
    found = loaded(reader, FULL)
    assert all(torch.equal(found[name], tensor) for name, tensor in FULL.items())
    for other, cut in [((1,), [Shard(0)]), ((2,), [Shard(0)]), ((3,), [Shard(0)]), ((8,), [Shard(0)]), ((2, 2), HSDP)]:
        check_loads(run, FULL, other, cut)


@pytest.mark.slow
@settings(max_examples=20, deadline=None)
@given(st.data())
def test_any_layout_loads_under_any_other(data: st.DataObject) -> None:
    sizes = data.draw(st.lists(st.integers(0, 5), min_size=1, max_size=3))
    before, after = (
        (data.draw(st.integers(1, 4)), Shard(data.draw(st.integers(0, len(sizes) - 1)))) for _ in ("saved", "loaded")
    )
    full = {"t": torch.arange(float(torch.Size(sizes).numel())).reshape(sizes)}
    with tempfile.TemporaryDirectory() as root:
        run = Run(Path(root), before[0])
        written = views(full, (before[0],), [before[1]])
        saved = run.save_all(run.claim(), 1, [RankState(view, {}) for view in written])
        assert all(isinstance(one, Saved) for one in saved), saved
        check_loads(run, full, (after[0],), [after[1]])


def test_each_slot_has_separate_files(tmp_path: Path) -> None:
    run = Run(tmp_path, 3)
    run.save_all(run.claim(), 10, states((3,), [Shard(0)]))
    names = sorted(path.name for path in folder(run, run.newest()).iterdir())
    assert names == ["data-0-0.bin", "data-1-0.bin", "data-2-0.bin", "manifest.json", "part-0.json", "part-1.json", "part-2.json"]


def test_damage_in_another_ranks_file_is_refused_by_its_readers(tmp_path: Path) -> None:
    run = Run(tmp_path, 2)
    run.save_all(run.claim(), 10, states((2,), [Shard(0)]))
    path = folder(run, run.newest()) / "data-1-0.bin"
    path.write_bytes(b"\x55" + path.read_bytes()[1:])
    targets = views(blank(FULL), (2,), [Shard(0)])
    base = run.newest()
    errors = on_all_ranks(2, lambda ranks: Loader(run.reader(base), targets[ranks.rank], ranks).load())
    assert isinstance(errors[0], PeerError)
    assert isinstance(errors[1], RefusedError)
    assert errors[1].name == "data-1-0.bin"
    with pytest.raises(RefusedError, match=r"data-1-0\.bin"):
        loaded(run.reader(), FULL)


def test_a_rank_that_cannot_write_fails_all_ranks_and_commits_nothing(tmp_path: Path) -> None:
    run = Run(tmp_path, 3)
    parts = states((3,), [Shard(0)])
    parts[1] = replace(parts[1], objects={"bad": {1}})
    place = run.claim()
    errors = run.save_all(place, 10, parts)
    assert [type(error) for error in errors] == [PeerError, ObjectError, PeerError]
    assert str(errors[0]) == "rank 1 failed"
    assert not any(isinstance(record.entry, Commit) for record in run.chain.read())
    assert all(isinstance(saved, Saved) for saved in run.save_all(place, 20, states((3,), [Shard(0)])))


def test_all_ranks_of_a_superseded_generation_stop(tmp_path: Path) -> None:
    run = Run(tmp_path, 2)
    place = run.claim()
    run.claim()
    errors = run.save_all(place, 10, states((2,), [Shard(0)]))
    assert [type(error) for error in errors] == [SupersededError, SupersededError]


def test_a_first_rank_that_cannot_commit_fails_all_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(tmp_path, 2)
    place = run.claim()

    def fails(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "no space left on device")

    monkeypatch.setattr(Committer, "commit", fails)
    errors = run.save_all(place, 10, states((2,), [Shard(0)]))
    assert [type(error) for error in errors] == [OSError, PeerError]


# --- boxes ------------------------------------------------------------------------------------------------------------

boxes = st.integers(0, 3).flatmap(
    lambda n: st.tuples(*[st.builds(Box, *[st.tuples(*[st.integers(0, 4)] * n)] * 2) for _ in range(2)])
)


@given(boxes)
def test_the_intersection_of_two_boxes_is_what_both_cover(pair: tuple[Box, Box]) -> None:
    whole = [torch.zeros([9] * len(box.offset), dtype=torch.int64) for box in pair]
    for array, box in zip(whole, pair, strict=True):
        array[box.within(Box((0,) * len(box.offset), (9,) * len(box.offset)))] = 1
    common = pair[0].intersect(pair[1])
    covered = int((whole[0] * whole[1]).sum())
    assert covered == (torch.Size(common.shape).numel() if common else 0)
    if common:
        assert common == pair[1].intersect(pair[0])
        part = whole[0] * whole[1]
        assert int(part[common.within(Box((0,) * len(common.offset), (9,) * len(common.offset)))].sum()) == covered
