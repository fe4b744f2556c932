"""Which nodes of a cluster a job runs on, and which storage holds its runs."""

from headway.jobspec.plan import ClusterPlan, GroupPlan


def resolve_group(cluster: ClusterPlan) -> GroupPlan:
    """A job runs on one group of nodes: the cluster's first."""
    return cluster.groups[0]


def resolve_runs(cluster: ClusterPlan) -> str:
    """Directory of the runs: the first shared storage. A cluster that passed its checks has one."""
    return next(storage.path for storage in cluster.storage if storage.shared)
