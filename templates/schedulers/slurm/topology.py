"""Turns a cluster's fabric and NVLink domains into Slurm's topology.conf and topology.yaml."""

from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct

from headway.jobspec.plan import ClusterPlan
from headway.jobspec.resolve.domains import Domains
from headway.templates.natural import natural
from headway.templates.schedulers.slurm.node_names import compressed, names_in_slurm
from headway.templates.schedulers.slurm.options import SlurmOptions
from headway.templates.schedulers.slurm.placement import leaves_of_nodes

TREE, BLOCK = "tree", "block"


class TreeSwitch(Struct, frozen=True):
    """A switch of topology/tree, with nodes or with switches below it. `leaves`: those of the fabric in its place."""

    name: str
    nodes: tuple[str, ...] = ()
    switches: tuple[str, ...] = ()
    leaves: tuple[str, ...] = ()


class DomainBlock(Struct, frozen=True):
    """A block of topology/block: the nodes of one NVLink domain."""

    name: str
    nodes: tuple[str, ...]


def switches(options: SlurmOptions, cluster: ClusterPlan) -> tuple[TreeSwitch, ...]:
    """Return the switches of topology/tree, the leaf switches first: nodes below the same leaves of the fabric share one, and leaf switches
    below the same spines a pod. Nodes without a link to the fabric have one for each group. Nothing without planned switches."""
    below = leaves_of_nodes(cluster)
    fabric = cluster.scale_out
    if not below or fabric is None:
        return ()
    names = names_in_slurm(cluster, options.node_names)
    units: dict[tuple[str, ...], list[str]] = {}
    others: dict[str, list[str]] = {}
    for node in cluster.nodes:
        if node.name in below:
            units.setdefault(below[node.name], []).append(names[node.name])
        else:
            others.setdefault(node.group, []).append(names[node.name])
    spines = _spines_of_leaves(cluster)
    leaves: list[TreeSwitch] = []
    pods: dict[frozenset[str], list[str]] = {}
    for number, (of, nodes) in enumerate(sorted(units.items(), key=lambda each: [natural(leaf) for leaf in each[0]]), 1):
        name = of[0] if len(of) == 1 else f"{fabric.name}-unit-{number}"
        leaves.append(TreeSwitch(name, tuple(nodes), leaves=tuple(sorted(of, key=natural))))
        pods.setdefault(frozenset().union(*(spines.get(leaf, ()) for leaf in of)), []).append(name)
    tops = [leaf.name for leaf in leaves]
    middle: list[TreeSwitch] = []
    if len(pods) > 1:
        middle = [
            TreeSwitch(f"{fabric.name}-pod-{number}", switches=tuple(below)) for number, below in enumerate(pods.values(), 1)
        ]
        tops = [pod.name for pod in middle]
    apart = [TreeSwitch(f"{group}-nodes", tuple(nodes)) for group, nodes in others.items()]
    tops += [each.name for each in apart]
    root = [TreeSwitch(fabric.name, switches=tuple(tops))] if len(tops) > 1 else []
    return (*leaves, *apart, *middle, *root)


def _spines_of_leaves(cluster: ClusterPlan) -> Mapping[str, frozenset[str]]:
    roles = cluster.switch_roles
    found: dict[str, set[str]] = {}
    for link in cluster.links:
        ends = {roles.get(link.a): link.a, roles.get(link.b): link.b}
        if "leaf" in ends and "spine" in ends:
            found.setdefault(ends["leaf"], set()).add(ends["spine"])
    return {leaf: frozenset(spines) for leaf, spines in found.items()}


def blocks(options: SlurmOptions, cluster: ClusterPlan) -> tuple[DomainBlock, ...]:
    """Return the blocks of topology/block: the NVLink domains of several nodes."""
    names = names_in_slurm(cluster, options.node_names)
    found: dict[str, list[str]] = {}
    for node in cluster.nodes:
        if (size := _nodes_of_domain(cluster, node.group)) > 1:
            found.setdefault(f"{node.group}-domain-{node.index // size + 1}", []).append(names[node.name])
    return tuple(DomainBlock(name, tuple(nodes)) for name, nodes in found.items())


def block_size(cluster: ClusterPlan) -> int:
    """Return the nodes of the smallest NVLink domain of several nodes, which is Slurm's base block; 1 without one."""
    return min((size for group in cluster.groups if (size := _nodes_of_domain(cluster, group.name)) > 1), default=1)


def _nodes_of_domain(cluster: ClusterPlan, name: str) -> int:
    group = cluster.group(name)
    return Domains(group.nvlink_domain, group.gpus, group.count).nodes if group.gpus else 1


def topology_conf(options: SlurmOptions, cluster: ClusterPlan) -> str | None:
    """Return the text of topology.conf; None where the options choose no plugin, or nothing is planned for it."""
    lines = list(_conf_lines(options, cluster))
    if not lines:
        return None
    return "\n".join(
        [*_head(cluster, "topology.conf", f"slurm.conf needs TopologyPlugin=topology/{options.topology}."), *lines, ""]
    )


def _conf_lines(options: SlurmOptions, cluster: ClusterPlan) -> Iterator[str]:
    if options.topology == TREE:
        for switch in switches(options, cluster):
            if len(switch.leaves) > 1:
                yield f"# {', '.join(switch.leaves)}"
            below = f"Nodes={compressed(switch.nodes)}" if switch.nodes else f"Switches={compressed(switch.switches)}"
            yield f"SwitchName={switch.name} {below}"
    elif options.topology == BLOCK:
        found = blocks(options, cluster)
        yield from (f"BlockName={block.name} Nodes={compressed(block.nodes)}" for block in found)
        if found:
            yield f"BlockSizes={block_size(cluster)}"


def topology_yaml(options: SlurmOptions, cluster: ClusterPlan) -> str | None:
    """Return the text of topology.yaml, which Slurm 25.05 and newer reads in place of topology.conf; None as for `topology_conf`."""
    lines = list(_yaml_lines(options, cluster))
    if not lines:
        return None
    note = "Slurm 25.05 and newer reads it in place of topology.conf, and of TopologyPlugin in slurm.conf."
    head = ["---", *_head(cluster, "topology.yaml", note), f"- topology: {cluster.name}", "  cluster_default: true"]
    return "\n".join([*head, *lines, ""])


def _yaml_lines(options: SlurmOptions, cluster: ClusterPlan) -> Iterator[str]:
    if options.topology == TREE and (found := switches(options, cluster)):
        yield "  tree:"
        yield "    switches:"
        for switch in found:
            below = f"nodes: {_text(switch.nodes)}" if switch.nodes else f"children: {_text(switch.switches)}"
            yield from (f"      - switch: {switch.name}", f"        {below}")
    elif options.topology == BLOCK and (parts := blocks(options, cluster)):
        yield from ("  block:", f"    block_sizes: [{block_size(cluster)}]", "    blocks:")
        for block in parts:
            yield from (f"      - block: {block.name}", f"        nodes: {_text(block.nodes)}")


def _text(names: Sequence[str]) -> str:
    return f'"{compressed(names)}"'


def _head(cluster: ClusterPlan, file: str, note: str) -> list[str]:
    return [
        f"# {file} of {cluster.name}. Rendered by headway; edit the cluster file, not this file.",
        f"# {note}",
        "# Before `scontrol reconfigure`, which ends a slurmctld that cannot read it: headway verify-topology CLUSTER",
    ]
