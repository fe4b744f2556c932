"""Scheduler `local`: this machine, by one shell script that starts a supervisor per node.

In: a `JobPlan` and `LocalOptions`. Out: `local/run.sh`.
Start reading: `render.py`, `run.sh.j2`.
"""

from headway.templates.kind import JobKind
from headway.templates.schedulers.local.check import check
from headway.templates.schedulers.local.options import LocalOptions
from headway.templates.schedulers.local.render import render

LOCAL = JobKind(LocalOptions, check, render)
