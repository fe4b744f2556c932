"""Adds a trainer's settings to an otherwise finished plan, since they may contain values of the plan."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from headway.jobspec.plan import JobPlan


def with_settings(plan: JobPlan, settings: Mapping[str, Any]) -> JobPlan:
    """Return the plan whose run.json has the settings as the options of its trainer."""
    trainer = dataclasses.replace(plan.run.trainer, options=settings)
    return dataclasses.replace(plan, run=dataclasses.replace(plan.run, trainer=trainer))
