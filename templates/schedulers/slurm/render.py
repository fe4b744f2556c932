"""Renders a plan as `slurm/job.sbatch`."""

import math
from pathlib import Path, PurePosixPath

from headway.jobspec.plan import ClusterPlan, JobPlan
from headway.jobspec.resolve.placement import USER
from headway.templates.kind import Files
from headway.templates.schedulers.data import runs_word, script_data, take_secrets
from headway.templates.schedulers.slurm.container import container_of
from headway.templates.schedulers.slurm.options import SlurmOptions
from headway.templates.schedulers.slurm.placement import switches_of
from headway.templates.schedulers.slurm.request import with_request
from headway.templates.shell import Shell, quote, render_shell

_TEMPLATE = Path(__file__).parent / "job.sbatch.j2"

_BLOCK = "block"
# Slurm sends the signal up to 60 s early and never late; the batch script itself needs some seconds to requeue the job.
_SIGNAL_MARGIN_S = 30
# Percent of a node's memory that Slurm hands out: RealMemory of slurm.conf is less than what is built in.
_FOR_JOBS = 90


def render(options: SlurmOptions, plan: JobPlan, cluster: ClusterPlan) -> Files:
    """Return one script that can be given to sbatch unchanged."""
    options = with_request(options, plan, cluster)
    container = container_of(options, plan, cluster)
    staged = None if container is None else container.staged
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
        container=container,
        has_pyxis=container is not None and container.runtime == "pyxis",
        has_apptainer=container is not None and container.runtime == "apptainer",
        container_env=None if container is None else ",".join(container.variables),
        on_hosts=plan.code["image"] is None,
        unpinned=plan.code["commit"] == "HEAD",
        stages_image=staged,
        has_steps=staged is not None or plan.outlives_nodes,
        memory=_memory(options, plan, cluster),
        nice=None if options.nice is None else str(options.nice),
        segment=plan.segment_nodes if options.topology == _BLOCK else None,
        switches=None if (fewest := switches_of(options, plan, cluster)) is None else Shell(fewest),
        webhook=None if plan.run.notify is None else Shell(plan.run.notify.webhook_env),
        webhook_value=None if plan.run.notify is None else Shell(f"${{{plan.run.notify.webhook_env}:-}}"),
        directives=[Shell(line) for line in options.directives],
        secrets=take_secrets(plan),
        preparation=plan.preparation,
        step_options=[Shell(quote(option)) for option in options.srun],
    )
    return {PurePosixPath("slurm/job.sbatch"): text}


def _memory(options: SlurmOptions, plan: JobPlan, cluster: ClusterPlan) -> str | None:
    """Return the value of `--mem`, in MiB: 0 is all memory of a node (sbatch(1)); None where a part of unknown size is left to Slurm."""
    if plan.has_whole_nodes:
        return "0" if options.memory is None else f"{options.memory >> 20}M"
    if options.memory is not None:
        return f"{options.memory * plan.gpus_per_slot // plan.gpus_per_node >> 20}M"
    memory = cluster.group(plan.group).host_memory_bytes
    return None if memory is None else f"{memory * _FOR_JOBS // 100 >> 20}M"
