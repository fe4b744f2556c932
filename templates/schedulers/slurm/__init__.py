"""Slurm as a scheduler: one self-contained batch script, which also puts a failed job back into the queue."""

from headway.templates.kind import JobKind
from headway.templates.schedulers.slurm.check import check
from headway.templates.schedulers.slurm.options import SlurmOptions
from headway.templates.schedulers.slurm.render import render

SLURM = JobKind(SlurmOptions, check, render)
