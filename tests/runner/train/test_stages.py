"""Tests the assignment of layers to pipeline stages, and of stages to ranks."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from headway.runner.contract import Execution, Mesh, Model
from headway.runner.train.model import ModelStage, Transformer
from headway.runner.train.parallel import own_stages, stage_sizes, stages_of

SMALL = Model(vocab_size=19, layers=5, hidden=16, heads=4, kv_heads=2, ffn_hidden=24)


@pytest.mark.parametrize(
    ("layers", "stages", "sizes"),
    [
        (5, 1, [5]),
        (8, 4, [2, 2, 2, 2]),
        (9, 4, [2, 3, 2, 2]),
        (30, 4, [7, 8, 8, 7]),
        (126, 128, [0, *[1] * 126, 0]),
        (2, 4, [0, 1, 1, 0]),
        (3, 2, [2, 1]),
    ],
)
def test_layers_are_spread_evenly_with_fewer_at_the_ends(layers: int, stages: int, sizes: list[int]) -> None:
    assert stage_sizes(layers, stages) == sizes


def rank_of(at: int, pp: int) -> Any:
    """A rank of a pipeline, without a process group."""
    return SimpleNamespace(degrees=Mesh(pp=pp), at={"pp": at})


@pytest.mark.parametrize(
    ("schedule", "chunks", "stages"),
    [
        ("1F1B", 1, [(0,), (1,), (2,)]),
        ("Interleaved1F1B", 2, [(0, 3), (1, 4), (2, 5)]),
        ("ZBVZeroBubble", 2, [(0, 5), (1, 4), (2, 3)]),
        ("DualPipeV", 2, [(0, 5), (1, 4), (2, 3)]),
    ],
)
def test_stages_are_looped_or_v_shaped_over_the_ranks(schedule: str, chunks: int, stages: list[tuple[int, ...]]) -> None:
    execution = Execution(schedule=schedule, virtual_stages=chunks)
    assert [stages_of(execution, rank_of(at, 3)) for at in range(3)] == stages


def test_the_stages_of_all_ranks_form_the_whole_model_with_its_names() -> None:
    execution = Execution(schedule="ZBVZeroBubble", virtual_stages=2)
    with torch.device("meta"):
        whole = {name: parameter.shape for name, parameter in Transformer(SMALL).named_parameters()}
        found = [
            (name, parameter.shape)
            for at in range(4)
            for stage in own_stages(SMALL.layers, execution, rank_of(at, 4))
            for name, parameter in Transformer(SMALL, execution, stage).named_parameters()
        ]
    assert len(found) == len(whole)
    assert dict(found) == whole


def test_a_stage_without_layers_passes_its_input_on() -> None:
    stage = Transformer(SMALL, stage=ModelStage(range(2, 2), is_first=False, is_last=False))
    hidden = torch.randn(1, 4, 16)
    assert torch.equal(stage(hidden), hidden)
