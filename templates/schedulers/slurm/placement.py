"""Decides how many leaf switches of topology/tree a job asks for."""

from collections import Counter

from headway.jobspec.plan import ClusterPlan, JobPlan, SwitchPlan
from headway.jobspec.resolve.domains import Domains
from headway.jobspec.units import format_seconds
from headway.templates.schedulers.slurm.options import SlurmOptions

SWITCHES = "--switches"


def leaf_nodes(options: SlurmOptions, cluster: ClusterPlan) -> int | None:
    """Return the nodes below one leaf switch of topology/tree: by the options, or the most that share their leaves in the fabric's plan,
    those to come too.

    None if neither has them.
    """
    if options.leaf_nodes is not None:
        return options.leaf_nodes
    leaves: dict[str, set[str]] = {}
    for leaf in _leaves(cluster):
        for port in leaf.ports:
            if port.role == "node":
                leaves.setdefault(port.peer, set()).add(leaf.name)
    return max(Counter(map(frozenset, leaves.values())).values(), default=None)


def leaves_of_nodes(cluster: ClusterPlan) -> dict[str, tuple[str, ...]]:
    """Return the leaves of the scale-out fabric that each node is connected to, by the node's name; nothing without switches."""
    leaves = {leaf.name for leaf in _leaves(cluster)}
    found: dict[str, dict[str, None]] = {}
    for link in cluster.links:
        if link.a in leaves:
            found.setdefault(link.b, {})[link.a] = None
    return {node: tuple(sorted(names)) for node, names in found.items()}


def _leaves(cluster: ClusterPlan) -> list[SwitchPlan]:
    fabric = None if cluster.scale_out is None else cluster.scale_out.name
    return [switch for switch in cluster.switches if switch.fabric == fabric and switch.role == "leaf"]


def switches_of(options: SlurmOptions, plan: JobPlan, cluster: ClusterPlan) -> str | None:
    """Return the value of `--switches`: the fewest leaf switches that hold the job's nodes.

    None where the option would change nothing, and where the job or the cluster has the option already: of two, Slurm uses the last.
    """
    below = leaf_nodes(options, cluster)
    if options.topology != "tree" or below is None or plan.nodes == 1 or any(_is_own(each) for each in options.directives):
        return None
    fewest, group = -(-plan.nodes // below), cluster.group(plan.group)
    if fewest >= -(-(group.grow_to or group.count) // below):
        return None
    return f"{fewest}" if options.switch_wait is None else f"{fewest}@{format_seconds(options.switch_wait)}"


def crossing_group(options: SlurmOptions, plan: JobPlan, cluster: ClusterPlan) -> tuple[str, int, int] | None:
    """Return the axis of the layout whose groups of ranks span nodes and may be placed across leaf switches, their ranks, and the nodes
    below a leaf switch. None if no group can: the job fits below one leaf switch, or fills each one that it gets with whole groups.
    """
    below, group = leaf_nodes(options, cluster), cluster.group(plan.group)
    if options.topology != "tree" or below is None or plan.nodes <= below:
        return None
    layout = plan.spec["layout"]
    for axis in ("tp", "ep"):
        nodes = Domains(1, max(1, group.procs), group.count).unit(layout[axis])
        if nodes > 1 and (below % nodes or plan.nodes % below):
            return axis, layout[axis], below
    return None


def _is_own(directive: str) -> bool:
    return directive.partition("=")[0] == SWITCHES
