"""How a job's ranks are laid out: the degree of every kind of parallelism."""

from typing import Literal

from pydantic import Field

from headway.jobspec.spec.section import Section

# torch.distributed.pipelining.schedules, as get_schedule_class takes them.
Schedule = Literal["GPipe", "1F1B", "Interleaved1F1B", "LoopedBFS", "InterleavedZeroBubble", "ZBVZeroBubble", "DualPipeV"]


class Layout(Section):
    """Degrees; together they multiply to the number of ranks. Expert parallelism folds over (dp_shard, cp, tp)."""

    pp: int = Field(1, ge=1, examples=[4])
    """Pipeline stages that run at the same time, each on ranks of its own."""
    dp_replicate: int = Field(1, ge=1, examples=[2])
    """Replicas of the sharded model."""
    dp_shard: int | None = Field(None, ge=1, examples=[16])
    """Ranks over which parameters are sharded; what is left of the ranks when not given."""
    cp: int = Field(1, ge=1, examples=[2])
    """Ranks over which one sequence is split."""
    tp: int = Field(1, ge=1, examples=[8])
    """Ranks over which one matrix is split."""
    ep: int = Field(1, ge=1, examples=[8])
    """Ranks over which the experts of one block are spread; a divisor of dp_shard x cp x tp."""
    sequence_parallel: bool | None = Field(None, examples=[True])
    """Whether norms and dropout are split along the sequence over the `tp` ranks; with `tp` above 1 they are when left out."""
    schedule: Schedule | None = Field(None, examples=["1F1B"])
    """Order of forward and backward passes over pipeline stages; the trainer's own choice when left out."""
    virtual_stages: int = Field(1, ge=1, le=256, examples=[2])
    """Stages that each pipeline rank holds."""
