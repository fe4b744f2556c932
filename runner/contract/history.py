"""Holds the changes of a run's configuration while it trains, and which of them are in force."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Change:
    """An entry of a run's history: from step `from_step` on `set` applies, and `skip_samples` samples are skipped there.

    With `rollback_to` the run first goes back to the checkpoint of that step, and the entry applies from there on. The
    keys of `set` are fields of run.json: `optimizer.lr`, `batch.global_sequences`, `steps`.
    """

    from_step: int
    rollback_to: int | None = None
    skip_samples: int = 0
    set: Mapping[str, Any] = field(default_factory=dict)

    @property
    def takes_effect_at(self) -> int:
        """The number of completed steps from which the run continues with this entry."""
        return self.from_step if self.rollback_to is None else self.rollback_to


def in_force(history: Sequence[Change]) -> tuple[Change, ...]:
    """Return the changes in force, in the order of their steps: a rollback to a step undoes those that took effect there or later."""
    kept: list[Change] = []
    for change in history:
        back = change.rollback_to
        kept = [each for each in kept if back is None or each.takes_effect_at < back]
        kept.append(change)
    return tuple(kept)


def samples_before(history: Sequence[Change], batch: int, step: int) -> int:
    """Return the number of samples before the one that follows `step` completed steps, skipped ones included. `batch` is the number
    of samples in a step before any change."""
    found, begun = 0, 0
    for change in in_force(history):
        if change.takes_effect_at > step:
            break
        found += (change.takes_effect_at - begun) * batch + change.skip_samples
        begun, batch = change.takes_effect_at, change.set.get("batch.global_sequences", batch)
    return found + (step - begun) * batch
