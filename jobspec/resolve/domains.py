"""Maps NVLink domains to nodes, and computes how many nodes of one domain a job's groups of ranks need together.

Ranks are numbered in layout order with `tp` innermost, and a node's ranks are consecutive: so the ranks of one `tp` group, and of one
`ep` group, are consecutive too. Groups that span nodes lie in one domain each when every domain gives the job a multiple of the nodes
that some groups fill exactly: 16 of its 18, where groups of 8 ranks fill 2 nodes of 4.
"""

from math import lcm

from msgspec import Struct

from headway.jobspec.plan import ClusterPlan, GroupPlan
from headway.runner.contract import Domain


class Domains(Struct, frozen=True):
    """NVLink domains of `gpus` each over nodes of `per_node`; `count` nodes are in full ones, and the remainder in one more."""

    gpus: int
    per_node: int
    count: int

    @property
    def nodes(self) -> int:
        return max(1, self.gpus // self.per_node)

    def unit(self, *sizes: int) -> int:
        """Return nodes that groups of these sizes, each of consecutive ranks, fill exactly."""
        return lcm(self.per_node, *sizes) // self.per_node

    def are_crossed_by(self, *sizes: int) -> bool:
        """Return whether one domain is too small for such groups, however many of its nodes the job gets."""
        return self.unit(*sizes) > self.nodes

    def room(self, unit: int) -> int:
        """Return nodes of all domains, of which every domain gives a multiple of `unit`."""
        full, rest = divmod(self.count, self.nodes)
        return (full * (self.nodes // unit) + rest // unit) * unit

    def together(self, tp: int, ep: int) -> int | None:
        """Return the nodes of one domain that groups of these sizes need together; `ep` counts where the domains hold
        such groups.

        None if no group spans nodes, if a domain is one node, if it holds all nodes, and if the groups leave the
        domains anyway.
        """
        if self.nodes == 1 or self.count <= self.nodes:
            return None
        for sizes in ((tp, ep), (tp,)):
            if not self.are_crossed_by(*sizes):
                unit = self.unit(*sizes)
                return unit if unit > 1 else None
        return None


def domains_of(cluster: ClusterPlan, group: GroupPlan) -> tuple[Domain, ...]:
    """Return the group's NVLink domains with those of their hosts that a document names; none of which it names no host."""
    size = Domains(group.nvlink_domain, max(1, group.gpus), group.count).nodes
    hosts: dict[int, list[str]] = {}
    for node in cluster.nodes:
        if node.group == group.name and node.host is not None:
            hosts.setdefault(node.index // size, []).append(node.host)
    return tuple(Domain(f"{group.name}-domain-{number + 1}", tuple(names)) for number, names in sorted(hosts.items()))


def partner_segment(group: GroupPlan, slots: int, together: int | None) -> int:
    """Return how many slots in a row are in one NVLink domain, if the job fills more than one; 1 otherwise.

    Domains are filled by as many multiples of the `together` nodes that must be in one as they have.
    """
    nodes, unit = Domains(group.nvlink_domain, max(1, group.gpus), group.count).nodes, together or 1
    filled = nodes // unit * unit
    return filled if 1 < filled < slots else 1


def segment_nodes(group: GroupPlan, tp: int, ep: int) -> int | None:
    """Return nodes that must come from one NVLink domain together, and as multiples of which every domain is used.

    None where that does not matter (`Domains.together`).
    """
    return Domains(group.nvlink_domain, max(1, group.gpus), group.count).together(tp, ep)
