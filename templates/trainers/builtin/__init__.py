"""The trainer inside the runner: a Llama-family model under FSDP2."""

from headway.templates.kind import JobKind
from headway.templates.trainers.builtin.check import ONLY, check
from headway.templates.trainers.builtin.options import DATA, BuiltinOptions
from headway.templates.trainers.builtin.render import render

NEEDS = ("model", "data", "batch", "optimizer", "steps", "checkpoint")

BUILTIN = JobKind(BuiltinOptions, check, render, DATA, NEEDS, only=ONLY)
