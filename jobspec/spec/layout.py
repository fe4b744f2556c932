"""Defines the layout of a job's ranks: the degree of every kind of parallelism."""

from typing import Annotated, Literal

from pydantic import Field

from headway.jobspec.spec.section import Section
from headway.jobspec.spec.written import OrAuto

# torch.distributed.pipelining.schedules, as get_schedule_class takes them.
Schedule = Literal["GPipe", "1F1B", "Interleaved1F1B", "LoopedBFS", "InterleavedZeroBubble", "ZBVZeroBubble", "DualPipeV"]

# State that data-parallel ranks split, from none to all of it.
Sharding = Literal["none", "optimizer", "gradients", "parameters"]

# A degree, and one that follows from the others when omitted.
_Degree = Annotated[int, OrAuto(1)]
_Rest = Annotated[int | None, OrAuto()]


class Layout(Section):
    """Degrees; together they multiply to the number of ranks. Expert parallelism folds over (dp_shard, cp, tp)."""

    pp: _Degree = Field(1, ge=1, examples=[4])
    """Pipeline stages that run at the same time, each on separate ranks."""
    dp_replicate: _Degree = Field(1, ge=1, examples=[2])
    """Replicas of the sharded model."""
    dp_shard: _Rest = Field(None, ge=1, examples=[16])
    """Ranks over which parameters are sharded; all remaining ranks when left out."""
    sharding: Annotated[Sharding | None, OrAuto()] = Field(None, examples=["optimizer"])
    """State that is split over `dp_shard` x `cp` ranks: none (DDP), the optimizer's (ZeRO-1), gradients too (ZeRO-2), or parameters too
    (ZeRO-3, FSDP); the framework's usual one when left out."""
    cp: _Degree = Field(1, ge=1, examples=[2])
    """Ranks over which one sequence is split."""
    tp: _Degree = Field(1, ge=1, examples=[8])
    """Ranks over which one matrix is split."""
    ep: _Degree = Field(1, ge=1, examples=[8])
    """Ranks over which the experts of one block are spread; a divisor of dp_shard x cp x tp."""
    sequence_parallel: Annotated[bool | None, OrAuto()] = Field(None, examples=[True])
    """Whether norms and dropout are split along the sequence over the `tp` ranks; when left out, they are if `tp` is above 1."""
    schedule: Annotated[Schedule | None, OrAuto()] = Field(None, examples=["1F1B"])
    """Order of forward and backward passes over pipeline stages; the trainer's default when left out."""
    virtual_stages: _Degree = Field(1, ge=1, le=256, examples=[2])
    """Stages that each pipeline rank holds."""
