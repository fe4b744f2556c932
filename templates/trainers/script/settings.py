"""Builds a script's settings for run.json: its arguments with every value filled in."""

from collections.abc import Mapping
from typing import Any

from headway.jobspec.document import Path
from headway.jobspec.plan import JobPlan
from headway.templates.trainers.script.arguments import fill, is_late, is_left_out, values
from headway.templates.trainers.script.options import ScriptOptions


def settings(options: ScriptOptions, plan: JobPlan) -> Mapping[str, Any]:
    """Return the script with its arguments, after `-m` if it is a module; each rank's output goes to a separate log.

    `late` are the places of arguments that the runner completes when it opens the run. Without `python` the first item is a command.
    """
    before = ["-m"] if options.module else []
    known = values(plan)
    kept = [argument for argument in options.argv if not is_left_out(argument, known)]
    late = [len(before) + index for index, argument in enumerate(kept) if is_late(argument)]
    more = {**({"late": late} if late else {}), **({} if options.python else {"python": False})}
    return {"argv": [*before, *(fill(argument, known) for argument in kept)], "logs": True, **more}


def arguments(options: ScriptOptions, plan: JobPlan) -> Mapping[Path, str]:
    """Return the arguments with every value that the plan knows, by their path in the spec."""
    known = values(plan)
    return {
        ("trainer", "options", "argv", index): fill(argument, known)
        for index, argument in enumerate(options.argv)
        if not is_left_out(argument, known)
    }


def files(options: ScriptOptions, plan: JobPlan) -> Mapping[Path, str]:
    """Return the script, unless it is a module or a command, by its path in the spec."""
    if options.module or not options.python:
        return {}
    return {("trainer", "options", "argv", 0): fill(options.argv[0], values(plan))}
