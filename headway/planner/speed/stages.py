"""Assigns blocks, embedding and output layer to pipeline stages, and counts the parameters of each."""

from functools import lru_cache

from msgspec import Struct

from headway.jobspec.resolve.model import ModelSizes
from headway.planner.speed.speed import Profile
from headway.planner.training import Training


class Stage(Struct, frozen=True):
    """The content of one pipeline stage: blocks of each kind, and whether the embedding or the output layer are with them."""

    dense: int
    experts: int
    first: bool
    last: bool


def stages_of(training: Training, profile: Profile) -> tuple[Stage, ...]:
    """Return the stages in order. None has more blocks than it must; what the ends count as decides where they go that
    do not divide."""
    experts = tuple(training.model.has_experts(layer) for layer in range(training.model.layers))
    return _stages(experts, training.degrees.pp * training.degrees.chunks, _ends(training.model, profile.partition))


def _ends(model: ModelSizes, partition: str) -> tuple[float, float]:
    """Return what the embedding and the output layer count as, in blocks: next to nothing where stages are made of
    equal `blocks`, one and two (the last norm is one) where of equal `entries`, what their parameters make where of
    equal `parameters`."""
    if partition == "entries":
        return 1.0, 2.0
    if partition == "parameters":
        return 0.1, model.vocab_size * model.hidden / (
            model.attention_parameters + (model.mlp_parameters or model.moe_parameters)
        )
    return 0.1, 0.5


@lru_cache(maxsize=1024)
def _stages(experts: tuple[bool, ...], count: int, ends: tuple[float, float]) -> tuple[Stage, ...]:
    sizes = _sizes(len(experts), count, ends)
    bounds = [sum(sizes[:stage]) for stage in range(count + 1)]
    return tuple(
        Stage(
            dense=size - sum(experts[start : start + size]),
            experts=sum(experts[start : start + size]),
            first=stage == 0,
            last=stage == count - 1,
        )
        for stage, (size, start) in enumerate(zip(sizes, bounds, strict=False))
    )


def _sizes(layers: int, count: int, ends: tuple[float, float]) -> list[int]:
    """Return blocks of each stage: each block goes to the stage that has least."""
    sizes = [0] * count
    loads = [ends[0] * (stage == 0) + ends[1] * (stage == count - 1) for stage in range(count)]
    for _ in range(layers):
        least = min(range(count), key=loads.__getitem__)
        sizes[least] += 1
        loads[least] += 1
    return sizes


@lru_cache(maxsize=4096)
def held_parameters(training: Training, stage: Stage) -> tuple[float, float]:
    """Return parameters of one rank before data-parallel ranks split them: all but experts, and experts."""
    model, degrees = training.model, training.degrees
    blocks = stage.dense + stage.experts
    dense = blocks * (model.attention_parameters + 2 * model.norm_parameters) + stage.dense * model.mlp_parameters
    routed = 0 if model.experts is None else stage.experts * model.experts.count * model.expert_parameters
    dense += stage.experts * model.moe_parameters - routed
    ends = (model.embedding_parameters if stage.first else 0) + (model.vocab_size * model.hidden if stage.last else 0)
    if model.tie_embeddings and stage.first and stage.last:
        ends = model.embedding_parameters
    return (dense + ends) / degrees.tp, routed / (degrees.ep * degrees.expert_tp)
