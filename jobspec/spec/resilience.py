"""What a job does against failures: checkpoints and restarts."""

from typing import Literal

from pydantic import Field

from headway.jobspec.spec.section import Section
from headway.runner import contract


class Tier(Section):
    """A place for checkpoints and how often one is written there."""

    kind: Literal["disk"] = Field(examples=["disk"])
    """What holds the checkpoints; `disk` is the storage that holds the runs."""
    every_steps: int = Field(ge=1, examples=[100])
    """Optimizer steps from one checkpoint to the next."""


class Checkpoint(Section):
    """Checkpoints of a run."""

    tiers: tuple[Tier, ...] = Field(min_length=1, max_length=1, examples=[[{"kind": "disk", "every_steps": 100}]])
    """Where checkpoints go."""
    keep: int = Field(contract.Checkpoint.keep, ge=2, examples=[3])
    """Verified checkpoints that stay; at least 2, so that one is left when the newest does not verify."""


class Restart(Section):
    """How often a failed run starts again by itself."""

    budget: int = Field(contract.Restart.budget, ge=0, examples=[3])
    """Restarts at hand."""
    refill_steps: int = Field(contract.Restart.refill_steps, ge=1, examples=[100])
    """Steps of new progress that give one restart back."""
    no_progress: int = Field(contract.Restart.no_progress, ge=1, examples=[3])
    """Restarts in a row without a new step after which the run stops."""
