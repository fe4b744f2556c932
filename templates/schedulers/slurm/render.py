"""Renders a plan as `slurm/job.sbatch`."""

import math
from pathlib import Path, PurePosixPath

from headway.jobspec.plan import ClusterPlan, JobPlan
from headway.jobspec.resolve.placement import USER
from headway.templates.kind import Files
from headway.templates.schedulers.data import runs_word, script_data
from headway.templates.schedulers.slurm.options import SlurmOptions
from headway.templates.schedulers.slurm.pyxis import container_of
from headway.templates.shell import Shell, render_shell

_TEMPLATE = Path(__file__).parent / "job.sbatch.j2"

# Slurm sends the signal up to 60 s early and never late; the batch script itself needs some seconds to requeue the job.
_SIGNAL_MARGIN_S = 30


def render(options: SlurmOptions, plan: JobPlan, cluster: ClusterPlan) -> Files:
    """Return one script that can be given to sbatch unchanged."""
    text = render_shell(
        _TEMPLATE,
        plan=plan,
        options=options,
        setup=[Shell(line) for line in options.setup],
        signal_s=math.ceil(plan.run.grace_s) + _SIGNAL_MARGIN_S,
        runs=runs_word(plan),
        # Users whose runs are apart share the list of failing hosts.
        suspects=str(PurePosixPath(plan.runs.partition(USER)[0], "suspects")) if USER in plan.runs else None,
        run_name=plan.run_stem,
        data=script_data(plan),
        container=container_of(plan),
        in_blocks=options.topology is not None and plan.segment_nodes is not None,
        webhook=None if plan.run.notify is None else Shell(plan.run.notify.webhook_env),
        directives=[Shell(line) for line in options.directives],
    )
    return {PurePosixPath("slurm/job.sbatch"): text}
