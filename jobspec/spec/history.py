"""Defines the changes made to a run after it started, so that its spec describes the whole run."""

from typing import Any

from pydantic import Field

from headway.jobspec.spec.section import Section


class Change(Section):
    """A change that took effect at one step."""

    from_step: int = Field(ge=0, examples=[12000])
    """Step that the change takes effect after."""
    rollback_to: int | None = Field(None, ge=0, examples=[11800])
    """Step of the checkpoint that the run goes back to; it resumes from `from_step` when left out. Entries that took effect there or \
later are undone."""
    skip_samples: int = Field(0, ge=0, examples=[204800])
    """Number of samples of the data order to skip from there on."""
    set: dict[str, Any] = Field(default_factory=dict, max_length=64, examples=[{"optimizer.lr": 1e-4}])
    """New values by the path of their field, in effect until a later entry."""


def takes_effect_at(change: Change) -> int:
    """Return the number of completed steps from which the change applies."""
    return change.from_step if change.rollback_to is None else change.rollback_to
