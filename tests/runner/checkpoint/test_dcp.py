"""Tests headway's storage classes under torch.distributed.checkpoint: everything that dcp saves is restored, and nothing else."""

import itertools
import json
import pickle
import random
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.metadata import MetadataIndex
from torch.distributed.checkpoint.planner import SavePlanner, WriteItem, WriteItemType
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_loader import load as dcp_load
from torch.distributed.checkpoint.state_dict_saver import save as dcp_save
from torch.distributed.tensor import DTensor, Replicate, Shard

from headway.runner.checkpoint.format import RefusedError
from headway.runner.checkpoint.interop.dcp import StorageReader, StorageWriter
from headway.runner.checkpoint.interop.plain_dcp import PlainDcpError, read_dcp
from headway.runner.checkpoint.interop.root import ROOT, read_root
from headway.runner.checkpoint.objects import ObjectError
from tests.support.layouts import views
from tests.support.worlds import run_world

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")

State = dict[str, Any]


def save(path: Path, state: State, planner: SavePlanner | None = None) -> None:
    dcp_save(state, storage_writer=StorageWriter(path), planner=planner, no_dist=True)


def load(path: Path, state: State) -> State:
    dcp_load(state, storage_reader=StorageReader(path), no_dist=True)
    return state


def failure(work: Callable[[], object]) -> BaseException:
    """The error of dcp on the first rank that it names."""
    with pytest.raises(CheckpointException) as caught:
        work()
    error, _ = caught.value.failures[0]
    return error


def refused(path: Path, state: State) -> RefusedError:
    error = failure(lambda: load(path, state))
    assert isinstance(error, RefusedError), error
    return error


def trained() -> tuple[nn.Module, torch.optim.Optimizer]:
    model = nn.Sequential(nn.Linear(6, 5), nn.Linear(5, 3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    model(torch.randn(4, 6)).sum().backward()
    optimizer.step()
    return model, optimizer


# --- round trip -------------------------------------------------------------------------------------------------------


def test_a_model_and_its_optimizer_are_restored_bit_for_bit(tmp_path: Path) -> None:
    (model, optimizer), (other, others) = trained(), trained()
    saved = dict(zip(("model", "optimizer"), get_state_dict(model, optimizer), strict=True))
    save(tmp_path, saved)
    into = load(tmp_path, dict(zip(("model", "optimizer"), get_state_dict(other, others), strict=True)))
    set_state_dict(other, others, model_state_dict=into["model"], optim_state_dict=into["optimizer"])
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))
    before, after = optimizer.state_dict(), others.state_dict()
    assert before["param_groups"] == after["param_groups"]
    for number, slots in before["state"].items():
        assert all(torch.equal(value, after["state"][number][key]) for key, value in slots.items())


VALUES: State = {
    "none": None,
    "flag": True,
    "large": 1 << 5000,
    "tiny": 5e-324,
    "infinite": float("-inf"),
    "text": "ä\n",
    "bytes": b"\x00\xff",
    "list": [1, (2, "x")],
    "scalar": np.float32(0.1),
}


def test_values_are_restored_with_their_types_and_stored_without_pickle(tmp_path: Path) -> None:
    save(tmp_path, {"values": VALUES})
    into = load(tmp_path, {"values": {**dict.fromkeys(VALUES), "list": [0, 0]}})
    assert into["values"] == VALUES
    assert {name: type(value) for name, value in into["values"].items()} == {name: type(value) for name, value in VALUES.items()}
    assert read_root(tmp_path).foreign == {}
    assert {path.suffix for path in tmp_path.iterdir()} == {".json", ".bin"}
    assert all(path.stat().st_size == 0 for path in tmp_path.glob("*.bin"))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn, torch.bool, torch.complex64, torch.int16])
def test_tensors_of_every_dtype_are_restored(tmp_path: Path, dtype: torch.dtype) -> None:
    tensors = {
        "matrix": torch.arange(-6, 6).reshape(3, 4).to(dtype),
        "scalar": torch.tensor(1).to(dtype),
        "empty": torch.empty(0, 3, dtype=dtype),
    }
    save(tmp_path, dict(tensors))
    into = load(tmp_path, {name: torch.zeros_like(tensor) for name, tensor in tensors.items()})
    for name, tensor in tensors.items():
        assert torch.equal(into[name].reshape(-1).view(torch.uint8), tensor.reshape(-1).view(torch.uint8)), name


def test_a_noncontiguous_view_is_restored(tmp_path: Path) -> None:
    full = torch.arange(24.0).reshape(4, 6)
    save(tmp_path, {"view": full.t()[1:5:2]})
    assert torch.equal(load(tmp_path, {"view": torch.zeros(2, 4)})["view"], full.t()[1:5:2])


def test_an_untagged_value_is_stored_separately_and_loaded_as_weights_only(tmp_path: Path) -> None:
    save(tmp_path, {"dtype": torch.float16, "mixed": (1, torch.ones(2)), "plain": 1})
    assert (set(read_root(tmp_path).foreign), set(read_root(tmp_path).objects)) == ({"dtype", "mixed"}, {"plain"})
    into = load(tmp_path, {"dtype": None, "mixed": None, "plain": 0})
    assert (into["dtype"], into["plain"], into["mixed"][0], into["mixed"][1].tolist()) == (torch.float16, 1, 1, [1.0, 1.0])


class Strange:
    """A value that only its own code can restore."""


def test_a_value_that_needs_code_to_load_fails_the_save_by_name(tmp_path: Path) -> None:
    save(tmp_path, {"step": 1})
    error = failure(lambda: save(tmp_path, {"deep": {"odd": Strange()}, "step": 2}))
    assert isinstance(error, ObjectError)
    assert str(error).startswith("`deep.odd` could not be reloaded without running its code: ")
    assert load(tmp_path, {"step": 0}) == {"step": 1}


def test_values_that_weights_only_rejects_are_not_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("headway.runner.checkpoint.interop.dcp._unloadable", lambda _: None)
        save(tmp_path, {"odd": Strange()})
    assert "`odd` cannot be loaded without running its code" in refused(tmp_path, {"odd": None}).reason


def test_a_sparse_tensor_fails_the_save_by_name(tmp_path: Path) -> None:
    error = failure(lambda: save(tmp_path, {"s": torch.eye(3).to_sparse()}))
    assert isinstance(error, ObjectError)
    assert "tensor `s` is torch.sparse_coo" in str(error)


class Halving(DefaultSavePlanner):
    """Saves tensors at half precision and values with an added word."""

    def resolve_data(self, write_item: WriteItem) -> Any:
        if write_item.type is WriteItemType.BYTE_IO:
            return self.transform_object(write_item, ["halved", self.lookup_object(write_item.index)])
        found = super().resolve_data(write_item)
        assert isinstance(found, torch.Tensor)
        return found.half()


def test_tensors_and_values_are_saved_as_the_planner_transformed_them(tmp_path: Path) -> None:
    save(tmp_path, {"w": torch.tensor([1.0, 1 / 3]), "v": 7}, Halving())
    into = load(tmp_path, {"w": torch.zeros(2), "v": None})
    assert into["w"].tolist() == torch.tensor([1.0, 1 / 3]).half().tolist()
    assert into["v"] == ["halved", 7]


def test_a_tensor_missing_from_the_checkpoint_is_named(tmp_path: Path) -> None:
    save(tmp_path, {"w": torch.ones(2)})
    assert "Missing key in checkpoint state_dict: x" in str(failure(lambda: load(tmp_path, {"x": torch.ones(2)})))


# --- layouts ----------------------------------------------------------------------------------------------------------

FULL = {"w": torch.arange(35.0).reshape(7, 5), "b": torch.arange(2, dtype=torch.int64), "n": torch.arange(6.0).to(torch.bfloat16)}
LAYOUTS: Mapping[str, tuple[tuple[int, ...], Sequence[Any]]] = {
    "one": ((1,), [Shard(0)]),
    "fsdp 2": ((2,), [Shard(0)]),
    "fsdp 3": ((3,), [Shard(0)]),
    "fsdp 8": ((8,), [Shard(0)]),
    "hsdp 2x2": ((2, 2), [Replicate(), Shard(0)]),
    "replicated first": ((2, 2), [Shard(0), Replicate()]),
}


def save_on_all(path: Path, states: Sequence[State], planners: Sequence[SavePlanner] | None = None) -> None:
    """dcp.save on several ranks, with torch's steps and collectives executed by hand."""
    writers = [StorageWriter(path) for _ in states]
    planners = planners or [DefaultSavePlanner() for _ in states]
    plans = []
    for rank, (state, writer, planner) in enumerate(zip(states, writers, planners, strict=True)):
        planner.set_up_planner(state, is_coordinator=rank == 0)
        writer.set_up_storage_writer(rank == 0, rank=rank, use_collectives=True)
        plans.append(writer.prepare_local_plan(planner.create_local_plan()))
    plans, metadata = planners[0].create_global_plan(plans)
    plans = writers[0].prepare_global_plan(plans)
    results = [w.write_data(p.finish_plan(plan), p).value() for w, p, plan in zip(writers, planners, plans, strict=True)]
    writers[0].finish(metadata, results)


def load_on_all(path: Path, states: Sequence[State]) -> None:
    for rank, state in enumerate(states):
        reader, planner = StorageReader(path), DefaultLoadPlanner()
        metadata = reader.read_metadata()
        planner.set_up_planner(state, metadata, rank == 0)
        reader.set_up_storage_reader(metadata, rank == 0, rank=rank)
        reader.read_data(planner.create_local_plan(), planner)


def local(tensor: torch.Tensor) -> torch.Tensor:
    assert isinstance(tensor, DTensor)
    return tensor.to_local()


@pytest.mark.parametrize(("before", "after"), list(itertools.product(LAYOUTS, LAYOUTS)))
def test_a_state_saved_under_one_layout_loads_under_another(tmp_path: Path, before: str, after: str) -> None:
    save_on_all(tmp_path, [{**view, "plain": torch.tensor(4.0), "step": 3} for view in views(FULL, *LAYOUTS[before])])
    blank = {name: torch.zeros_like(tensor) for name, tensor in FULL.items()}
    found: list[State] = [{**view, "plain": torch.tensor(0.0), "step": 0} for view in views(blank, *LAYOUTS[after])]
    load_on_all(tmp_path, found)
    for state, want in zip(found, views(FULL, *LAYOUTS[after]), strict=True):
        assert all(torch.equal(local(state[name]), local(want[name])) for name in FULL)
        assert (state["plain"].item(), state["step"]) == (4.0, 3)


def test_replicated_data_is_written_once(tmp_path: Path) -> None:
    save_on_all(tmp_path, list(views(FULL, *LAYOUTS["hsdp 2x2"])))
    assert sum(path.stat().st_size for path in tmp_path.glob("*.bin")) == sum(t.numel() * t.element_size() for t in FULL.values())


def test_plans_cached_by_torch_are_reused_by_the_next_save(tmp_path: Path) -> None:
    for step in (1.0, 2.0):
        planner = DefaultSavePlanner(enable_plan_caching=True)
        save(tmp_path, {"w": torch.full((3,), step)}, planner)
    assert load(tmp_path, {"w": torch.zeros(3)})["w"].tolist() == [2.0] * 3


def test_a_large_tensor_is_split_so_that_few_rows_read_few_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headway.runner.checkpoint.interop.part.CHUNK_BYTES", 64)
    full = torch.arange(60.0).reshape(20, 3)
    save(tmp_path, {"w": full})
    (data,) = tmp_path.glob("data-*.bin")
    raw = bytearray(data.read_bytes())
    raw[-1] ^= 1
    data.write_bytes(raw)
    first, _, _, last = views({"w": torch.zeros(20, 3)}, (4,), [Shard(0)])
    load_on_all(tmp_path, [first])
    assert torch.equal(local(first["w"]), full[:5])
    with pytest.raises(RefusedError, match=r"tensor `w` at \[15, 0\]\+\[5, 3\]"):
        load_on_all(tmp_path, [last])


# --- damage -----------------------------------------------------------------------------------------------------------

TINY: State = {"w": torch.arange(24.0).reshape(4, 6), "b": torch.ones(3, dtype=torch.bfloat16), "step": 5, "odd": torch.float16}


def blank() -> State:
    return {"w": torch.zeros(4, 6), "b": torch.zeros(3, dtype=torch.bfloat16), "step": 0, "odd": None}


@pytest.mark.slow
def test_every_flipped_bit_and_truncation_is_refused_by_its_files_name(tmp_path: Path) -> None:
    save(tmp_path, TINY)
    rng = random.Random(7)
    for path in sorted(tmp_path.iterdir()):
        good = path.read_bytes()
        for at in rng.sample(range(len(good)), min(len(good), 60)):
            path.write_bytes(good[:at] + bytes([good[at] ^ (1 << rng.randrange(8))]) + good[at + 1 :])
            assert refused(tmp_path, blank()).name == path.name, at
        for length in (0, len(good) // 2, len(good) - 1):
            path.write_bytes(good[:length])
            assert refused(tmp_path, blank()).name == path.name, length
        path.unlink()
        assert refused(tmp_path, blank()).name == path.name
        path.write_bytes(good)
    assert load(tmp_path, blank())["step"] == 5


def test_files_of_another_save_and_swapped_files_are_refused(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    save(one, TINY)
    save(two, {**TINY, "w": TINY["w"] + 1, "step": 6})
    for pattern in ("part-*.json", "data-*.bin"):
        (mine,), (other,) = one.glob(pattern), two.glob(pattern)
        good = mine.read_bytes()
        shutil.copy(other, mine)
        assert pattern[:4] in refused(one, blank()).name
        mine.write_bytes(good)
    shutil.copy(two / ROOT, one / ROOT)
    assert refused(one, blank()).reason == "No such file or directory"


def test_a_part_of_the_previous_save_is_refused(tmp_path: Path) -> None:
    save(tmp_path, TINY)
    (part,) = tmp_path.glob("part-*.json")
    old = part.read_bytes()
    save(tmp_path, {**TINY, "step": 6})
    (part,) = tmp_path.glob("part-*.json")
    part.write_bytes(old)
    assert re.search("xxh3_128 is .* was committed", refused(tmp_path, blank()).reason)


def test_a_missing_checkpoint_and_plain_dcp_are_named_with_a_hint(tmp_path: Path) -> None:
    assert "there is no such directory" in str(refused(tmp_path / "nowhere", blank()))
    assert "expected the output of headway's StorageWriter" in str(refused(tmp_path, blank()))
    dcp_save({"step": 1}, storage_writer=FileSystemWriter(tmp_path), no_dist=True)
    assert "`headway checkpoint import dcp`" in str(refused(tmp_path, blank()))


def test_an_error_of_one_rank_reaches_the_others_unchanged(tmp_path: Path) -> None:
    """torch pickles a rank's error to send it to the others."""
    error = refused(tmp_path / "nowhere", blank())
    found = pickle.loads(pickle.dumps(error))
    assert isinstance(found, RefusedError)
    assert (str(found), found.checkpoint, found.name, found.unread) == (str(error), error.checkpoint, error.name, error.unread)


def test_refused_metadata_raises_wherever_it_is_used(tmp_path: Path) -> None:
    with pytest.raises(RefusedError):
        _ = StorageReader(tmp_path).read_metadata().state_dict_metadata


def test_a_save_without_collectives_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="use_collectives=False"):
        StorageWriter(tmp_path).set_up_storage_writer(True, rank=0, use_collectives=False)


# --- replacing --------------------------------------------------------------------------------------------------------


def test_a_save_replaces_the_previous_one_and_touches_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "data-of-mine.bin").write_text("mine too")
    for step in (1, 2):
        save(tmp_path, {"w": torch.ones(2), "step": step})
    assert load(tmp_path, {"w": torch.zeros(2), "step": 0})["step"] == 2
    kinds = sorted(re.sub(r"-\d+-[0-9a-f]{16}", "", path.name) for path in tmp_path.iterdir())
    assert kinds == [ROOT, "data-of-mine.bin", "data.bin", "notes.txt", "part.json"]


@pytest.mark.parametrize("call", ["write_data", "finish"])
def test_a_failed_save_keeps_the_previous_one_and_is_cleaned_up_later(
    tmp_path: Path, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path, {"w": torch.ones(2), "step": 1})
    original = getattr(StorageWriter, call)

    def fails(*arguments: Any, **named: Any) -> None:
        if call == "write_data":
            original(*arguments, **named)
        raise OSError(28, "no space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(StorageWriter, call, fails)
        assert isinstance(failure(lambda: save(tmp_path, {"w": torch.zeros(2), "step": 2})), OSError)
    assert load(tmp_path, {"w": torch.zeros(2), "step": 0})["step"] == 1
    assert len(list(tmp_path.iterdir())) == 5
    save(tmp_path, {"w": torch.zeros(2), "step": 3})
    assert len(list(tmp_path.iterdir())) == 3


# --- plain DCP --------------------------------------------------------------------------------------------------------


def test_a_plain_checkpoint_is_read_as_by_torch(tmp_path: Path) -> None:
    model, optimizer = trained()
    state = dict(zip(("model", "optimizer"), get_state_dict(model, optimizer), strict=True))
    dcp_save({**state, "step": 4}, storage_writer=FileSystemWriter(tmp_path), no_dist=True)
    archive = read_dcp(tmp_path)
    for name, parameter in model.named_parameters():
        assert torch.equal(archive.tensor(f"model.{name}"), parameter)
    assert archive.objects()["step"] == 4
    assert archive.objects()["optimizer"]["param_groups"][0]["lr"] == 0.1


class Bomb:
    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return (Path.touch, (self.mark,))


def test_a_pickle_that_names_code_is_refused_by_name_and_runs_nothing(tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    dcp_save({"w": torch.ones(2)}, storage_writer=FileSystemWriter(tmp_path), no_dist=True)
    (tmp_path / ".metadata").write_bytes(pickle.dumps(Bomb(mark)))
    with pytest.raises(
        PlainDcpError, match=r"\.metadata: it refers to (builtins\.getattr|pathlib\.Path\.touch), .*none of its code was run"
    ):
        read_dcp(tmp_path)
    assert not mark.exists()


def test_a_value_that_names_code_is_refused_by_file_and_name(tmp_path: Path) -> None:
    dcp_save({"odd": Strange(), "w": torch.ones(2)}, storage_writer=FileSystemWriter(tmp_path), no_dist=True)
    archive = read_dcp(tmp_path)
    assert archive.tensor("w").tolist() == [1.0, 1.0]
    with pytest.raises(PlainDcpError, match=r"__0_0\.distcp: `odd`: "):
        archive.objects()


def test_metadata_of_another_kind_is_refused(tmp_path: Path) -> None:
    (tmp_path / ".metadata").write_bytes(pickle.dumps({"state": 1}))
    with pytest.raises(PlainDcpError, match="holds a dict; expected the metadata"):
        read_dcp(tmp_path)
    (tmp_path / ".metadata").write_bytes(pickle.dumps(MetadataIndex("w"))[:-9])
    with pytest.raises(PlainDcpError, match=r"\.metadata: "):
        read_dcp(tmp_path)


# --- processes --------------------------------------------------------------------------------------------------------


def sharded_by_dcp(root: Path, world_size: int, tp: int, way: str) -> Any:
    """Return what the ranks hold after the save or load."""
    run_world("tests.support.ranks.sharded_by_dcp", world_size, root, way, str(tp))
    return json.loads((root / f"{way}.json").read_text())


@pytest.mark.slow
def test_fsdp_with_tensor_parallelism_saved_by_torch_loads_at_another_size(tmp_path: Path) -> None:
    assert sharded_by_dcp(tmp_path, 4, 2, "save") == sharded_by_dcp(tmp_path, 2, 1, "load")
