"""Decides which nodes of a cluster a job runs on, and which storage holds its runs."""

from headway.jobspec.plan import ClusterPlan, GroupPlan


def group_of_job(cluster: ClusterPlan, name: str | None) -> GroupPlan:
    """Return the one group of nodes that a job runs on: the one that it names, else the cluster's first."""
    return cluster.groups[0] if name is None else cluster.group(name)


# In the path of a cluster's runs: the name of the user who submits.
USER = "{user}"


def runs_of_user(runs: str, user: str) -> str:
    """Return the folder of a user's runs."""
    return runs.replace(USER, user)


def resolve_runs(cluster: ClusterPlan) -> str:
    """Directory of the runs: the first shared file system. A cluster that passed its checks has one."""
    return next(storage.path for storage in cluster.storage if storage.shared and storage.kind == "posix" and storage.path)
