"""Adds a trainer's settings to an otherwise finished plan, since they may contain values of the plan."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from headway.jobspec.plan import JobPlan
from headway.runner import contract


def with_settings(plan: JobPlan, settings: Mapping[str, Any], runs_as: str | None = None) -> JobPlan:
    """Return the plan whose run.json has the settings as the options of its trainer, or of the one that it runs as."""
    trainer = contract.Trainer(runs_as or plan.run.trainer.kind, settings)
    return replace(plan, run=dataclasses.replace(plan.run, trainer=trainer))
