"""Reads back the words of a learning rate's schedule."""

from typing import Any


def decay_words(schedule: str | None, least: float, decay_steps: int | None) -> dict[str, Any]:
    """Return the fields of the schedule. One that never decays has no least rate."""
    return {
        "optimizer.schedule": schedule,
        "optimizer.min_lr_ratio": None if schedule in ("constant", None) else least,
        "optimizer.decay_steps": decay_steps if schedule == "wsd" else None,
    }
