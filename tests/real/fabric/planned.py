"""A cluster's plan as a fabric of namespaces: its switches with their files, its cables, its nodes."""

from collections.abc import Mapping

from headway.jobspec.plan import ClusterPlan, LinkPlan

from .fabric import Fabric
from .wiring import Link, Nic, Port


def planned_fabric(cluster: ClusterPlan, files: Mapping[str, Mapping[str, str]]) -> Fabric:
    """`files`: switch -> its files by their names in /etc/frr."""
    hosts: dict[str, dict[str, Nic]] = {}
    for link in cluster.links:
        if link.address is not None:
            hosts.setdefault(link.b, {})[link.b_port] = Nic(link.address, _gateway(cluster, link))
    return Fabric(files, [cable(link) for link in cluster.links], hosts)


def cable(link: LinkPlan) -> Link:
    return Link(Port(link.a, link.a_port), Port(link.b, link.b_port))


def _gateway(cluster: ClusterPlan, link: LinkPlan) -> str:
    """The address of the switch's end."""
    ports = (port for switch in cluster.switches if switch.name == link.a for port in switch.ports)
    (address,) = [port.address for port in ports if port.name == link.a_port]
    assert address is not None
    return address.partition("/")[0]
