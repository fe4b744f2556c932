"""Somebody's own training script as a trainer: started as torchrun starts it, with the plan's values in its arguments."""

from headway.templates.kind import JobKind
from headway.templates.trainers.script.check import check
from headway.templates.trainers.script.limits import limits
from headway.templates.trainers.script.options import ScriptOptions
from headway.templates.trainers.script.render import render
from headway.templates.trainers.script.settings import files, settings

SCRIPT = JobKind(ScriptOptions, check, render, settings=settings, files=files, limits=limits)
