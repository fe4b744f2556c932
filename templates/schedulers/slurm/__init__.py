"""Scheduler `slurm`: one self-contained batch script, which also requeues the job after a failure.

In: a `JobPlan` and `SlurmOptions`. Out: `slurm/job.sbatch`; of a `ClusterPlan` the topology files of slurmctld and the node check.
Start reading: `render.py`, `job.sbatch.j2`; `site_files.py`.
"""

from headway.templates.kind import JobKind
from headway.templates.schedulers.slurm.check import check, check_cluster, check_options
from headway.templates.schedulers.slurm.container import mounted
from headway.templates.schedulers.slurm.options import SlurmOptions
from headway.templates.schedulers.slurm.render import render
from headway.templates.schedulers.slurm.site_files import render_site

SLURM = JobKind(
    SlurmOptions,
    check,
    render,
    check_options=check_options,
    mounted=mounted,
    render_cluster=render_site,
    check_cluster=check_cluster,
)
