"""Renders a plan's environment as `nccl.env`, which a shell can source: every variable below its reason and its source."""

from pathlib import Path, PurePosixPath

from headway.jobspec.plan import JobPlan
from headway.templates.kind import Files
from headway.templates.shell import render_shell

_TEMPLATE = Path(__file__).parent / "nccl.env.j2"


def render_environment(plan: JobPlan) -> Files:
    """Return one file."""
    return {PurePosixPath("nccl.env"): render_shell(_TEMPLATE, plan=plan)}
