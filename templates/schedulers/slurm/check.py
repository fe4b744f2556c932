"""What Slurm cannot do with a plan."""

from collections.abc import Iterator

from headway.jobspec.plan import ClusterPlan, JobPlan
from headway.jobspec.problem import Problem
from headway.templates.schedulers.slurm.options import SlurmOptions


def check(options: SlurmOptions, plan: JobPlan, cluster: ClusterPlan) -> Iterator[Problem]:
    """Nothing so far: whatever can be planned can be submitted."""
    yield from ()
