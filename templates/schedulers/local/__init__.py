"""The machine at hand as a scheduler: one shell script that starts a runner for every slot."""

from headway.templates.kind import JobKind
from headway.templates.schedulers.local.check import check
from headway.templates.schedulers.local.options import LocalOptions
from headway.templates.schedulers.local.render import render

LOCAL = JobKind(LocalOptions, check, render)
