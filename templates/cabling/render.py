"""Renders a cluster's cables: a table for the people who pull them, a graph for programs that check them, and a laboratory."""

import csv
import io
import json
from collections.abc import Callable, Mapping

from headway.jobspec.plan import ClusterPlan, LinkPlan

# FRR's own image, of the release whose files are tested; a node of the laboratory needs nothing but iproute2, which it has too.
_FRR_IMAGE = "quay.io/frrouting/frr:8.4.4"


def csv_text(cluster: ClusterPlan) -> str:
    """Return a row for each cable: its number, both ends, speed, length and what it connects."""
    out = io.StringIO()
    table = csv.writer(out, lineterminator="\n")
    table.writerow(["cable", "from", "from_port", "to", "to_port", "gbps", "metres", "tier"])
    for number, link in enumerate(cluster.links, 1):
        table.writerow([number, link.a, link.a_port, link.b, link.b_port, link.gbps, link.metres, _tier(cluster, link)])
    return out.getvalue()


def dot_text(cluster: ClusterPlan) -> str:
    """Return the graph in the form of Cumulus' Prescriptive Topology Manager: one line for each cable."""
    lines = [f"graph {_quoted(cluster.name)} {{"]
    lines += [f"  {_quoted(switch.name)} [role={switch.role}];" for switch in cluster.switches]
    for node in sorted({link.b for link in cluster.links} - cluster.switch_roles.keys(), key=_natural_key(cluster)):
        lines.append(f"  {_quoted(node)} [role=node];")
    lines += [
        f"  {_quoted(link.a)}:{_quoted(link.a_port)} -- {_quoted(link.b)}:{_quoted(link.b_port)};" for link in cluster.links
    ]
    return "\n".join([*lines, "}"]) + "\n"


def containerlab_text(cluster: ClusterPlan) -> str:
    """Return a containerlab topology of Linux containers. A switch of FRR starts with its rendered file, relative to the folder that
    `headway render` writes for the cluster."""
    os = {switch.name: cluster.fabric(switch.fabric).os for switch in cluster.switches}
    lines = [f"name: {cluster.name}", "topology:", "  kinds:", "    linux:", f"      image: {_FRR_IMAGE}", "  nodes:"]
    for switch in cluster.switches:
        lines += [f"    {switch.name}:", "      kind: linux", f"      labels: {{role: {switch.role}}}"]
        if "frr" in os[switch.name]:
            lines += ["      binds:", f"        - switches/{switch.name}/frr.conf:/etc/frr/frr.conf"]
    wired = {link.b for link in cluster.links}
    for node in (node for node in cluster.nodes if node.name in wired):
        lines += [f"    {node.name}:", "      kind: linux", "      labels: {role: node}"]
    lines.append("  links:")
    for link in cluster.links:
        lines.append(f"    - endpoints: [{json.dumps(f'{link.a}:{link.a_port}')}, {json.dumps(f'{link.b}:{link.b_port}')}]")
    return "\n".join(lines) + "\n"


FORMATS: Mapping[str, Callable[[ClusterPlan], str]] = {"csv": csv_text, "dot": dot_text, "containerlab": containerlab_text}


def _tier(cluster: ClusterPlan, link: LinkPlan) -> str:
    roles = cluster.switch_roles
    return f"node-{roles[link.a]}" if link.b not in roles else f"{roles[link.a]}-{roles[link.b]}"


def _natural_key(cluster: ClusterPlan) -> Callable[[str], int]:
    order = {node.name: index for index, node in enumerate(cluster.nodes)}
    return lambda name: order[name]


def _quoted(text: str) -> str:
    return json.dumps(text)
