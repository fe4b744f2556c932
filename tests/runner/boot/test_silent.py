"""Tests silently wrong gradients of one rank: they are found by recomputing the step on other ranks, and never applied."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.worlds import run_world

pytestmark = pytest.mark.slow

Records = dict[str, list[dict[str, Any]]]


def records(folder: Path, world_size: int, *names: str) -> Records:
    """The records of all ranks, by case."""
    (folder / "text").write_text("the quick brown fox jumps over the lazy dog; " * 50)
    run_world("tests.support.ranks.silent", world_size, folder, str(world_size), *names)
    return {name: [json.loads((folder / name / f"rank-{rank}.json").read_text()) for rank in range(world_size)] for name in names}


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Records:
    names = [
        "unchecked",
        "sound",
        "first",
        "other",
        "lasting",
        "nan",
        "batch",
        "spike",
        "burst",
        "late",
        "once each",
        "due",
        "broken",
    ]
    return records(tmp_path_factory.mktemp("three"), 3, *names)


def test_a_step_recomputed_on_other_ranks_leaves_the_run_unchanged(three: Records) -> None:
    for name in ("sound", "late"):
        assert [(rank["error"], rank["step"], rank["sound"]) for rank in three[name]] == [(None, 6, 6)] * 3
        assert (three[name][0]["hashes"], three[name][0]["told"]) == (three["unchecked"][0]["hashes"], [])
    assert three["sound"][0]["tries"] == 2, "the last of the six steps is due"


def test_the_gradient_of_every_weight_is_compared(three: Records) -> None:
    weights = [f"{part}.weight" for part in ("embedding", "norm", "output")]
    for layer in ("attention.wk", "attention.wo", "attention.wq", "attention.wv", "attention_norm", "ffn_norm"):
        weights.append(f"layers.0.{layer}.weight")
    weights += [f"layers.0.feed_forward.w{number}.weight" for number in (1, 2, 3)]
    assert three["sound"][1]["traced"] == sorted([*weights, "loss"])
    assert three["unchecked"][1]["traced"] == []


@pytest.mark.parametrize(("name", "rank"), [("first", 1), ("other", 0)])
def test_a_rank_with_a_transient_error_is_named_and_leaves_no_trace(three: Records, name: str, rank: int) -> None:
    assert three[name][0]["hashes"] == three["unchecked"][0]["hashes"]
    note, *others = three[name][0]["told"]
    assert (note["kind"], note["step"], note["ranks"]) == ("transient", 4, [rank])
    assert note["found"] == f"rank {rank} computed what no other rank did"
    assert [other["kind"] for other in others] == []


def test_a_persistent_error_ends_the_generation_before_the_step_is_applied(three: Records) -> None:
    text = "rank 1 computes what no other rank does, again and again: step 4 was not applied; steps up to 2 are verified"
    assert [(rank["error"], rank["step"]) for rank in three["lasting"]] == [(f"CorruptionError: {text}", 3)] * 3
    said = {"what": "corrupted", "ranks": [1], "found": text, "sound_step": 2}
    assert [rank["told"] for rank in three["lasting"]] == [[{**said, "rank": rank}] for rank in range(3)]


def test_nan_is_the_ranks_fault_if_others_are_finite_else_the_batchs(three: Records) -> None:
    assert all(rank["error"].startswith("CorruptionError: rank 1 computes what no other rank does") for rank in three["nan"])
    assert all(rank["error"].startswith("NonFiniteError: loss nan on rank 0, nan on rank 1") for rank in three["batch"])
    assert {rank["step"] for rank in three["nan"] + three["batch"]} == {2}


def test_a_gradient_norm_unusual_on_all_ranks_is_applied_and_reported(three: Records) -> None:
    (note, *_) = three["spike"][0]["told"]
    assert (note["kind"], note["step"]) == ("spike", 1)
    assert "times the usual 1e-06" in note["found"]
    assert [rank["error"] for rank in three["spike"]] == [None] * 3
    assert three["spike"][0]["hashes"] == three["unchecked"][0]["hashes"]


def test_a_gradient_norm_that_is_unusual_once_is_not_applied(three: Records) -> None:
    (note,) = three["burst"][0]["told"]
    assert (note["kind"], note["step"]) == ("transient", 4)
    assert note["found"].startswith("gradient norm ")
    assert three["burst"][0]["hashes"] == three["unchecked"][0]["hashes"]


def test_ranks_with_one_transient_error_each_are_not_excluded(three: Records) -> None:
    assert (three["once each"][0]["error"], three["once each"][0]["tries"]) == (None, 2)
    assert three["once each"][0]["hashes"] == three["unchecked"][0]["hashes"]
    assert [note["ranks"] for note in three["once each"][0]["told"]] == [[1]]


def test_a_finding_in_a_checked_step_is_reported_once(three: Records) -> None:
    (note,) = three["due"][0]["told"]
    assert (note["kind"], note["ranks"]) == ("transient", [1])
    assert three["due"][0]["hashes"] == three["unchecked"][0]["hashes"]


def test_without_replay_the_onset_of_an_error_is_reported_as_unknown(three: Records) -> None:
    (told,) = three["broken"][0]["told"]
    assert (told["ranks"], told["sound_step"], three["broken"][0]["step"]) == ([1], 2, 2)
    assert told["found"].endswith("step 3 was not applied; earlier steps were not recomputed")


def test_two_ranks_that_repeat_different_results_are_both_suspected(tmp_path: Path) -> None:
    found = records(tmp_path, 2, "sound", "first", "lasting")
    assert found["first"][0]["hashes"] == found["sound"][0]["hashes"]
    assert found["first"][0]["told"][0]["ranks"] == [1]
    (told,) = found["lasting"][0]["told"]
    assert (told["ranks"], told["sound_step"]) == ([0, 1], 2)
    assert "the wrong one cannot be identified" in told["found"]


def test_a_single_rank_recomputes_alone(tmp_path: Path) -> None:
    found = records(tmp_path, 1, "unchecked", "sound")
    assert found["sound"][0]["hashes"] == found["unchecked"][0]["hashes"]
    assert (found["sound"][0]["told"], found["sound"][0]["sound"]) == ([], 6)
