"""Checks the Inventory documents of a cluster: each by itself, against its cluster, and against the others."""

import re
from collections.abc import Collection, Iterator, Sequence

from msgspec import Struct
from msgspec.structs import replace

from headway.jobspec.check.cables import MISSPELT, Cabling, check_nics, check_room
from headway.jobspec.check.names import check_host, check_unique, group_hint, normal_host
from headway.jobspec.check.switches import in_network
from headway.jobspec.document import Path
from headway.jobspec.parse import Parsed
from headway.jobspec.problem import CLUSTER, Problem, Severity
from headway.jobspec.resolve.inventory import Observed
from headway.jobspec.spec.cluster import Cluster
from headway.jobspec.spec.inventory import Inventory, ObservedNic, ObservedNode, ObservedSwitch
from headway.jobspec.spec.nodes import NodeGroup
from headway.jobspec.suggest import Hint, nearest


def check_inventory(inventory: Parsed[Inventory]) -> Iterator[Problem]:
    """Yield the document's problems that do not depend on its cluster."""
    for path, device in _devices(inventory):
        if device.host is not None:
            yield from check_host(inventory.document.name, (*path, "host"), device.host)
        if isinstance(device, ObservedNode):
            yield from _check_own_nics(inventory.document.name, (*path, "nics"), device.nics)


def check_inventories(cluster: Cluster, inventories: Sequence[Parsed[Inventory]], *, has_all: bool = True) -> Iterator[Problem]:
    """Check all inventories of a cluster that passed its checks against it and each other, in addition to the problems of each.

    If others, or parts of these, cannot be read (not `has_all`), nothing is reported as missing.
    """
    cabling = Cabling(cluster)
    named = {device.name for inventory in inventories for _, device in _devices(inventory)}
    for inventory in inventories:
        yield from _check_against(cabling, inventory, named)
    yield from _check_names_once(cluster, inventories)
    yield from _check_once(cabling, inventories)
    if has_all:
        yield from _check_reach(cluster, inventories)


def check_places(cluster: Cluster, inventories: Sequence[Inventory]) -> Iterator[Problem]:
    """Check the resulting places of all nodes, also unobserved ones, if everything above is right."""
    observed = Observed.of(inventories)
    for index, fabric in enumerate(cluster.fabrics):
        if fabric.switches is not None:
            yield from check_room(("fabrics", index), fabric, cluster, observed)


def _devices(inventory: Parsed[Inventory]) -> Iterator[tuple[Path, ObservedNode | ObservedSwitch]]:
    """Return the nodes and switches of the valid sections, with their paths."""
    if inventory.has(("nodes",)):
        yield from ((("nodes", index), node) for index, node in enumerate(inventory.spec.nodes))
    if inventory.has(("switches",)):
        yield from ((("switches", index), switch) for index, switch in enumerate(inventory.spec.switches))


def _check_own_nics(document: str, path: Path, nics: Sequence[ObservedNic]) -> Iterator[Problem]:
    yield from check_unique(document, path, "name", [nic.name for nic in nics])
    for index, nic in enumerate(nics):
        if (nic.switch is None) != (nic.port is None):
            found, lacking = ("port", "switch") if nic.switch is None else ("switch", "port")
            message = f"`{found}` without `{lacking}`"
            hint = "set both or neither: a cable leads to a port of a switch"
            yield Problem("HW210", document, (*path, index, found), message, hint, at_key=True)


def _check_against(cabling: Cabling, inventory: Parsed[Inventory], named: Collection[str]) -> Iterator[Problem]:
    """Check that each name of the inventory is one of the cluster's."""
    name, cluster = inventory.document.name, cabling.cluster
    apart = [
        problem
        for path, device in _devices(inventory)
        if device.host is not None
        for problem in _check_apart(cluster, name, (*path, "host"), device.host)
    ]
    # One network is one mistake, however many hosts are in it.
    more = f", and {len(apart) - 1} more" if len(apart) > 1 else ""
    yield from (replace(problem, message=f"{problem.message}{more}") for problem in apart[:1])
    for path, device in _devices(inventory):
        if isinstance(device, ObservedSwitch):
            yield from _check_switch(cabling, name, (*path, "name"), device.name, named)
            yield from _check_guid(cabling, name, (*path, "guid"), device)
            continue
        nodes = _group_of(cluster, device.name)
        if nodes is None:
            yield from _no_node(cluster, name, (*path, "name"), device.name, named)
        else:
            yield from _check_listed(nodes, name, (*path, "host"), device)
            yield from check_nics(cabling, nodes, name, (*path, "nics"), device.nics)


def _group_of(cluster: Cluster, node: str) -> NodeGroup | None:
    """Return the group of the node; None when the cluster has no such node."""
    group, _, number = node.rpartition("-")
    nodes = next((nodes for nodes in cluster.node_groups if nodes.name == group), None)
    if nodes is None or not number.isdecimal() or number.startswith("0") or int(number) > nodes.count:
        return None
    return nodes


def _no_node(cluster: Cluster, document: str, path: Path, name: str, named: Collection[str]) -> Iterator[Problem]:
    group, _, number = name.rpartition("-")
    groups = {nodes.name: nodes.count for nodes in cluster.node_groups}
    if group in groups and number.startswith("0") and number.isdecimal() and 1 <= (plain := max(1, int(number))) <= groups[group]:
        message = f"the group `{group}` has no node `{name}`: its nodes count from 1, without zeros in front"
        fix = f"{group}-{plain}"
        yield Problem("HW520", document, path, message, f"write `{fix}`", fix=fix)
        return
    if group in groups:
        message = f"the group `{group}` has no node `{name}`: it has {groups[group]}, from `{group}-1` on"
        raised = f"raise `count` in the document of `{cluster.name}`"
        hint = Hint(f"{raised}, or remove the node here")
        if (free := _only_free(cluster, group, named)) is not None:
            hint = Hint(f"write `{free}`, which has no entry yet; or {raised}", free)
    else:
        message = f"`{name}` is not in any node group of `{cluster.name}`: a node is named by its group and a number"
        near = group_hint(group, {nodes.name: nodes.gpu is not None for nodes in cluster.node_groups})
        hint = near
        if near.fix is not None and number.isdecimal() and 1 <= int(number) <= groups[near.fix]:
            meant = f"{near.fix}-{int(number)}"
            hint = Hint(f"did you mean `{meant}`?", meant)
        number = number if number.isdecimal() else (re.findall(r"[0-9]{1,9}$", name) or [""])[0]
        if len(groups) == 1 and number.isdecimal() and 1 <= int(number) <= next(iter(groups.values())):
            only = f"{next(iter(groups))}-{int(number)}"
            hint = Hint(f"write `{only}`", only)
    yield Problem("HW520", document, path, message, hint.text, fix=hint.fix if hint.fix and "-" in hint.fix else None)


def _only_free(cluster: Cluster, group: str, named: Collection[str]) -> str | None:
    """Return the only node of the group that no inventory names; None if there are several, or none."""
    count = next((nodes.count for nodes in cluster.node_groups if nodes.name == group), 0)
    free = [f"{group}-{number}" for number in range(1, min(count, _MOST_LISTED) + 1) if f"{group}-{number}" not in named]
    return free[0] if len(free) == 1 else None


def _check_switch(cabling: Cabling, document: str, path: Path, name: str, named: Collection[str]) -> Iterator[Problem]:
    if cabling.shapes and name not in cabling.switches:
        shapes = [shape for fabric, shape in cabling.shapes.items() if name.startswith(f"{fabric}-")] or cabling.shapes.values()
        message = f"`{cabling.cluster.name}` has no switch `{name}`"
        tiers = [
            (name_of, count)
            for shape in shapes
            for name_of, count in (
                (shape.leaf, shape.sizes.leaves),
                (shape.spine, shape.sizes.spines),
                (shape.core, shape.sizes.cores),
            )
        ]
        hint = f"it has {' and '.join(f'`{name_of(0)}` to `{name_of(count - 1)}`' for name_of, count in tiers if count)}"
        near = nearest(name, cabling.switches, MISSPELT)
        tier = name.rpartition("-")[0]
        whole = [each for each in cabling.switches if each.endswith(f"-{name}")]
        free = [each for each in cabling.switches if each.rpartition("-")[0] == tier and each not in named]
        if len(whole) == 1:
            near, hint = whole[0], f"write `{whole[0]}`, with the name of its fabric"
        elif len(free) == 1:
            near, hint = free[0], f"write `{free[0]}`, which has no entry yet; {hint}"
        elif near is not None:
            hint = f"did you mean `{near}`? {hint}"
        yield Problem("HW520", document, path, message, hint, fix=near)


def _check_guid(cabling: Cabling, document: str, path: Path, switch: ObservedSwitch) -> Iterator[Problem]:
    """Warn about a GUID, which the subnet manager of InfiniBand reads, of a switch of Ethernet."""
    fabric = next((each for each in cabling.cluster.fabrics if switch.name.startswith(f"{each.name}-")), None)
    if switch.guid is not None and switch.name in cabling.switches and fabric is not None and fabric.transport != "infiniband":
        message = f"`guid` has no effect: `{switch.name}` is a switch of the {fabric.transport} fabric `{fabric.name}`"
        yield Problem("HW504", document, path, message, "leave it out", Severity.WARNING, at_key=True)


def _check_listed(nodes: NodeGroup, document: str, path: Path, node: ObservedNode) -> Iterator[Problem]:
    """Check that the address is the one that the group lists, if it lists them."""
    index = int(node.name.rpartition("-")[2]) - 1
    listed = nodes.hosts[index] if index < len(nodes.hosts) else None
    if node.host is not None and listed is not None and normal_host(listed) != normal_host(node.host):
        message = f"`{node.name}` is at `{node.host}` here, but at `{listed}` in the `hosts` of its group"
        yield Problem("HW512", document, path, message, "keep one of the two")


def _check_apart(cluster: Cluster, document: str, path: Path, host: str) -> Iterator[Problem]:
    """Check that hosts are reached over SSH by addresses of another network than a fabric's links."""
    for fabric in cluster.fabrics:
        if fabric.switches is not None and in_network(host.partition(":")[0], fabric.switches.addresses):
            message = f"`{host}` is in {fabric.switches.addresses}, the network of the links of the fabric `{fabric.name}`"
            hint = "give the fabric's switches other `addresses`, or use the address of another interface"
            yield Problem("HW511", document, path, message, hint)


def _check_names_once(cluster: Cluster, inventories: Sequence[Parsed[Inventory]]) -> Iterator[Problem]:
    first: dict[tuple[str | int, str], str] = {}
    devices: dict[str, ObservedNode | ObservedSwitch] = {}
    for inventory in inventories:
        document = inventory.document
        for path, device in _devices(inventory):
            before = devices.setdefault(f"{path[0]}/{device.name}", device)
            span = document.span((*path, "name"))
            here = f"{document.name}:{span.line + 1 if span else 1}"
            there = first.setdefault((path[0], device.name), here)
            if there != here:
                is_other = any(
                    None is not getattr(before, name) != getattr(device, name) is not None for name in ("host", "serial")
                )
                taken = {name for kind, name in first if kind == path[0]} | _later(inventory, device.name)
                free = _only_free(cluster, device.name.rpartition("-")[0], taken) or _unnamed(device.name, taken)
                own = f"write `{free}`, which has no entry" if free is not None else "give the other device its own name"
                merged = "remove it here" if device == before else "merge the two entries"
                hint = own if is_other or _share_adapters(before, device) else merged
                message = f"`{device.name}` is already in {there}"
                yield Problem("HW521", document.name, (*path, "name"), message, hint)


def _share_adapters(one: ObservedNode | ObservedSwitch, other: ObservedNode | ObservedSwitch) -> bool:
    """Return whether both have an adapter of one name and they differ, so that no single node has all of it."""
    if not isinstance(one, ObservedNode) or not isinstance(other, ObservedNode):
        return False
    named = {nic.name: nic for nic in one.nics}
    return any(nic.name in named and nic != named[nic.name] for nic in other.nics)


def _later(inventory: Parsed[Inventory], name: str) -> set[str]:
    """Return the names of all devices of the inventory."""
    return {device.name for _, device in _devices(inventory)} | {name}


def _unnamed(name: str, taken: set[str]) -> str | None:
    """Return the one name that is missing between those with the same stem, `h100-2` of `h100-1` and `h100-3`, or the next one."""
    stem, dash, number = name.rpartition("-")
    if not dash or not number.isdecimal():
        return None
    numbers = {int(each[len(stem) + 1 :]) for each in taken if each.startswith(f"{stem}-") and each[len(stem) + 1 :].isdecimal()}
    if max(numbers) > _MOST_LISTED:
        return None
    missing = [count for count in range(1, max(numbers) + 1) if count not in numbers] or [max(numbers) + 1]
    return f"{stem}-{missing[0]}" if len(missing) == 1 else None


# A gap in more numbers than these is not looked for.
_MOST_LISTED = 1000


class _Fact(Struct, frozen=True):
    """A value that only one device can have: `what` it is, of which device, and its place in the document; of a port its switch, and the
    `others` that this has for nodes."""

    what: str
    owner: str
    document: str
    path: Path
    switch: str = ""
    others: Sequence[str] = ()


def _check_once(cabling: Cabling, inventories: Sequence[Parsed[Inventory]]) -> Iterator[Problem]:
    """Check that no address, serial number or port belongs to two; the cluster's document comes first."""
    owners = {fact.what: fact.owner for fact in _facts_of_cluster(cabling.cluster)}
    facts = [fact for inventory in inventories for fact in _facts(inventory, cabling)]
    taken = {fact.what for fact in facts}
    for fact in facts:
        owner = owners.setdefault(fact.what, fact.owner)
        if owner != fact.owner:
            free = next((port for port in fact.others if _cable(port, fact.switch) not in taken), None)
            hint = "correct one of the two entries" + (f": `{free}` of `{fact.switch}` is free" if free is not None else "")
            yield Problem("HW521", fact.document, fact.path, f"{fact.what} is already that of {owner}", hint)


def _facts_of_cluster(cluster: Cluster) -> Iterator[_Fact]:
    for nodes in cluster.node_groups:
        for place, host in enumerate(nodes.hosts):
            yield _Fact(_address(host), f"`{nodes.name}-{place + 1}`", CLUSTER, ())


def _facts(inventory: Parsed[Inventory], cabling: Cabling) -> Iterator[_Fact]:
    name = inventory.document.name
    for path, device in _devices(inventory):
        if device.host is not None:
            yield _Fact(_address(device.host), f"`{device.name}`", name, (*path, "host"))
        if device.serial is not None:
            yield _Fact(f"the serial number `{device.serial}`", f"`{device.name}`", name, (*path, "serial"))
        if not isinstance(device, ObservedNode) and device.guid is not None:
            yield _Fact(f"the GUID `{device.guid}`", f"`{device.name}`", name, (*path, "guid"))
        if isinstance(device, ObservedNode):
            yield from _facts_of_nics(device, name, (*path, "nics"), cabling)


def _facts_of_nics(node: ObservedNode, document: str, path: Path, cabling: Cabling) -> Iterator[_Fact]:
    for index, nic in enumerate(node.nics):
        owner = f"`{nic.name}` of `{node.name}`"
        if nic.mac is not None:
            yield _Fact(f"the hardware address `{nic.mac}`", owner, document, (*path, index, "mac"))
        shape, _ = cabling.rails.get((node.name.rpartition("-")[0], nic.name), (None, 0))
        # A switch of another fabric is a problem of its own.
        if nic.switch is not None and nic.port is not None and (shape is None or nic.switch in shape.leaves):
            others = () if shape is None else tuple(shape.node_ports)
            yield _Fact(_cable(nic.port, nic.switch), owner, document, (*path, index, "port"), nic.switch, others)


def _cable(port: str, switch: str) -> str:
    return f"the cable in `{port}` of `{switch}`"


def _address(host: str) -> str:
    return f"the address `{normal_host(host)}`"


def _check_reach(cluster: Cluster, inventories: Sequence[Parsed[Inventory]]) -> Iterator[Problem]:
    """Check that if anything must reach the nodes, some document has their addresses."""
    observed = any(isinstance(device, ObservedNode) and device.host for each in inventories for _, device in _devices(each))
    if cluster.provider is not None and not observed and not any(nodes.hosts for nodes in cluster.node_groups):
        message = "the cluster has a provider, but no node has an address"
        yield Problem("HW512", CLUSTER, ("provider",), message, "add `hosts` to a group of nodes", at_key=True)
