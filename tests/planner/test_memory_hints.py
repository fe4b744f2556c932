"""Proposals for a job that does not fit: true of the ledger, possible for the framework, with the same total work."""

import pytest
from msgspec.structs import replace

from headway.jobspec.catalog.gpus import gpus
from headway.jobspec.catalog.models import preset
from headway.jobspec.resolve.model import ModelSizes, resolve_model
from headway.planner.memory.hints import hints
from headway.planner.memory.ledger import peak
from headway.planner.training import Degrees, Network, Training


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> ModelSizes:
    return resolve_model(preset("llama-3.1-8b").model, tmp_path_factory.mktemp("models"))


def eight(model: ModelSizes, **changes: object) -> Training:
    """Return a training on eight H100 of one node with torchtitan."""
    whole = Training(
        model=model,
        gpu=gpus()["H100-SXM-80"],
        network=Network(8, 8, 450e9, 50e9, 8, "infiniband"),
        degrees=Degrees(dp_shard=8),
        micro=2,
        accumulation=2,
        sequence=8192,
        framework="torchtitan",
    )
    return replace(whole, **changes)


def freed(before: Training, after: Training) -> str:
    return f"{(peak(before).needed - peak(after).needed) / (1 << 30):.0f} GiB"


def test_job_that_fits_gets_no_hints(llama: ModelSizes) -> None:
    step = eight(llama, micro=1, recompute="full")
    assert peak(step).verdict == "fits"
    assert hints(step, peak(step)) == ()


def test_sufficient_changes_are_proposed_with_the_memory_they_free(llama: ModelSizes) -> None:
    step = eight(llama, sequence=2048, micro=6)
    assert peak(step).verdict == "does not fit"
    narrow = replace(step, micro=3, accumulation=4)
    again = replace(step, recompute="selective", recomputed_parts=("matmuls",))
    split = replace(step, degrees=Degrees(dp_shard=4, tp=2, sequence_parallel=True), accumulation=4)
    assert [peak(changed).verdict for changed in (narrow, again, split)] == ["fits", "fits", "fits"]
    assert hints(step, peak(step)) == (
        f"`batch.micro: 3` frees {freed(step, narrow)}: fits",
        f"`recompute: selective` frees {freed(step, again)}: fits",
        f"`layout.tp: 2` with `dp_shard: 4` frees {freed(step, split)}: fits",
    )


def test_two_changes_are_proposed_together_if_none_is_sufficient(llama: ModelSizes) -> None:
    step = eight(llama, micro=4)
    proposals = hints(step, peak(step))
    assert proposals
    assert all(" and " in hint and hint.endswith(": fits") for hint in proposals)


def test_no_layout_is_proposed_without_tensor_parallelism(llama: ModelSizes) -> None:
    step = eight(llama, framework="composer", micro=8)
    proposals = hints(step, peak(step))
    assert proposals
    assert not any("layout." in hint for hint in proposals)


def test_changes_that_the_caller_rejects_are_not_proposed(llama: ModelSizes) -> None:
    step = eight(llama, sequence=2048, micro=6)
    narrow = replace(step, micro=3, accumulation=4)
    proposals = hints(step, peak(step), lambda changed: changed.recompute == "none" and changed.degrees == step.degrees)
    assert proposals == (f"`batch.micro: 3` frees {freed(step, narrow)}: fits",)


def test_largest_saving_is_proposed_if_no_change_is_sufficient(llama: ModelSizes) -> None:
    step = eight(llama, degrees=Degrees(sharding="none"), framework="composer")
    proposals = hints(step, peak(step))
    assert [hint.split(" free ")[0] for hint in proposals[:1]] == ["`batch.micro: 1` and `recompute: full`"]
    assert all(hint.endswith(": still does not fit") for hint in proposals)
