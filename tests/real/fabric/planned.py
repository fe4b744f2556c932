"""Builds a cluster's plan as a fabric of namespaces: its switches with their files, its cables, its nodes."""

import json
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path

from headway.jobspec.plan import ClusterPlan, LinkPlan
from headway.templates.hosts.render import SCRIPT

from .fabric import Fabric
from .wiring import Link, Nic, Port


def sonic_fabric(cluster: ClusterPlan, rendered: Path) -> Fabric:
    """Every switch and node as its folder in `rendered` (a cluster's) describes it: FRR with `frr/frr.conf`, ports and addresses of
    `config_db.json`, and the addresses, routes and rules that `headway-qos` sets."""
    switches = rendered / "switches"
    files = {switch.name: {"frr.conf": (switches / switch.name / "frr/frr.conf").read_text()} for switch in cluster.switches}
    systems = {
        switch.name: list(_as_sonic(switch.name, json.loads((switches / switch.name / "config_db.json").read_text())))
        for switch in cluster.switches
    }
    for node in cluster.nodes:
        systems[node.name] = [as_host(node.name, (rendered / "hosts" / node.name / SCRIPT.relative_to("/")).read_text())]
    return planned_fabric(cluster, files, systems)


def as_host(node: str, script: str) -> str:
    """The part of the script about addresses, in the node's namespace."""
    return shlex.join(["ip", "netns", "exec", node, "bash", "-e", "-c", addresses_of(script)])


def addresses_of(script: str) -> str:
    """The part of the script about addresses, with adapters that are network interfaces of that name: there is no RDMA here."""
    functions = script.partition("# Each is tried")[0]
    calls = [line.partition(" & ")[0] for line in script.splitlines() if line.startswith("set_address ")]
    return "\n".join([functions, 'netdev_of() { echo "$1"; }', *calls])


def _as_sonic(switch: str, tables: Mapping[str, Mapping[str, Mapping[str, str]]]) -> Iterator[str]:
    """The work of portmgrd and intfmgrd with the tables: ports up or down, and addresses. This kernel has no dummy interface, so the
    loopback's are on lo."""
    ip = ["ip", "-n", switch]
    for port, row in tables["PORT"].items():
        state = shlex.join([*ip, "link", "set", port, row["admin_status"]])
        # ports without a cable do not exist here
        yield f"! {shlex.join([*ip, 'link', 'show', port])} >/dev/null 2>&1 || {state}"
    for table, interface in (("INTERFACE", None), ("LOOPBACK_INTERFACE", "lo")):
        for key in tables[table]:
            port, _, address = key.partition("|")
            if address:
                yield shlex.join([*ip, "address", "add", address, "dev", interface or port])
    forwarding = "echo 1 >/proc/sys/net/ipv4/ip_forward; echo 1 >/proc/sys/net/ipv6/conf/all/forwarding"
    yield shlex.join(["ip", "netns", "exec", switch, "bash", "-c", forwarding])


def kernel_settings(switch: str, text: str) -> str:
    """The effect of `sysctl --system` with the file of a Linux switch."""
    return f"printf %s {shlex.quote(text)} | {shlex.join(['ip', 'netns', 'exec', switch, 'sysctl', '-q', '-p', '-'])}"


def planned_fabric(
    cluster: ClusterPlan, files: Mapping[str, Mapping[str, str]], systems: Mapping[str, list[str]] | None = None
) -> Fabric:
    """`files`: switch -> its files by their names in /etc/frr; `systems`: switch -> commands of its operating system."""
    hosts: dict[str, dict[str, Nic]] = {}
    for link in cluster.links:
        if link.address is not None:
            hosts.setdefault(link.b, {})[link.b_port] = Nic(link.address, _gateway(cluster, link))
    return Fabric(files, [cable(link) for link in cluster.links], hosts, systems or {})


def cable(link: LinkPlan) -> Link:
    return Link(Port(link.a, link.a_port), Port(link.b, link.b_port))


def _gateway(cluster: ClusterPlan, link: LinkPlan) -> str:
    """The address of the switch's end."""
    ports = (port for switch in cluster.switches if switch.name == link.a for port in switch.ports)
    (address,) = [port.address for port in ports if port.name == link.a_port]
    assert address is not None
    return address.partition("/")[0]
