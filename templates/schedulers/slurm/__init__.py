"""Scheduler `slurm`: one self-contained batch script, which also requeues the job after a failure.

In: a `JobPlan` and `SlurmOptions`. Out: `slurm/job.sbatch`.
Start reading: `render.py`, `job.sbatch.j2`.
"""

from headway.templates.kind import JobKind
from headway.templates.schedulers.slurm.check import check, check_options
from headway.templates.schedulers.slurm.options import SlurmOptions
from headway.templates.schedulers.slurm.pyxis import mounted
from headway.templates.schedulers.slurm.render import render

SLURM = JobKind(SlurmOptions, check, render, check_options=check_options, mounted=mounted)
