"""Gives the ports of a cluster's switches the names that their operating systems show: LLDP reports those, and people read them."""

from msgspec.structs import replace

from headway.jobspec.plan import ClusterPlan, LinkPlan
from headway.templates.ports import named
from headway.templates.switches import SWITCHES


def with_names(cluster: ClusterPlan) -> ClusterPlan:
    """Return the cluster with those names, in switches and links; it has the plan's where the systems of a fabric name none."""
    chosen = {
        fabric.name: next((name for kind in fabric.os if (name := SWITCHES[kind].port_name) is not None), None)
        for fabric in cluster.fabrics
    }
    if not any(chosen.values()):
        return cluster
    switches = {
        switch.name: switch if (name := chosen[switch.fabric]) is None else named(switch, cluster, name)
        for switch in cluster.switches
    }
    shown = {
        (old.name, was.name): port.name
        for old in cluster.switches
        for was, port in zip(old.ports, switches[old.name].ports, strict=True)
    }

    def link(each: LinkPlan) -> LinkPlan:
        return replace(
            each,
            a_port=shown.get((each.a, each.a_port), each.a_port),
            b_port=shown.get((each.b, each.b_port), each.b_port),
        )

    return replace(cluster, switches=tuple(switches.values()), links=tuple(map(link, cluster.links)))
