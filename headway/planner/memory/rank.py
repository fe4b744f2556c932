"""Describes what one pipeline rank holds of a model: blocks, parameters, and microbatches in flight."""

from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from headway.jobspec.resolve.model import ModelSizes
from headway.planner.schedules.orders import is_folded
from headway.planner.schedules.schedule import make_schedule
from headway.planner.training import Degrees

# Of microbatches through all ranks: after so many a schedule only repeats itself.
_ROUNDS = 4


class RankShare(Struct, frozen=True):
    """Parameters of one rank after tensor and expert parallelism: `experts` those of routed experts, `outer` those of the embedding and
    the output layer, `dense` the others. `held` is the most microbatches at a time whose activations it holds, each counted as the share of
    its blocks that the microbatch has gone through."""

    index: int
    last: bool
    dense_blocks: int
    expert_blocks: int
    dense: float
    experts: float
    outer: float
    held: float

    @property
    def blocks(self) -> int:
        """All of its blocks."""
        return self.dense_blocks + self.expert_blocks

    @property
    def parameters(self) -> float:
        """All of its parameters."""
        return self.dense + self.experts + self.outer


class Spread(NamedTuple):
    """How a framework spreads a model: `balanced` lets the output layer count as blocks when blocks go over a pipeline;
    `whole_embedding` keeps the embedding whole on every tensor-parallel rank."""

    balanced: bool = False
    whole_embedding: bool = False


@lru_cache(maxsize=4096)
def rank_shares(model: ModelSizes, degrees: Degrees, accumulation: int, spread: Spread) -> tuple[RankShare, ...]:
    """Return the pipeline's ranks, first to last; of those that differ in nothing but their place only the one that
    holds the most activations.

    Raises ScheduleError.
    """
    held = in_flight(degrees.schedule, degrees.pp, degrees.chunks, accumulation)
    stages = _spread(model, degrees.pp * degrees.chunks, spread.balanced and degrees.pp > 1)
    found: dict[RankShare, RankShare] = {}
    for rank in range(degrees.pp):
        share = _share(model, degrees, [stages[stage] for stage in _stages(degrees, rank)], rank, held[rank], spread)
        alike = replace(share, index=0, held=0.0)
        if alike not in found or found[alike].held < share.held:
            found[alike] = share
    return tuple(found.values())


def _share(model: ModelSizes, degrees: Degrees, stages: list[range], rank: int, held: float, spread: Spread) -> RankShare:
    blocks = sum(len(stage) for stage in stages)
    with_experts = sum(model.has_experts(layer) for stage in stages for layer in stage)
    routed = 0 if model.experts is None else model.experts.count * model.expert_parameters
    dense_blocks, tp = blocks - with_experts, degrees.tp
    return RankShare(
        index=rank,
        last=_is_last(degrees, rank),
        dense_blocks=dense_blocks,
        expert_blocks=with_experts,
        dense=(
            blocks * (model.attention_parameters / tp + 2 * model.norm_parameters)
            + dense_blocks * model.mlp_parameters / tp
            + with_experts * (model.moe_parameters - routed) / tp
        ),
        experts=with_experts * routed / (degrees.ep * degrees.expert_tp),
        outer=_outer(model, degrees, rank, spread),
        held=held,
    )


def _outer(model: ModelSizes, degrees: Degrees, rank: int, spread: Spread) -> float:
    """Return the outer parameters. A tied output layer on another rank than the embedding is a copy of it."""
    first, last = rank == 0, _is_last(degrees, rank)
    embedding = model.embedding_parameters / (1 if spread.whole_embedding else degrees.tp) if first else 0.0
    output = model.vocab_size * model.hidden / degrees.tp if last and not (first and model.tie_embeddings) else 0.0
    return embedding + output + (model.norm_parameters if last else 0)


def _is_last(degrees: Degrees, rank: int) -> bool:
    """Return whether the rank has the output layer."""
    return rank == (0 if is_folded(degrees.schedule) else degrees.pp - 1)


def _stages(degrees: Degrees, rank: int) -> tuple[int, ...]:
    if is_folded(degrees.schedule):
        return (rank, 2 * degrees.pp - 1 - rank)
    return tuple(range(rank, degrees.pp * degrees.chunks, degrees.pp))


def _spread(model: ModelSizes, stages: int, balanced: bool) -> list[range]:
    """Return the blocks of each stage: as many in each, and the first stages one more where they do not go up evenly."""
    each, more = divmod(model.layers + (_output_blocks(model) if balanced else 0), stages)
    return [range(start, min(model.layers, stop)) for start, stop in _bounds(each, more, stages)]


def _bounds(each: int, more: int, stages: int) -> Iterator[tuple[int, int]]:
    for stage in range(stages):
        start = stage * each + min(stage, more)
        yield start, start + each + (stage < more)


def _output_blocks(model: ModelSizes) -> int:
    """Return blocks that multiply with as many parameters as the output layer."""
    return round(model.vocab_size * model.hidden / (model.attention_parameters + (model.mlp_parameters or model.moe_parameters)))


@lru_cache(maxsize=1024)
def in_flight(schedule: str, pp: int, chunks: int, accumulation: int) -> tuple[float, ...]:
    """Return, for each pipeline rank, the most microbatches at a time whose activations it holds. Raises ScheduleError."""
    if schedule == "1F1B":
        return tuple(float(min(accumulation, pp - rank)) for rank in range(pp))
    if schedule in {"GPipe", "LoopedBFS"}:
        return (float(accumulation),) * pp
    order = make_schedule(schedule, pp, _enough(accumulation, pp), chunks)
    return tuple(held / chunks for held in order.peaks((1.0,) * (pp * chunks)))


def _enough(accumulation: int, pp: int) -> int:
    """Return as many microbatches as show the most that is ever held."""
    return accumulation if accumulation % pp else min(accumulation, _ROUNDS * pp)
