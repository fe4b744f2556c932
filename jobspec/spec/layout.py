"""How a job's ranks are laid out: the degree of every kind of parallelism."""

from pydantic import Field

from headway.jobspec.spec.section import Section


class Layout(Section):
    """Degrees; together they multiply to the number of ranks."""

    pp: int = Field(1, ge=1, examples=[4])
    """Pipeline stages."""
    dp_replicate: int = Field(1, ge=1, examples=[2])
    """Replicas of the sharded model."""
    dp_shard: int | None = Field(None, ge=1, examples=[16])
    """Ranks over which parameters are sharded; what is left of the ranks when not given."""
    cp: int = Field(1, ge=1, examples=[2])
    """Ranks over which one sequence is split."""
    tp: int = Field(1, ge=1, examples=[8])
    """Ranks over which one matrix is split."""
