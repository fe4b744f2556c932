"""Nodes that Slurm must take from one NVLink domain together, as the value of sbatch's `--segment`.

topology/block allocates a job in segments, each inside of one block; Slurm takes the option since 24.05, and only a number that divides
the job's nodes or is larger (SchedMD/slurm CHANGELOG/slurm-24.05.md, https://slurm.schedmd.com/topology.html).
"""

from headway.jobspec.check.domains import segment_nodes
from headway.jobspec.plan import ClusterPlan, JobPlan


def segment_of(plan: JobPlan, cluster: ClusterPlan) -> int | None:
    """Nodes of a segment; None where it does not matter which nodes the job gets."""
    layout = plan.spec["layout"]
    return segment_nodes(cluster.group(plan.group), layout["tp"], layout["ep"])
