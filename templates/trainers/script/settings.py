"""Builds a script's settings for run.json: its arguments with every value filled in."""

from collections.abc import Mapping
from typing import Any

from headway.jobspec.document import Path
from headway.jobspec.plan import JobPlan
from headway.templates.trainers.script.arguments import fill, values
from headway.templates.trainers.script.options import ScriptOptions


def settings(options: ScriptOptions, plan: JobPlan) -> Mapping[str, Any]:
    """Return the script with its arguments, after `-m` if it is a module; each rank's output goes to a separate log."""
    return {"argv": [*(["-m"] if options.module else []), *_filled(options, plan)], "logs": True}


def files(options: ScriptOptions, plan: JobPlan) -> Mapping[Path, str]:
    """Return the script, unless it is a module, by its path in the spec."""
    return {} if options.module else {("trainer", "options", "argv", 0): _filled(options, plan)[0]}


def _filled(options: ScriptOptions, plan: JobPlan) -> list[str]:
    known = values(plan)
    return [fill(argument, known) for argument in options.argv]
