"""Renders a plan as `slurm/job.sbatch`."""

import math
from pathlib import Path, PurePosixPath

from headway.jobspec.plan import ClusterPlan, JobPlan
from headway.jobspec.resolve.placement import USER
from headway.templates.kind import Files
from headway.templates.schedulers.data import runs_word, script_data
from headway.templates.schedulers.slurm.options import SlurmOptions
from headway.templates.schedulers.slurm.pyxis import container_of, staged_image
from headway.templates.shell import Shell, render_shell

_TEMPLATE = Path(__file__).parent / "job.sbatch.j2"

# Slurm sends the signal up to 60 s early and never late; the batch script itself needs some seconds to requeue the job.
_SIGNAL_MARGIN_S = 30


def render(options: SlurmOptions, plan: JobPlan, cluster: ClusterPlan) -> Files:
    """Return one script that can be given to sbatch unchanged."""
    image = staged_image(plan, options.image_cache)
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
        data=script_data(plan, opens=False),
        python=Shell("python3 -m" if options.bundle is None else f"python3 {options.bundle}/headway/runner/start.py"),
        bundle_mount=Shell("" if options.bundle is None else f"{options.bundle}:{options.bundle}:ro,"),
        commit=None if plan.code["commit"] == "HEAD" else Shell(plan.code["commit"]),
        container=container_of(plan, options.image_cache),
        on_hosts=plan.code["image"] is None,
        unpinned=plan.code["commit"] == "HEAD",
        stages_image=image,
        has_steps=image is not None or plan.outlives_nodes,
        in_blocks=options.topology is not None and plan.segment_nodes is not None,
        webhook=None if plan.run.notify is None else Shell(plan.run.notify.webhook_env),
        webhook_value=None if plan.run.notify is None else Shell(f"${{{plan.run.notify.webhook_env}:-}}"),
        directives=[Shell(line) for line in options.directives],
    )
    return {PurePosixPath("slurm/job.sbatch"): text}
