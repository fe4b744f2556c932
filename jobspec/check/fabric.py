"""Checks fabrics: each setting must fit its transport, each transport its role, and redundant settings must agree."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from ipaddress import IPv4Network

from headway.jobspec.catalog.nics import nics
from headway.jobspec.check.fabrics_apart import check_numbers_apart
from headway.jobspec.check.names import check_unique
from headway.jobspec.check.nodes import are_named_apart, are_on_fabrics
from headway.jobspec.check.qos import check_classes
from headway.jobspec.check.switches import check_planes, check_switches, in_network
from headway.jobspec.document import Path
from headway.jobspec.notation import counted
from headway.jobspec.problem import CLUSTER, Problem, Severity
from headway.jobspec.resolve.fabric import SWITCHED_SHAPES, leaf_links, leaf_oversubscription
from headway.jobspec.resolve.nodes import adapters_on
from headway.jobspec.resolve.qos import RDMA, congestion_of
from headway.jobspec.resolve.sizes import are_counted, rails_of
from headway.jobspec.spec.cluster import Cluster
from headway.jobspec.spec.fabric import Fabric, Switches, TrafficClass
from headway.jobspec.spec.nodes import NodeGroup
from headway.jobspec.suggest import listed

_RDMA = ("roce", "infiniband")
# Its check refuses a class in the queue of the control plane.
_JUDGE_QUEUES = {"eos"}
# Reads the variables of Google's plugin into the shell (docs.cloud.google.com, GPUDirect-TCPXO).
_GOOGLES_SCRIPT = re.compile(r"(?:^|[\s;&])(?:\.|source)\s+\S*nccl-env-profile[\w-]*\.sh")
_SHAPES_OF_RAILS = ("rail-optimized", "rail-only")

_SWITCHED = ("roce", "infiniband", "efa", "tcpxo", "tcp")
_OF_TRANSPORTS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("classes", ("roce",)),
    ("switches", ("roce", "infiniband")),
    ("sharp", ("infiniband",)),
    ("service_level", ("infiniband",)),
    ("interface", ("tcp",)),
    ("congestion", ("roce", "infiniband", "efa", "tcpxo")),
    ("balancing", _SWITCHED),
    ("shape", _SWITCHED),
    ("rails", _SWITCHED),
    ("planes", _SWITCHED),
    ("pods", _SWITCHED),
    ("oversubscription", _SWITCHED),
)

# Routes on InfiniBand are static or adaptive (NCCL_IB_ADAPTIVE_ROUTING in NVIDIA/nccl docs/userguide/source/env.rst). EFA's own
# transport delivers out of order (fi_efa(7), SRD). Queue pairs are RoCE's, and TCP takes packets out of order for losses (RFC 5681).
_BALANCING: Mapping[str, tuple[str, ...]] = {
    "infiniband": ("ecmp", "adaptive"),
    "efa": ("ecmp", "spray"),
    "tcpxo": ("ecmp", "ucmp", "dlb"),
    "tcp": ("ecmp", "ucmp", "dlb"),
}

# Whether a class of RDMA is lossless, and whether switches mark it; None is either.
_SCHEMES: Mapping[str, tuple[bool, bool | None]] = {
    "pfc": (True, False),
    "pfc-ecn": (True, True),
    "ecn-lossy": (False, True),
    "trim-lossy": (False, None),
    "nic-managed": (False, None),
}


def check_fabrics(cluster: Cluster) -> Iterator[Problem]:
    """Check each fabric."""
    yield from check_unique(CLUSTER, ("fabrics",), "name", [fabric.name for fabric in cluster.fabrics])
    for index, fabric in enumerate(cluster.fabrics):
        path = ("fabrics", index)
        # The cluster has no groups with problems.
        groups = cluster.node_groups if "node_groups" in cluster.model_fields_set else ()
        yield from _check_role(path, fabric, has_scale_out=any(each.role == "scale-out" for each in cluster.fabrics))
        yield from _check_fabric(path, fabric, groups)
        yield from _check_interface(path, fabric)
        yield from _check_foreign(path, fabric)
        yield from _check_routed(path, fabric)
        kinds = set() if fabric.switches is None else {os.kind for os in fabric.switches.os}
        yield from check_classes(
            (*path, "classes"), fabric.classes, are_rendered=fabric.switches is not None, are_judged=kinds == _JUDGE_QUEUES
        )
        yield from _check_congestion(path, fabric)
        yield from _check_protection(path, fabric)
        yield from _check_balancing(path, fabric)
        yield from _check_shape(path, fabric)
        yield from _check_pending(path, fabric)
    yield from _check_second(cluster.fabrics)


def check_cabling(cluster: Cluster) -> Iterator[Problem]:
    """Check that planes and rails fit the adapters, and that the switches have ports and addresses for them."""
    for index, fabric in enumerate(cluster.fabrics):
        yield from check_planes(("fabrics", index), fabric, cluster.node_groups)
        yield from _check_shared_rails(fabric, cluster.node_groups)
    if any(len({nic.name for nic in nodes.nics}) < len(nodes.nics) for nodes in cluster.node_groups):
        # An adapter that is listed twice is missing once: what follows from their number is not what is meant.
        return
    for index, fabric in enumerate(cluster.fabrics):
        if fabric.switches is None:
            continue
        problems = list(check_switches(("fabrics", index), fabric, cluster.node_groups))
        yield from problems
        if fabric.transport != "infiniband":
            yield from _check_hosts_apart(fabric.switches, cluster)
        if are_counted(fabric) or not any(problem.severity is Severity.ERROR for problem in problems):
            yield from _check_oversubscription(("fabrics", index), fabric, cluster.node_groups)
    yield from check_numbers_apart(cluster)


def check_scale_out(cluster: Cluster) -> Iterator[Problem]:
    """Check that GPU nodes have a fabric between them, adapters on it, and settings of NCCL for it."""
    if not are_named_apart(cluster.fabrics):
        return
    fabrics = [(index, fabric) for index, fabric in enumerate(cluster.fabrics) if fabric.role == "scale-out"]
    for place, fabric in fabrics[:1]:
        yield from _check_rails(("fabrics", place), fabric, cluster.node_groups)
    for index, nodes in enumerate(cluster.node_groups):
        if nodes.gpus and fabrics:
            if are_on_fabrics(nodes, cluster.fabrics):
                yield from _check_adapters(("node_groups", index), nodes, fabrics[0][1])
        elif nodes.gpus and nodes.count > 1:
            message = f"no fabric has the role `scale-out`, so NCCL itself chooses the network between the nodes `{nodes.name}`"
            hint = "add it to `fabrics`, for example `{name: rails, role: scale-out, transport: infiniband}`"
            yield Problem("HW601", CLUSTER, ("node_groups", index), message, hint, Severity.WARNING)


def _check_hosts_apart(switches: Switches, cluster: Cluster) -> Iterator[Problem]:
    """Check that nodes are reached over SSH by addresses of another network than the fabric's."""
    hosts = [(group, place, host) for group, nodes in enumerate(cluster.node_groups) for place, host in enumerate(nodes.hosts)]
    inside = [each for each in hosts if in_network(each[2].partition(":")[0], switches.addresses)]
    if inside:
        # One network is one mistake, however many hosts are in it.
        group, place, host = inside[0]
        others = f" and {len(inside) - 1} more are" if len(inside) > 1 else " is"
        message = f"`{host}`{others} in {switches.addresses}, the network of the fabric's links"
        hint = "give the fabric's switches other `addresses`, or the hosts the addresses of another interface"
        if len(inside) == len(hosts) and (free := _other_network(switches, [each[2] for each in hosts])) is not None:
            hint = f"set `addresses: {free}` of the fabric's switches, or give the hosts the addresses of another interface"
        yield Problem("HW511", CLUSTER, ("node_groups", group, "hosts", place), message, hint)


def _other_network(switches: Switches, hosts: Sequence[str]) -> str | None:
    """Return a private network of the same size without the hosts and the loopbacks, if one of a few is."""
    prefix = switches.addresses.partition("/")[2]
    for begin in ("10.10.0.0", "10.20.0.0", "10.128.0.0", "172.16.0.0"):
        network = f"{begin}/{prefix}"
        try:
            overlaps = IPv4Network(network).overlaps(IPv4Network(switches.loopbacks))
        except ValueError:
            continue
        if not overlaps and not any(in_network(host.partition(":")[0], network) for host in hosts):
            return network
    return None


def _check_adapters(path: Path, nodes: NodeGroup, fabric: Fabric) -> Iterator[Problem]:
    """Check the adapters of an RDMA fabric, whose names NCCL needs."""
    if fabric.transport in _RDMA and not adapters_on(nodes, fabric):
        message = f"the fabric `{fabric.name}` is {fabric.transport}, but the nodes `{nodes.name}` list no adapter"
        message += " on it" if nodes.nics else ""
        hint = "list what `ibv_devices` prints on a node, for example `nics: [mlx5_0, mlx5_1]`"
        yield Problem("HW502", CLUSTER, path, message, hint)


def check_providers_script(cluster: Cluster) -> Iterator[Problem]:
    """Report variables that headway leaves to Google's script, unless `setup` of the scheduler runs it: the plugin refuses values other
    than those of its own version (NVIDIA/aicr#422)."""
    lines = cluster.scheduler.options.get("setup")
    is_run = isinstance(lines, list) and any(_GOOGLES_SCRIPT.search(line) for line in lines if isinstance(line, str))
    place = next((index for index, each in enumerate(cluster.fabrics) if each.role == "scale-out"), None)
    if place is None or is_run or not any(nodes.gpus for nodes in cluster.node_groups):
        return
    fabric = cluster.fabrics[place]
    if fabric.transport == "tcpxo":
        message = f"headway sets no variables of NCCL's network for {fabric.transport}: they come from the provider's script"
        hint = (
            "run it in `scheduler.options.setup`, for example `export NCCL_LIB_DIR=/var/lib/tcpxo/lib64; . "
            "$NCCL_LIB_DIR/nccl-env-profile.sh`; accept this with `ignore` where something else runs it"
        )
        yield Problem("HW606", CLUSTER, ("fabrics", place, "transport"), message, hint, Severity.WARNING)


def _check_rails(path: Path, fabric: Fabric, groups: Sequence[NodeGroup]) -> Iterator[Problem]:
    """Report a rail without adapters, unless adapters are numbered so that they skip rails."""
    on = [list(adapters_on(nodes, fabric).values()) for nodes in groups]
    most = max(map(len, on), default=0)
    leave_out = any(rails != list(range(len(rails))) for rails in on)
    if fabric.rails is not None and fabric.rails > most > 0 and not leave_out:
        message = (
            f"`{fabric.name}` has {counted(fabric.rails, 'rail')}, but no node has more than {counted(most, 'adapter')} on it"
        )
        yield Problem(
            "HW515", CLUSTER, (*path, "rails"), message, f"list the adapters of all rails, or use {counted(most, 'rail')}"
        )


def _check_shared_rails(fabric: Fabric, groups: Sequence[NodeGroup]) -> Iterator[Problem]:
    """Check that no two adapters of a node name one rail of a fabric whose shape has none; check/nodes.py checks the
    other shapes."""
    if fabric.shape in (None, *_SHAPES_OF_RAILS):
        return
    for index, nodes in enumerate(groups):
        taken: dict[int, str] = {}
        for place, nic in enumerate(nodes.nics):
            if nic.rail is None or nic.name not in adapters_on(nodes, fabric):
                continue
            other = taken.setdefault(nic.rail, nic.name)
            if other != nic.name:
                message = f"`{nic.name}` and `{other}` are both on rail {nic.rail} of `{fabric.name}`"
                hint = f"leave `rail` out: adapters have none in `{fabric.shape}`"
                yield Problem("HW515", CLUSTER, ("node_groups", index, "nics", place, "rail"), message, hint)


def _check_interface(path: Path, fabric: Fabric) -> Iterator[Problem]:
    """Check that it is one name: NCCL reads commas as a list, and `^` and `=` before it as "not" and "exactly"
    (NCCL_SOCKET_IFNAME).

    https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html
    """
    name = fabric.interface
    if name == "lo":
        message = "`lo` is the loopback interface, which reaches no other node"
        hint = "use the interface of the network, as `ip link` prints it, for example `interface: eth0`"
        yield Problem("HW505", CLUSTER, (*path, "interface"), message, hint, Severity.WARNING)
    if name is not None and re.fullmatch(r"[0-9]{1,3}(?:\.[0-9]{1,3}){3}(?:/[0-9]{1,2})?", name):
        message = f"`{name}` is an address; `interface` is the name of a network interface, the same on each node"
        hint = f"write the name that `ip -br address` prints with {name}, for example `interface: eth0`"
        yield Problem("HW505", CLUSTER, (*path, "interface"), message, hint)
    elif fabric.transport == "tcp" and name is not None and ("," in name or name[0] in "^="):
        message = f"`{name}` is NCCL's notation for a choice of interfaces; the name of one interface is required"
        hint = "use a name that `ip link` prints, for example `interface: eth0`; headway adds what NCCL needs"
        yield Problem("HW505", CLUSTER, (*path, "interface"), message, hint)


def _can_be(fabric: Fabric, groups: Sequence[NodeGroup]) -> bool:
    """Return whether no group names adapters without the fabric's transport, which is a problem of its own."""
    named = [model for nodes in groups if nodes.nics and (model := nics().get(nodes.nic or "")) is not None]
    return all(fabric.transport in model.gbps for model in named)


def _check_role(path: Path, fabric: Fabric, *, has_scale_out: bool) -> Iterator[Problem]:
    """Check that role and transport fit each other."""
    name, transport = fabric.name, fabric.transport
    if fabric.role == "scale-up" and transport not in ("nvlink", "tcp") and not has_scale_out:
        message = f"the fabric `{name}` is {transport}, which does not fit the role `scale-up`: that is NVLink's"
        yield Problem("HW503", CLUSTER, (*path, "role"), message, "write `scale-out`", fix="scale-out")
    elif (transport == "nvlink") != (fabric.role == "scale-up"):
        message = f"the fabric `{name}` is {transport}, which does not fit the role `{fabric.role}`"
        is_roce = fabric.role != "scale-up" and bool(fabric.classes)
        hint = "write `roce`, which has `classes`" if is_roce else "`nvlink` is for `scale-up`, and `scale-up` is `nvlink`"
        yield Problem("HW503", CLUSTER, (*path, "transport"), message, hint, fix="roce" if is_roce else None)
    elif transport in ("efa", "tcpxo") and fabric.role != "scale-out":
        message = f"the fabric `{name}` is {transport}, which does not fit the role `{fabric.role}`"
        hint = f"`{transport}` is for `scale-out`; other traffic on such an instance uses `tcp`"
        yield Problem("HW503", CLUSTER, (*path, "transport"), message, hint)


def _check_fabric(path: Path, fabric: Fabric, groups: Sequence[NodeGroup]) -> Iterator[Problem]:
    name, transport = fabric.name, fabric.transport
    has_class = any(each.carries == "collectives" for each in fabric.classes)
    if transport == "roce" and fabric.role == "scale-out" and not has_class and _can_be(fabric, groups):
        hint = "set how its packets are marked, for example `classes: [{name: roce, carries: collectives, dscp: 26, lossless: true}]`"
        yield Problem("HW501", CLUSTER, path, f"the RoCE fabric `{name}` has no class that carries collectives", hint)
    if transport == "tcp" and fabric.interface is None:
        hint = "use a name that `ip link` prints, for example `interface: eth0`"
        yield Problem("HW505", CLUSTER, path, f"the TCP fabric `{name}` has no `interface`", hint)
    for index, each in enumerate(fabric.classes):
        if each.carries == "storage" and fabric.role != "storage":
            message = f"`{each.name}` carries storage, but `{name}` is a {fabric.role} fabric, whose RDMA is that of collectives"
            hint = "describe the network of the storage as a fabric with `role: storage`, and the adapters on it with `fabric`"
            is_meant = fabric.role == "scale-out" and not has_class
            hint = f"write `collectives`; or {hint}" if is_meant else hint
            fix = "collectives" if is_meant else None
            yield Problem("HW503", CLUSTER, (*path, "classes", index, "carries"), message, hint, fix=fix)


def _check_foreign(path: Path, fabric: Fabric) -> Iterator[Problem]:
    """Report settings that only other transports have."""
    for key, owners in _OF_TRANSPORTS:
        if key in fabric.model_fields_set and getattr(fabric, key) and fabric.transport not in owners:
            message = f"`{key}` has no effect on the {fabric.transport} fabric `{fabric.name}`"
            ways = ["leave it out", *([f"set `transport: {owners[0]}`"] if len(owners) == 1 else [])]
            if owners == ("infiniband",) and _has_subnet_manager(fabric):
                ways.reverse()
            hint = ", or ".join(ways)
            yield Problem("HW504", CLUSTER, (*path, key), message, hint, at_key=True)


def _has_subnet_manager(fabric: Fabric) -> bool:
    """Return whether its switches have a subnet manager, as InfiniBand has."""
    return fabric.switches is not None and any(choice.kind == "opensm" for choice in fabric.switches.os)


def _check_routed(path: Path, fabric: Fabric) -> Iterator[Problem]:
    """Report numbers of BGP on InfiniBand, whose subnet manager routes."""
    for key in ("asn", "loopbacks", "addresses"):
        if fabric.switches is not None and fabric.transport == "infiniband" and key in fabric.switches.model_fields_set:
            message = f"`{key}` has no effect on the infiniband fabric `{fabric.name}`: its subnet manager routes, not BGP"
            yield Problem("HW504", CLUSTER, (*path, "switches", key), message, "leave it out", at_key=True)


def _check_second(fabrics: Sequence[Fabric]) -> Iterator[Problem]:
    scale_out = [(index, fabric) for index, fabric in enumerate(fabrics) if fabric.role == "scale-out"]
    for index, fabric in scale_out[1:]:
        message = f"`{fabric.name}` is a second scale-out fabric, and NCCL uses one: `{scale_out[0][1].name}`"
        carried, hint, fix = {each.carries for each in fabric.classes}, "", None
        if carried and not carried & {"collectives", None} and "storage" in carried:
            hint, fix = "write `storage`, which its class carries", "storage"
        if not hint and fabric.transport == "tcp" and all(each.role != "management" for each in fabrics):
            hint, fix = "write `management`, the role of a network of the hosts", "management"
        hint = hint or "describe both as the `planes` of one fabric, or set this one's role by what else it carries"
        yield Problem("HW519", CLUSTER, ("fabrics", index, "role"), message, hint, fix=fix)


def _check_protection(path: Path, fabric: Fabric) -> Iterator[Problem]:
    """Warn about RDMA that is neither paused nor marked, where `congestion` does not name a scheme without both."""
    for index, each in enumerate(fabric.classes):
        is_bare = fabric.transport == "roce" and fabric.congestion is None and not each.lossless and each.ecn is None
        if each.carries in RDMA and is_bare:
            message = f"`{each.name}` is neither lossless nor marked: full queues drop RDMA packets, whose windows are sent again"
            hint = (
                "set `lossless: true`, or `ecn` with a class that carries `cnp`, or state the scheme as `congestion: nic-managed`"
            )
            yield Problem("HW532", CLUSTER, (*path, "classes", index), message, hint, Severity.WARNING, at_key=True)


def _check_congestion(path: Path, fabric: Fabric) -> Iterator[Problem]:
    scheme, at = fabric.congestion, (*path, "congestion")
    if scheme is None or fabric.transport in ("nvlink", "tcp"):
        return
    if fabric.transport != "roce":
        if scheme != "nic-managed":
            message = f"`{scheme}` is a scheme for Ethernet, but `{fabric.name}` is {fabric.transport}, which throttles its senders itself"
            yield Problem("HW516", CLUSTER, at, message, "leave `congestion` out, or set `nic-managed`")
        return
    for each in fabric.classes:
        if each.carries in RDMA and not _agrees(scheme, each):
            yield Problem("HW516", CLUSTER, at, _contradiction(scheme, each), _agreement(scheme, fabric.classes))
    if not fabric.classes and _SCHEMES[scheme][0] and fabric.role != "scale-out":
        message = f"`{scheme}` pauses a lossless class, but `{fabric.name}` has no classes"
        yield Problem("HW516", CLUSTER, at, message, "add its class with `lossless: true`, or leave `congestion` out")


def _agrees(scheme: str, each: TrafficClass) -> bool:
    lossless, marked = _SCHEMES[scheme]
    return each.lossless == lossless and marked in (None, each.ecn is not None)


def _contradiction(scheme: str, each: TrafficClass) -> str:
    lossless, marked = _SCHEMES[scheme]
    return (
        f"`{scheme}` requires a class that is {_described(lossless, marked)}; `{each.name}` is "
        f"{_described(each.lossless, bool(each.ecn))}"
    )


def _described(lossless: bool, marked: bool | None) -> str:
    drops = "lossless" if lossless else "not lossless"
    return drops if marked is None else f"{drops}, {'with' if marked else 'without'} `ecn`"


def _agreement(scheme: str, classes: Sequence[TrafficClass]) -> str:
    """Return the remedy: the scheme if all classes agree, else the class."""
    said, (lossless, marked) = congestion_of(classes), _SCHEMES[scheme]
    if said is not None:
        return f"set `congestion: {said}`, which the classes are for, or change the class"
    missing = [key for key, wanted in (("`lossless: true`", lossless), ("`ecn`", marked)) if wanted]
    return f"add {' and '.join(missing)} to the class, or leave `congestion` out"


def _check_balancing(path: Path, fabric: Fabric) -> Iterator[Problem]:
    allowed = _BALANCING.get(fabric.transport)
    if allowed is not None and fabric.balancing not in allowed:
        message = f"the {fabric.transport} fabric `{fabric.name}` does not balance by `{fabric.balancing}`"
        yield Problem("HW517", CLUSTER, (*path, "balancing"), message, f"use one of {listed(allowed)}")


def _check_shape(path: Path, fabric: Fabric) -> Iterator[Problem]:
    """Check the shape against its numbers."""
    rails, planes = fabric.rails, fabric.planes
    if fabric.shape == "leaf-spine" and rails is not None and rails > 1:
        message = f"in `leaf-spine` all adapters of a node connect to one leaf, but `{fabric.name}` has {counted(rails, 'rail')}"
        yield Problem("HW518", CLUSTER, (*path, "rails"), message, "leave `rails` out, or set `shape: rail-optimized`")
    if fabric.shape == "rail-only" and planes > 1 and rails not in (None, planes):
        message = f"in `rail-only` nothing connects the rails, but in {planes} planes some of the {rails} share spines"
        yield Problem("HW518", CLUSTER, (*path, "planes"), message, f"use {rails} planes, or set `shape: rail-optimized`")
    if fabric.pods == 1 and fabric.oversubscription.spine > 1 and (fabric.switches is None or are_counted(fabric)):
        message = f"`spine` is the oversubscription between pods, and `{fabric.name}` is one pod"
        hint = "set the number of pods, for example `pods: 4`, or leave `spine` out"
        yield Problem("HW518", CLUSTER, (*path, "oversubscription", "spine"), message, hint)


def _check_oversubscription(path: Path, fabric: Fabric, groups: Sequence[NodeGroup]) -> Iterator[Problem]:
    """Check the given oversubscription of the leaves against their links: equal to it where their numbers are stated, else at most."""
    stated, found = fabric.oversubscription, leaf_oversubscription(fabric, groups)
    # A leaf whose links up are faster than those down has 1, below which derived sizes may leave room.
    is_off = abs(stated.leaf - found) > 0.01 * found if are_counted(fabric) else found > 1.01 * max(1.0, stated.leaf)
    if "leaf" in stated.model_fields_set and rails_of(fabric, groups) and is_off:
        down, up = leaf_links(fabric, groups)
        message = f"the fullest leaf has {down} links to nodes and {up} to spines, an oversubscription of {found:.4g}, not {stated.leaf:g}"
        hint = "leave `leaf` out: it follows from `switches`"
        yield Problem("HW518", CLUSTER, (*path, "oversubscription", "leaf"), message, hint)


def _check_pending(path: Path, fabric: Fabric) -> Iterator[Problem]:
    """Report features that switch files do not support yet; they are allowed for switches that headway does not configure."""
    for key, is_pending, today in _PENDING if fabric.switches is not None else ():
        if is_pending(fabric):
            subject = f"`{key}: {getattr(fabric, key)}` with `switches`"
            message = f"{subject} is not implemented yet: their files have {today}"
            hint = f"leave `{key}` out; leave `switches` out if headway does not configure them"
            yield Problem("HW214", CLUSTER, (*path, key), message, hint)


_PENDING: tuple[tuple[str, Callable[[Fabric], bool], str], ...] = (
    ("shape", lambda fabric: fabric.shape not in (None, *SWITCHED_SHAPES), f"the shapes {listed(SWITCHED_SHAPES)}"),
    (
        "congestion",
        lambda fabric: fabric.congestion in ("trim-lossy", "nic-managed"),
        "`pfc`, `pfc-ecn` and `ecn-lossy`",
    ),
)
