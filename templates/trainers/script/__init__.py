"""Trainer `script`: an unmodified training script, started as torchrun starts it.

In: a `JobPlan` and `ScriptOptions`. Out: the script's arguments with the plan's values filled in,
as settings in run.json.
Start reading: `arguments.py`, `settings.py`, `check.py`.
"""

from headway.templates.kind import JobKind
from headway.templates.trainers.script.check import check
from headway.templates.trainers.script.limits import limits
from headway.templates.trainers.script.options import ScriptOptions
from headway.templates.trainers.script.render import render
from headway.templates.trainers.script.settings import arguments, files, settings

SCRIPT = JobKind(ScriptOptions, check, render, settings=settings, files=files, limits=limits, arguments=arguments)
