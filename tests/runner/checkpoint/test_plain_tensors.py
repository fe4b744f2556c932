"""Tests plain tensors: saved once where all ranks hold the same, and by each rank otherwise; never a mix, never another rank's."""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.runner.checkpoint.alike import WORDS, fingerprints, weighed_sums
from headway.runner.checkpoint.chain import Chain, newest_base
from headway.runner.checkpoint.layout import Planned, Planner, RankState
from headway.runner.checkpoint.load import Loader
from headway.runner.checkpoint.location import CheckpointLocation
from headway.runner.checkpoint.ranks import PeerError, Ranks
from headway.runner.checkpoint.read import Reader
from headway.runner.checkpoint.sources import DirectorySource
from headway.runner.checkpoint.stores.posix import PosixStore
from headway.runner.contract import Mesh
from tests.support.layouts import on_all_ranks
from tests.support.saves import Saved, save
from tests.support.worlds import run_world

T = TypeVar("T")
Tensors = dict[str, torch.Tensor]
# Where all ranks hold the same, SMALL is written by each rank, MIDDLE by one, and LARGE in shares by all.
SMALL, MIDDLE, LARGE = 100, 2048, 600_000


def fine(results: list[T | Exception]) -> list[T]:
    for result in results:
        if isinstance(result, Exception):
            raise result
    return [result for result in results if not isinstance(result, Exception)]


# --- what is saved and loaded -----------------------------------------------------------------------------------------


def saved_by(root: Path, held: list[Tensors]) -> Reader:
    """A checkpoint of ranks that hold these values."""
    for name in ("chain", "checkpoints"):
        (root / name).mkdir()
    chain = Chain(PosixStore(root / "chain"), "run")
    chain.read()
    place = CheckpointLocation(
        root / "checkpoints", "run", chain.claim(None, 0, "tester").generation, 0, 1, Mesh(dp_shard=len(held))
    )
    results = on_all_ranks(
        len(held),
        lambda ranks: save(place, Chain(PosixStore(root / "chain"), "run"), ranks, 1, RankState(held[ranks.rank], {})),
    )
    assert all(isinstance(result, Saved) for result in results), results
    base = newest_base(chain.read())
    assert base is not None
    return Reader(DirectorySource(place.root / base.checkpoint.directory), "run", base)


def loaded_by(reader: Reader, wanted: list[Tensors]) -> list[Tensors]:
    targets = [{name: torch.zeros_like(tensor) for name, tensor in own.items()} for own in wanted]

    def load(ranks: Ranks) -> None:
        with torch.no_grad():
            Loader(reader, targets[ranks.rank], ranks).load()

    fine(on_all_ranks(len(wanted), load))
    return targets


def same(one: list[Tensors], other: list[Tensors]) -> bool:
    return all(torch.equal(a[name], b[name]) for a, b in zip(one, other, strict=True) for name in a)


kinds = st.lists(
    st.tuples(st.sampled_from([SMALL, MIDDLE, LARGE]), st.lists(st.integers(0, 2), min_size=4, max_size=4)), max_size=4
)


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(kinds, st.integers(1, 4))
def test_each_rank_restores_its_own_state_whatever_others_hold(kinds: list[tuple[int, list[int]]], world_size: int) -> None:
    held = [{str(at): torch.arange(size) + values[rank] for at, (size, values) in enumerate(kinds)} for rank in range(world_size)]
    with tempfile.TemporaryDirectory() as root:
        assert same(loaded_by(saved_by(Path(root), held), held), held)


def test_identical_tensors_are_stored_once(tmp_path: Path) -> None:
    held = [{"a": torch.arange(LARGE), "b": torch.arange(MIDDLE)} for _ in range(3)]
    reader = saved_by(tmp_path, held)
    stored = [chunk.length for part in reader.parts() for entry in part.tensors.values() for chunk in entry.chunks]
    assert sum(stored) == 8 * (LARGE + MIDDLE)
    assert same(loaded_by(reader, held), held)


def test_each_ranks_generator_statistics_and_queue_stay_with_it(tmp_path: Path) -> None:
    held = [
        {
            "generator": torch.Generator().manual_seed(100 + rank).get_state(),
            "statistics": torch.full((2048,), float(rank)),
            "queue": torch.full((8, 65536), float(rank)),
            "shared": torch.arange(float(LARGE)),
        }
        for rank in range(2)
    ]
    reader = saved_by(tmp_path, held)
    assert same(loaded_by(reader, held), held)
    stored = [chunk.length for part in reader.parts() for chunk in part.tensors["shared"].chunks]
    assert sum(stored) == 4 * LARGE


def test_ranks_of_which_some_hold_the_same_restore_their_own(tmp_path: Path) -> None:
    held = [{"queue": torch.full((LARGE,), rank // 2)} for rank in range(4)]
    assert same(loaded_by(saved_by(tmp_path, held), held), held)


def test_two_kinds_with_one_name_are_two_tensors(tmp_path: Path) -> None:
    held = [{"x": torch.arange(LARGE, dtype=torch.int64)}, {"x": torch.arange(LARGE, dtype=torch.float64)}]
    assert same(loaded_by(saved_by(tmp_path, held), held), held)


@pytest.mark.parametrize(("size", "differs"), [(SMALL, True), (MIDDLE, True), (LARGE, True), (LARGE, False)])
@pytest.mark.parametrize("world_size", [1, 2, 5])
def test_another_world_size_restores_by_rank_number_and_reports_it(
    tmp_path: Path, size: int, differs: bool, world_size: int, capsys: pytest.CaptureFixture[str]
) -> None:
    held = [{"queue": torch.full((size,), rank * differs), "w": torch.arange(LARGE)} for rank in range(3)]
    expected = [held[rank if rank < len(held) else 0] for rank in range(world_size)]
    assert same(loaded_by(saved_by(tmp_path, held), expected), expected)
    said = capsys.readouterr().err
    assert ("`queue` differed between the 3 ranks that saved it: each of the" in said) == differs


def test_a_tensor_held_by_some_ranks_is_restored_only_to_them(tmp_path: Path) -> None:
    held: list[Tensors] = [{"a": torch.arange(LARGE)}, {"a": torch.arange(LARGE), "late": torch.full((MIDDLE,), 1)}]
    assert same(loaded_by(saved_by(tmp_path, held), held), held)


# --- planning ---------------------------------------------------------------------------------------------------------


def planned(world_size: int, *saves: Callable[[int], Tensors]) -> list[list[Planned]]:
    """The plan of each save, by rank."""

    def work(ranks: Ranks) -> list[Planned]:
        planner = Planner(ranks)
        return [planner.plan(state(ranks.rank), whole=False) for state in saves]

    return fine(on_all_ranks(world_size, work))


def test_a_tensor_that_starts_to_differ_is_stored_per_rank_from_then_on() -> None:
    def alike(_: int) -> Tensors:
        return {"statistics": torch.zeros(MIDDLE), "w": torch.zeros(MIDDLE)}

    def apart(rank: int) -> Tensors:
        return {"statistics": torch.full((MIDDLE,), float(rank)), "w": torch.ones(MIDDLE)}

    for rank, plans in enumerate(planned(2, alike, alike, apart, apart, alike)):
        assert [plan.sharers["statistics"] for plan in plans] == [(0, 1), (0, 1), (rank,), (rank,), (rank,)]
        assert {plan.sharers["w"] for plan in plans} == {(0, 1)}
        assert plans[0] is plans[1]
        assert plans[2] is plans[3] is plans[4]


@pytest.mark.parametrize("size", [MIDDLE, LARGE])
def test_one_different_bit_on_one_rank_is_enough(size: int) -> None:
    def flipped(rank: int) -> Tensors:
        found = torch.zeros(size, dtype=torch.int32)
        found[-1] = int(rank == 1)
        return {"a": found}

    first, second, third = planned(3, lambda _: {"a": torch.zeros(size, dtype=torch.int32)}, flipped)
    assert [plans[1].sharers["a"] for plans in (first, second, third)] == [(0,), (1,), (2,)]


def test_a_tensor_that_appears_or_vanishes_on_one_rank_is_planned_by_all() -> None:
    def before(_: int) -> Tensors:
        return {"a": torch.zeros(MIDDLE)}

    def late(rank: int) -> Tensors:
        return before(rank) | ({"late": torch.zeros(MIDDLE)} if rank == 1 else {})

    def later(rank: int) -> Tensors:
        return before(rank) | {"late": torch.zeros(MIDDLE)}

    first, second = planned(2, before, late, later, late, before)
    assert [sorted(plan.layout.tensors) for plan in first] == [["a"], ["a"], ["a", "late"], ["a"], ["a"]]
    assert [plan.sharers.get("late") for plan in second] == [None, (1,), (1,), (1,), None]


def test_a_change_on_another_rank_keeps_the_buffers_here() -> None:
    def toggling(rank: int, on: bool) -> Tensors:
        return {"a": torch.zeros(MIDDLE)} | ({"b": torch.zeros(MIDDLE)} if rank == 1 and on else {})

    first, second = planned(2, lambda rank: toggling(rank, False), lambda rank: toggling(rank, True))
    assert first[0] is first[1]
    assert second[0] is not second[1]


def test_a_rank_that_cannot_describe_its_state_fails_only_this_save() -> None:
    def work(ranks: Ranks) -> list[str]:
        planner, said = Planner(ranks), []
        bad = torch.empty(MIDDLE, device="meta") if ranks.rank == 1 else torch.zeros(MIDDLE)
        planner.plan({"a": torch.zeros(MIDDLE)}, whole=False)
        for tensors in ({"a": bad}, {"a": torch.zeros(MIDDLE)}):
            try:
                planner.plan(tensors, whole=False)
            except (PeerError, NotImplementedError) as error:
                said.append(type(error).__name__)
        return said

    assert fine(on_all_ranks(2, work)) == [["PeerError"], ["NotImplementedError"]]


def test_a_rank_with_nothing_to_save_is_not_awaited() -> None:
    def work(ranks: Ranks) -> str:
        planner = Planner(ranks)
        planner.plan({"a": torch.zeros(MIDDLE)}, whole=False)
        if ranks.rank == 1:
            planner.absent()
            return ""
        with pytest.raises(PeerError) as caught:
            planner.plan({"a": torch.zeros(MIDDLE)}, whole=False)
        return str(caught.value)

    assert fine(on_all_ranks(2, work))[0] == "rank 1 could not save it"


# --- fingerprints -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(st.data())
def test_weighted_sums_on_a_device_detect_any_change(data: st.DataObject) -> None:
    size = data.draw(st.sampled_from([1, 3, 4, 7, 1000]))
    raw = torch.zeros(size, dtype=torch.uint8)
    changed = raw.clone()
    for place in data.draw(st.lists(st.integers(0, size - 1), min_size=1, max_size=4, unique=True)):
        changed[place] = data.draw(st.integers(1, 255))
    assert not torch.equal(weighed_sums(raw), weighed_sums(changed))
    assert torch.equal(weighed_sums(changed), weighed_sums(changed.clone()))


@pytest.mark.slow
def test_every_section_of_a_long_tensor_counts() -> None:
    raw = torch.zeros(4 * WORDS + 5, dtype=torch.uint8)
    changed = raw.clone()
    changed[-1] = 1
    assert len(weighed_sums(raw)) == 4
    assert (weighed_sums(raw) == weighed_sums(changed)).tolist() == [True, True, False, False]


def test_weighted_sums_distinguish_order_and_sign() -> None:
    ones = torch.tensor([1.0, -1.0, 2.0, -2.0])
    variants = [ones, -ones, ones.flip(0), ones * torch.tensor([-1.0, -1.0, 1.0, 1.0]), ones[[2, 1, 0, 3]]]
    assert len({tuple(weighed_sums(each).tolist()) for each in variants}) == len(variants)


@pytest.mark.parametrize("dtype", [torch.bool, torch.int8, torch.bfloat16, torch.float64, torch.complex64])
def test_weighted_sums_accept_any_dtype_and_any_view(dtype: torch.dtype) -> None:
    whole = torch.arange(30).reshape(5, 6).to(dtype)
    for view in (whole, whole.t(), whole[1:, 1:], whole[0, 0]):
        assert torch.equal(weighed_sums(view), weighed_sums(view.clone()))


def test_a_conjugated_view_is_fingerprinted_by_its_values() -> None:
    one = torch.tensor([1 + 2j, 3 - 1j])
    assert fingerprints({"a": one.conj()}) == fingerprints({"a": one.conj().resolve_conj()}) != fingerprints({"a": one})


# --- ranks as processes -----------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("tiers", ["shared", "memory,shared"])
def test_a_state_that_differs_by_rank_is_restored_to_each_rank(tmp_path: Path, tiers: str) -> None:
    run_world("tests.support.ranks.uneven", 2, "own", tmp_path, tiers)


@pytest.mark.slow
def test_a_late_first_gradient_on_one_rank_delays_no_save(tmp_path: Path) -> None:
    run_world("tests.support.ranks.uneven", 2, "late", tmp_path, "shared")


@pytest.mark.slow
def test_a_rank_that_skips_a_save_is_named_within_the_timeout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADWAY_SAVE_PATIENCE_S", "3")
    run_world("tests.support.ranks.uneven", 3, "skip", tmp_path, "shared")


@pytest.mark.slow
def test_a_rank_whose_state_cannot_be_copied_fails_only_that_save(tmp_path: Path) -> None:
    run_world("tests.support.ranks.uneven", 2, "broken", tmp_path, "shared")
