"""Trainer `builtin`: the Llama-family trainer of runner/train.

In: a `JobPlan` and `BuiltinOptions`. Out: no file; run.json holds all that the trainer needs.
Start reading: `check.py` (what it cannot run), `settings.py` (how it computes), `options.py`.
"""

from headway.templates.kind import JobKind
from headway.templates.trainers.builtin.check import ONLY, check
from headway.templates.trainers.builtin.options import DATA, BuiltinOptions
from headway.templates.trainers.builtin.render import render
from headway.templates.trainers.builtin.settings import files, settings

NEEDS = ("model", "data", "batch", "optimizer", "steps", "checkpoint")

BUILTIN = JobKind(BuiltinOptions, check, render, DATA, NEEDS, settings=settings, only=ONLY, files=files)
