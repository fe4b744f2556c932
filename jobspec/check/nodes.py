"""Checks groups of nodes against themselves, the catalogue's hardware, and the fabrics that they are on."""

import re
from collections.abc import Callable, Iterator, Sequence

from msgspec.structs import replace

from headway.jobspec.aliases import values
from headway.jobspec.catalog.gpus import gpus
from headway.jobspec.catalog.nics import Nic as NicModel
from headway.jobspec.catalog.nics import is_configured, nics
from headway.jobspec.check.names import check_unique
from headway.jobspec.document import Path
from headway.jobspec.gpu_names import meant_gpu
from headway.jobspec.notation import counted, write_bytes, write_bytes_per_second
from headway.jobspec.problem import CLUSTER, Problem, Severity
from headway.jobspec.resolve.nodes import gpu_of
from headway.jobspec.resolve.sizes import speed_of
from headway.jobspec.spec.cluster import Cluster
from headway.jobspec.spec.fabric import GBPS, Fabric
from headway.jobspec.spec.nodes import Nic, NodeGroup
from headway.jobspec.suggest import did_you_mean, known_in, listed
from headway.jobspec.units import format_bytes

_RDMA = ("roce", "infiniband", "efa")

# The most GPUs that NVLink joined inside one node (DGX-2); more are a rack.
_LARGEST_NODE = 16
# A board of these GPUs has at most so many (NVIDIA HGX, AMD Instinct platforms); a rack's NVLink domain is larger.
_BOARD = 8
_ARM = "aarch64"
# Rates of a link, Gb/s: IEEE 802.3, the InfiniBand roadmap, and EFA's.
_RATES_GBPS = (10, 20, 25, 40, 50, 56, 100, 200, 400, 800, 1600)
# As many as one group may have: a plan holds each of them.
_MOST_NODES = 100_000
# Two sockets of 192 cores with two threads each are 768; the largest hosts of GPUs have 4 TiB.
_MOST_CORES = 768
_MOST_MEMORY = 64 << 40
_MOST_ADAPTERS = 64
# A tray of a rack of Grace and Blackwell has four GPUs (docs/models.md).
_TRAY = 4
# The fields of a described GPU, and what no GPU has: bytes, bytes a second, 10^12 operations a second.
_LARGEST_GPU: tuple[tuple[str, float, str, Callable[[float], str]], ...] = (
    ("memory", 2 << 40, " of memory", lambda value: write_bytes(int(value))),
    ("memory_bandwidth", 50e12, " of bandwidth", lambda value: write_bytes_per_second(int(value))),
    ("bf16_tflops", 50_000, " x 10^12 operations a second", lambda value: f"{value:g}"),
    ("fp8_tflops", 100_000, " x 10^12 operations a second", lambda value: f"{value:g}"),
)


def check_nodes(cluster: Cluster) -> Iterator[Problem]:
    """Check each group, and the total number of their nodes."""
    yield from _check_names(cluster)
    count = sum(nodes.count for nodes in cluster.node_groups)
    if count > _MOST_NODES:
        message = f"the groups have {count} nodes in total; a cluster can have at most {_MOST_NODES}"
        yield Problem("HW204", CLUSTER, ("node_groups",), message, "describe some of them as a separate cluster", at_key=True)
    for index, nodes in enumerate(cluster.node_groups):
        path = ("node_groups", index)
        yield from _check_nics_apart(path, nodes)
        yield from _check_fields(path, nodes)
        yield from _check_hardware(path, nodes, cluster.fabrics if "fabrics" in cluster.model_fields_set else ())
        yield from _check_held_back(path, nodes)
        yield from _check_domain(path, nodes)
        yield from _check_gpu(path, nodes)


def _check_names(cluster: Cluster) -> Iterator[Problem]:
    """Check that each group has a name of its own; the one name that storage is for, and that no group has, is meant."""
    names = [nodes.name for nodes in cluster.node_groups]
    without = list(dict.fromkeys(group for storage in cluster.storage for group in storage.groups if group not in names))
    for problem in check_unique(CLUSTER, ("node_groups",), "name", names):
        if len(without) == 1 and len(names) - len(set(names)) == 1:
            hint = f"write `{without[0]}`, for which there is storage, or another unique name"
            yield replace(problem, hint=hint, fix=without[0])
        else:
            yield problem


def check_adapters(cluster: Cluster) -> Iterator[Problem]:
    """Check the adapters of each group against their fabrics."""
    if not are_named_apart(cluster.fabrics):
        return
    most = {each.name: max(len(_adapters_on(nodes, each)) for nodes in cluster.node_groups) for each in cluster.fabrics}
    yield from _check_enough_rails(cluster)
    for index, nodes in enumerate(cluster.node_groups):
        path = ("node_groups", index)
        yield from _check_named_fabrics(path, nodes, cluster.fabrics)
        yield from _check_interfaces(path, nodes, cluster.fabrics)
        for fabric in cluster.fabrics:
            on = _adapters_on(nodes, fabric)
            if not _is_short_of_rails(nodes, fabric):
                yield from _check_rails(path, fabric, on, most[fabric.name])
            if on or fabric.role == "scale-out":
                yield from list(_check_model(path, nodes, fabric, cluster.node_groups)) or _check_speed(
                    path, nodes, fabric, cluster.node_groups
                )
            if on:
                yield from _check_driver(path, nodes, fabric)
        yield from _check_nic_name(path, nodes)
        if are_on_fabrics(nodes, cluster.fabrics):
            yield from _check_share(path, nodes, cluster.fabrics)


def _check_nics_apart(path: Path, nodes: NodeGroup) -> Iterator[Problem]:
    """Check that each adapter is listed once; in a numbered list that has one for each GPU, the next number is meant."""
    names = [nic.name for nic in nodes.nics]
    for index, name in enumerate(names):
        if (between := _between(name)) is not None:
            message = f"`{name}` is a range; list each adapter by its name"
            written = ", ".join(between)
            yield Problem("HW204", CLUSTER, (*path, "nics", index), message, f"write `{written}`", fix=written)
            return
    for problem in check_unique(CLUSTER, (*path, "nics"), None, names):
        meant = _next_name(names[: int(problem.path[-1])])
        if meant is not None and meant not in names and nodes.gpus and len(names) % nodes.gpus == 0:
            yield replace(problem, hint=f"write `{meant}`, the next one", fix=meant)
        else:
            yield problem


def _between(name: str) -> list[str] | None:
    """Return the names between the two ends of a range of numbered ones: `mlx5_0-7`, `mlx5_0..mlx5_7`."""
    found = re.fullmatch(r"(.*?[^0-9])([0-9]{1,2})(?:-|\.\.)(?:\1)?([0-9]{1,2})", name)
    if found is None or not 0 < int(found[3]) - int(found[2]) < _MOST_ADAPTERS:
        return None
    return [f"{found[1]}{number}" for number in range(int(found[2]), int(found[3]) + 1)]


def _next_name(names: Sequence[str]) -> str | None:
    """Return the name after the last one, if they are numbered one after the other: `mlx5_2` after `mlx5_0` and `mlx5_1`."""
    parts = [found for name in names if (found := re.fullmatch(r"(.*?)([0-9]{1,6})", name)) is not None]
    if len(parts) < len(names) or not parts:
        return None
    before, first = parts[0][1], int(parts[0][2])
    counts_up = list(names) == [f"{before}{first + number}" for number in range(len(names))]
    return f"{before}{first + len(names)}" if counts_up else None


def _check_enough_rails(cluster: Cluster) -> Iterator[Problem]:
    """Report once if a fabric has fewer rails than nodes have adapters on it, not for each adapter."""
    for place, fabric in enumerate(cluster.fabrics):
        crowded = [nodes for nodes in cluster.node_groups if _is_short_of_rails(nodes, fabric)]
        if crowded:
            number = max(len(_adapters_on(nodes, fabric)) for nodes in crowded)
            rails = counted(fabric.rails or 0, "rail")
            message = f"`{fabric.name}` has {rails}, but a node of `{crowded[0].name}` has {counted(number, 'adapter')} on it"
            hint = f"set `rails: {number}`, one for each adapter, or name the fabric of each adapter"
            yield Problem("HW515", CLUSTER, ("fabrics", place, "rails"), message, hint, fix=str(number))


def _is_short_of_rails(nodes: NodeGroup, fabric: Fabric) -> bool:
    """Return whether the group has several adapters more on the fabric than that has rails, and none names its rail: one more is
    an adapter of another fabric."""
    on = _adapters_on(nodes, fabric).values()
    return _has_rails(fabric) and 0 < (fabric.rails or 0) < len(on) - 1 and all(nic.rail is None for nic in on)


def _has_rails(fabric: Fabric) -> bool:
    return fabric.shape in (None, "rail-optimized", "rail-only")


def are_named_apart(fabrics: Sequence[Fabric]) -> bool:
    """Return whether each fabric has a unique name; else the fabric of an adapter is unknown."""
    return len({fabric.name for fabric in fabrics}) == len(fabrics)


def are_on_fabrics(nodes: NodeGroup, fabrics: Sequence[Fabric]) -> bool:
    """Return whether the fabrics that the group's adapters name exist."""
    return {nic.fabric for nic in nodes.nics} <= {None, *(fabric.name for fabric in fabrics)}


def _check_fields(path: Path, nodes: NodeGroup) -> Iterator[Problem]:
    if nodes.gpus is not None and nodes.procs is not None:
        hint = "leave `procs` out: each GPU runs one rank"
        yield Problem("HW210", CLUSTER, (*path, "procs"), "`procs` and `gpus` are both set", hint, at_key=True)
    if nodes.gpu is not None and nodes.gpus is None:
        hint = "set the number of GPUs per node, for example `gpus: 8`"
        yield Problem("HW210", CLUSTER, (*path, "gpu"), "`gpu` needs `gpus`", hint, at_key=True)
    if nodes.gpu_model is not None and nodes.gpu is None:
        hint = "name the model, for example `gpu: H300-SXM-288`"
        yield Problem("HW210", CLUSTER, (*path, "gpu_model"), "`gpu_model` needs `gpu`", hint, at_key=True)
    elif nodes.gpus is not None and nodes.gpu is None:
        hint = "set the model, for example `gpu: H100-SXM-80`"
        yield Problem("HW210", CLUSTER, (*path, "gpus"), "`gpus` needs `gpu`", hint, at_key=True)
    if nodes.nvlink_domain is not None and nodes.gpus is None:
        hint = "set the number of GPUs per node, for example `gpus: 4`"
        yield Problem("HW210", CLUSTER, (*path, "nvlink_domain"), "`nvlink_domain` needs `gpus`", hint, at_key=True)


def _is_rate(speed: int | None) -> bool:
    return speed in {rate * GBPS for rate in _RATES_GBPS}


def _check_hardware(path: Path, nodes: NodeGroup, fabrics: Sequence[Fabric]) -> Iterator[Problem]:
    """Report numbers that hardly any machine has, where a digit or a unit is more likely wrong."""
    gpus_here, model = nodes.gpus or 0, gpu_of(nodes)
    ranks = gpus_here or nodes.procs or 0
    if nodes.cpus < ranks:
        message = f"{counted(nodes.cpus, 'core')} for {ranks} ranks: each rank needs at least one, for its launches and its data"
        fewer = f"set `procs` to at most {nodes.cpus}, or `cpus` to " if nodes.procs else "set "
        hint = f"{fewer}the cores of a whole node, as `nproc` prints them"
        yield Problem("HW232", CLUSTER, (*path, "cpus"), message, hint, Severity.WARNING)
    if nodes.cpus > _MOST_CORES:
        message = f"no node has {nodes.cpus} cores"
        hint = f"set the cores of one node, as `nproc` prints them, for example `cpus: {nodes.cpus // 10}`"
        yield Problem("HW232", CLUSTER, (*path, "cpus"), message, hint, Severity.WARNING)
    if nodes.host_memory is not None and nodes.host_memory > _MOST_MEMORY:
        message = f"no node has {format_bytes(nodes.host_memory)} of memory"
        hint = f"set the memory of one node, for example `{format_bytes(nodes.host_memory / 1024)}`"
        yield Problem("HW232", CLUSTER, (*path, "host_memory"), message, hint, Severity.WARNING)
    if model is not None and model.host_arch is not None and model.scale_up_domain > _LARGEST_NODE and gpus_here > _TRAY:
        message = f"{gpus_here} `{nodes.gpu}` in one node, where a tray has {_TRAY}"
        hint = f"set `gpus: {_TRAY}`, and those that NVLink joins as `nvlink_domain: {model.scale_up_domain}`"
        yield Problem("HW232", CLUSTER, (*path, "gpus"), message, hint, Severity.WARNING, fix=str(_TRAY))
    yield from _check_own_model(path, nodes)
    if model is not None and model.scale_up_domain == _BOARD and gpus_here and (gpus_here > _BOARD or _BOARD % gpus_here):
        message = f"{gpus_here} `{nodes.gpu}` in one node, where boards have {_BOARD}"
        hint = f"set `gpus: {_BOARD}`" + (", and count each board's host as a node" if gpus_here > _BOARD else "")
        yield Problem("HW232", CLUSTER, (*path, "gpus"), message, hint, Severity.WARNING, fix=str(_BOARD))
    speed = nodes.nic_speed
    # Where switches have another, that is the problem.
    is_compared = any(fabric.switches is not None and speed != speed_of(fabric, [nodes]) for fabric in fabrics)
    if speed is not None and not _is_rate(speed) and not (is_compared and nodes.nics):
        message = f"no adapter has links of {_gbps(speed)}"
        hint = "set the rate of one link, as `ibstat` or `ethtool` prints it, for example `400Gb/s`"
        yield Problem("HW232", CLUSTER, (*path, "nic_speed"), message, hint, Severity.WARNING)


def _check_own_model(path: Path, nodes: NodeGroup) -> Iterator[Problem]:
    """Report numbers of a described GPU that are a unit too large."""
    own = nodes.gpu_model
    for name, most, unit, write in _LARGEST_GPU if own is not None else ():
        value = getattr(own, name)
        if value is not None and value > most:
            message = f"no GPU has {write(value)}{unit}"
            meant = value / next((scale for scale in (1000, 1024, 10**12) if value / scale <= most), 1)
            hint = f"did you mean `{write(meant)}`?"
            yield Problem("HW232", CLUSTER, (*path, "gpu_model", name), message, hint, Severity.WARNING)


def _check_held_back(path: Path, nodes: NodeGroup) -> Iterator[Problem]:
    if nodes.held_back >= nodes.count:
        message = f"all {nodes.count} nodes of `{nodes.name}` are held back, and none is left for jobs"
        yield Problem("HW234", CLUSTER, (*path, "held_back"), message, f"use at most {nodes.count - 1}")


def _check_domain(path: Path, nodes: NodeGroup) -> Iterator[Problem]:
    """Check that the NVLink domain is a part of a node, a node, or several nodes that can map each other's memory."""
    domain, count = nodes.nvlink_domain, nodes.gpus
    if count is None:
        return
    if domain is None or domain <= count:
        yield from _check_one_node(path, nodes, count)
    elif domain % count:
        message = f"an NVLink domain of {domain} GPUs is not a multiple of the {count} GPUs of a node"
        below = domain - domain % count
        hint = f"the nearest multiples are {below} and {below + count}"
        if domain * count == _usual_domain(nodes):
            # The nodes of the rack, not its GPUs.
            hint = f"write `{domain * count}`, the GPUs of {domain} nodes"
        elif (usual := _usual_domain(nodes)) in (below, below + count):
            hint = f"write `{usual}`, those of a rack of `{nodes.gpu}`"
        yield Problem("HW233", CLUSTER, (*path, "nvlink_domain"), message, hint)
    else:
        yield from _check_several_nodes(path, nodes, domain, domain // count)


def _check_one_node(path: Path, nodes: NodeGroup, count: int) -> Iterator[Problem]:
    domain, usual = nodes.nvlink_domain, _usual_domain(nodes)
    if domain is not None and count % domain:
        message = f"an NVLink domain of {domain} GPUs does not divide the {count} of a node"
        whole = ", ".join(str(part) for part in range(1, count + 1) if count % part == 0)
        yield Problem("HW233", CLUSTER, (*path, "nvlink_domain"), message, f"use one of {whole}, or a multiple of {count}")
    elif nodes.imex:
        message = f"`imex` is for memory of other nodes, but the NVLink domain is {domain or count} GPUs of one node"
        hint = f"set the number of GPUs that NVLink connects, for example `nvlink_domain: {usual or 72}`, or leave `imex` out"
        yield Problem("HW233", CLUSTER, (*path, "imex"), message, hint, Severity.WARNING, at_key=True)
    elif domain is None and usual is not None:
        message = f"NVLink usually connects {usual} `{nodes.gpu}`, but without `nvlink_domain` the {count} of one node"
        hint = f"set either `nvlink_domain: {usual}` with `imex: true`, or `nvlink_domain: {count}`"
        yield Problem("HW233", CLUSTER, (*path, "gpu"), message, hint, Severity.WARNING)


def _check_several_nodes(path: Path, nodes: NodeGroup, domain: int, size: int) -> Iterator[Problem]:
    """Check several nodes. IMEX: docs.nvidia.com/multi-node-nvlink-systems/imex-guide."""
    if not nodes.imex:
        message = f"an NVLink domain of {domain} GPUs spans {size} nodes, and without IMEX a GPU cannot map another node's memory"
        hint = f"set `imex: true` if the service runs and its channels exist, else `nvlink_domain: {nodes.gpus}`"
        yield Problem("HW233", CLUSTER, (*path, "nvlink_domain"), message, hint)
        return
    rest = nodes.count % size
    if rest:
        message = (
            f"{counted(nodes.count, 'node')} cannot fill whole NVLink domains of {size}: {rest} would be in an incomplete one"
        )
        part = f"`nvlink_domain: {rest * (nodes.gpus or 0)}`"
        hint = f"use {size} nodes, or {part}"
        if nodes.count > size:
            below = nodes.count - rest
            hint = f"use {below} or {below + size} nodes, or describe the incomplete domain as a separate group with {part}"
        yield Problem("HW233", CLUSTER, (*path, "count"), message, hint, Severity.WARNING)


def _usual_domain(nodes: NodeGroup) -> int | None:
    """Return how many GPUs of the group's model NVLink usually joins, if that is a rack."""
    model = gpu_of(nodes)
    return model.scale_up_domain if model and model.scale_up_domain > _LARGEST_NODE else None


def _check_gpu(path: Path, nodes: NodeGroup) -> Iterator[Problem]:
    if nodes.gpu is None:
        return
    own, model = nodes.gpu_model, gpu_of(nodes)
    if own is not None and own.like not in gpus():
        near = meant_gpu(own.like)
        message = f"the catalogue has no GPU `{own.like}` that `{nodes.gpu}` could be like, so its memory and speed are unknown"
        yield Problem("HW231", CLUSTER, (*path, "gpu_model", "like"), message, near.text, Severity.WARNING, fix=near.fix)
    elif own is not None and nodes.gpu in gpus():
        message = f"`gpu_model` describes `{nodes.gpu}`, which the catalogue has"
        hint = "leave `gpu_model` out, or give a GPU that differs a name of its own"
        yield Problem("HW210", CLUSTER, (*path, "gpu_model"), message, hint, at_key=True)
    elif model is None:
        message = f"the catalogue has no GPU `{nodes.gpu}`, so its memory, speed and software requirements are unknown"
        near = meant_gpu(nodes.gpu)
        own_values = "`gpu_model`, with its own `memory` and `bf16_tflops` and the GPU that it is `like`"
        hint = near.text if near.fix is not None else f"{near.text}; describe another one by {own_values}"
        yield Problem("HW231", CLUSTER, (*path, "gpu"), message, hint, Severity.WARNING, fix=near.fix)
    elif model.host_arch is None and nodes.arch == _ARM and model.vendor == "NVIDIA" and model.scale_up_domain == _BOARD:
        message = f"boards of `{nodes.gpu}` have hosts of x86_64, but `arch` is {nodes.arch}"
        hint = "set `arch: x86_64`, or name the GPU that comes with an Arm host, for example `GH200-96`"
        yield Problem("HW232", CLUSTER, (*path, "arch"), message, hint, Severity.WARNING, fix="x86_64")
    elif model.host_arch not in (None, nodes.arch):
        message = f"a `{nodes.gpu}` comes with a host of {model.host_arch}, but `arch` is {nodes.arch}"
        place = "arch" if "arch" in nodes.model_fields_set else "gpu"
        yield Problem("HW232", CLUSTER, (*path, place), message, f"set `arch: {model.host_arch}`")


def _check_named_fabrics(path: Path, nodes: NodeGroup, fabrics: Sequence[Fabric]) -> Iterator[Problem]:
    """Check that an adapter's fabric exists, and uses RDMA."""
    by_name = {fabric.name: fabric for fabric in fabrics}
    scale_out = next((fabric for fabric in fabrics if fabric.role == "scale-out"), None)
    if scale_out is not None and scale_out.transport == "tcp" and _adapters_on(nodes, scale_out) and not _named(nodes, scale_out):
        message = f"`nics` are RDMA adapters, but the fabric `{scale_out.name}` is tcp, which uses its `interface`"
        hint = "leave `nics` out, or set `transport: roce` or `infiniband` of the fabric that they are on"
        if scale_out.classes or scale_out.congestion is not None:
            hint = f"set `transport: roce` of `{scale_out.name}`, which has settings of RoCE, or leave these and `nics` out"
        yield Problem("HW530", CLUSTER, (*path, "nics"), message, hint, at_key=True)
    interfaces = {fabric.interface: fabric.name for fabric in fabrics if fabric.interface is not None}
    for place, nic in enumerate(nodes.nics):
        if nic.name in interfaces:
            message = f"`{nic.name}` is the interface of the fabric `{interfaces[nic.name]}`, not the name of an RDMA adapter"
            name = _next_name([each.name for each in nodes.nics[:place]]) or "mlx5_7"
            hint = f"write the adapter's name, as `ibv_devices` prints it, for example `{name}`, or leave it out"
            yield Problem("HW530", CLUSTER, (*path, "nics", place), message, hint)
            continue
        if nic.fabric is None:
            continue
        at, fabric = (*path, "nics", place, "fabric"), by_name.get(nic.fabric)
        if fabric is None:
            message = f"`{nic.name}` is on `{nic.fabric}`, but no fabric has that name"
            roles = values(nic.fabric, [each.role for each in fabrics])
            meant = [each.name for each in fabrics if each.role in roles]
            near = did_you_mean(nic.fabric, by_name, "fabrics", meant[0] if len(meant) == 1 else None)
            yield Problem("HW236", CLUSTER, at, message, near.text, fix=near.fix)
        elif fabric.transport not in _RDMA:
            message = f"`{nic.name}` is an RDMA adapter, but the fabric `{fabric.name}` is {fabric.transport}"
            yield Problem("HW530", CLUSTER, at, message, "name the fabric that it speaks RDMA on, or leave the adapter out")


def _check_interfaces(path: Path, nodes: NodeGroup, fabrics: Sequence[Fabric]) -> Iterator[Problem]:
    """Check that each adapter's interface is its own, and that those which netplan is to configure have one."""
    of_fabrics = {fabric.interface: fabric.name for fabric in fabrics if fabric.interface is not None}
    owners: dict[str, str] = {}
    for place, nic in enumerate(nodes.nics):
        at = (*path, "nics", place, "interface")
        if nic.interface in of_fabrics:
            fabric = of_fabrics[nic.interface]
            message = f"`{nic.interface}` is the interface of the fabric `{fabric}`, not of the RDMA adapter `{nic.name}`"
            yield Problem("HW530", CLUSTER, at, message, f"write the name that /sys/class/infiniband/{nic.name}/device/net has")
        elif nic.interface is not None and owners.setdefault(nic.interface, nic.name) != nic.name:
            message = f"`{nic.interface}` is the interface of `{owners[nic.interface]}` and of `{nic.name}`"
            yield Problem("HW209", CLUSTER, at, message, "give each adapter the interface of its port")
    if nodes.network_config != "netplan":
        return
    switched = [fabric for fabric in fabrics if fabric.transport == "roce" and fabric.switches is not None]
    configured = sorted({place for fabric in switched for place in _adapters_on(nodes, fabric)})
    nameless = [place for place in configured if nodes.nics[place].interface is None]
    if nameless:
        name, more = nodes.nics[nameless[0]].name, len(nameless) - 1
        others = f" and {more} more have" if more else " has"
        message = f"netplan configures network interfaces, and `{name}`{others} no `interface`"
        hint = (
            f"write `{{name: {name}, interface: NAME}}`, with the name that /sys/class/infiniband/{name}/device/net has; "
            "or leave `network_config` out"
        )
        yield Problem("HW210", CLUSTER, (*path, "nics", nameless[0]), message, hint)
    elif not configured:
        where = " or ".join(f"`{fabric.name}`" for fabric in switched) if switched else "a RoCE fabric with `switches`"
        message = f"`{nodes.name}` has no adapter on {where}, so netplan has no address to set"
        hint = "leave `network_config` out, or list the adapters that are to have an address"
        yield Problem("HW210", CLUSTER, (*path, "network_config"), message, hint)


def _named(nodes: NodeGroup, fabric: Fabric) -> bool:
    return any(nic.fabric == fabric.name for nic in nodes.nics)


def _adapters_on(nodes: NodeGroup, fabric: Fabric) -> dict[int, Nic]:
    """Return the adapters of the group on the fabric, by their index in `nics`; one without a fabric is on the scale-out one."""
    default = fabric.name if fabric.role == "scale-out" else None
    return {place: nic for place, nic in enumerate(nodes.nics) if (nic.fabric or default) == fabric.name}


def _check_rails(path: Path, fabric: Fabric, on: dict[int, Nic], most: int) -> Iterator[Problem]:
    """Check that each adapter has a different rail, and that the rail exists; without a number there are as many as the
    `most` adapters of a node."""
    if not _has_rails(fabric) and fabric.rails is None:
        return
    rails = fabric.rails or most
    taken: dict[int, str] = {}
    for number, (place, nic) in enumerate(on.items()):
        at, rail = (*path, "nics", place, "rail"), number if nic.rail is None else nic.rail
        if rail >= rails:
            there = f"rails are 0 to {rails - 1}" if rails > 1 else "only rail is 0"
            message = f"`{nic.name}` is on rail {rail} of `{fabric.name}`, whose {there}"
            yield Problem("HW515", CLUSTER, at, message, "count rails from 0, one for each adapter")
        elif rail in taken:
            message = f"`{nic.name}` and `{taken[rail]}` are both on rail {rail} of `{fabric.name}`"
            yield Problem("HW515", CLUSTER, at, message, "give each adapter of a node a different rail")
        taken.setdefault(rail, nic.name)


def _check_nic_name(path: Path, nodes: NodeGroup) -> Iterator[Problem]:
    if nodes.nic is not None and nodes.nic not in nics():
        message = f"the catalogue has no adapter `{nodes.nic}`, so its transports and speed are unknown"
        from headway.jobspec.unknown import alias_or_nearest  # noqa: PLC0415 (most documents are valid)

        near = known_in(nodes.nic, nics()) or alias_or_nearest(nodes.nic, nics(), "adapters")
        yield Problem("HW231", CLUSTER, (*path, "nic"), message, near.text, Severity.WARNING, fix=near.fix)


def _check_model(path: Path, nodes: NodeGroup, fabric: Fabric, groups: Sequence[NodeGroup]) -> Iterator[Problem]:
    """Check that the model of the adapters supports the fabric's transport, at the group's speed."""
    model: NicModel | None = nics().get(nodes.nic) if nodes.nic else None
    if model is None or fabric.transport in ("nvlink", "tcpxo"):
        return
    fastest = model.gbps.get(fabric.transport)
    if fastest is None:
        message = f"a `{model.name}` does not support {fabric.transport}, the transport of the fabric `{fabric.name}`"
        other = _other_adapter(model, fabric, nodes)
        # Switches and other settings of the fabric's transport say that the adapter is what is wrong.
        hint = f"{other}; or set `transport: {own[0]}`" if (own := list(model.gbps)) else None
        yield Problem("HW232", CLUSTER, (*path, "nic"), message, hint)
    elif nodes.nic_speed is not None and nodes.nic_speed > fastest * GBPS:
        message = (
            f"a port of a `{model.name}` supports at most {fastest}Gb/s of {fabric.transport}, found {_gbps(nodes.nic_speed)}"
        )
        hint = f"set `nic_speed: {fastest}Gb/s` or less"
        wanted = nodes.nic_speed / GBPS
        able = [name for name, each in nics().items() if each.gbps.get(fabric.transport) == wanted and is_configured(name)]
        if fabric.switches is not None and speed_of(fabric, groups) == nodes.nic_speed and able:
            # Both ends have the speed: it is the model that is wrong.
            hint = f"name the adapter of this speed, for example `nic: {able[0]}`; or {hint}, with the switches' `speed`"
        yield Problem("HW232", CLUSTER, (*path, "nic_speed"), message, hint)


def _other_adapter(model: NicModel, fabric: Fabric, nodes: NodeGroup) -> str:
    """Return the hint for an adapter without the fabric's transport: one that has it, at the group's speed."""
    # As fast as the named one, if the group states no speed.
    wanted = (nodes.nic_speed or 0) / GBPS or max(model.gbps.values(), default=0)
    able = [name for name, each in nics().items() if each.gbps.get(fabric.transport, -1) >= max(wanted, 0)]
    # Of NVIDIA's, which headway configures, the one that is just fast enough.
    able.sort(key=lambda name: (not is_configured(name), nics()[name].gbps[fabric.transport]))
    use = f"use an adapter with {fabric.transport}, for example `nic: {able[0]}`; " if able else ""
    return f"{use}it supports {listed(model.gbps)}"


def _check_driver(path: Path, nodes: NodeGroup, fabric: Fabric) -> Iterator[Problem]:
    """Check that headway has a unit that sets addresses and classes up on the adapters."""
    is_set_up = fabric.transport == "roce" and (fabric.classes or fabric.switches is not None)
    if is_set_up and not is_configured(nodes.nic):
        message = f"headway sets up traffic classes on mlx5 adapters only: nodes with a `{nodes.nic}` get no unit `headway-qos`"
        hint = "set DSCP, PFC and congestion control with the vendor's tools by the numbers of `classes`, and accept this with `ignore`"
        yield Problem("HW531", CLUSTER, (*path, "nic"), message, hint, Severity.WARNING)


def _check_speed(path: Path, nodes: NodeGroup, fabric: Fabric, groups: Sequence[NodeGroup]) -> Iterator[Problem]:
    """Check that both ends of a cable have one speed."""
    model, stated = nics().get(nodes.nic or ""), None if fabric.switches is None else fabric.switches.speed
    fastest = None if model is None else model.gbps.get(fabric.transport)
    if nodes.nic_speed is None and model is not None and fastest is not None and stated is not None and stated > fastest * GBPS:
        message = (
            f"the ports of the switches of `{fabric.name}` have {_gbps(stated)}, but a port of a `{model.name}` {fastest}Gb/s"
        )
        hint = f"make both ends of a cable the same speed: set `speed: {fastest}Gb/s` of the switches, or name faster adapters"
        yield Problem("HW518", CLUSTER, (*path, "nic"), message, hint)
    if stated is not None and fabric.role != "scale-out":
        # `nic_speed` is that of the adapters between the nodes; a node may have others for its storage.
        return
    if fabric.switches is not None and nodes.nic_speed not in (None, speed_of(fabric, groups)):
        found, speed = _gbps(nodes.nic_speed or 0), _gbps(speed_of(fabric, groups))
        message = f"the adapters have {found}, but the ports of the switches of `{fabric.name}` {speed}"
        hint = f"make both ends of a cable the same speed: set `speed: {found}` of the switches, or `nic_speed: {speed}`"
        if not _is_rate(nodes.nic_speed):
            hint = f"set `nic_speed: {speed}`: no adapter has links of {found}"
        yield Problem("HW518", CLUSTER, (*path, "nic_speed"), message, hint)


def _check_share(path: Path, nodes: NodeGroup, fabrics: Sequence[Fabric]) -> Iterator[Problem]:
    """Check that every GPU has the same share of an adapter, or the same number of them."""
    scale_out = next((fabric for fabric in fabrics if fabric.role == "scale-out"), None)
    on, count = len(_adapters_on(nodes, scale_out)) if scale_out else 0, nodes.gpus or 0
    if on and count and max(on, count) % min(on, count):
        message = f"{count} GPUs do not divide evenly over {on} adapters: a step waits for those with the smallest share"
        hint = "list every adapter of the fabric between the nodes; set the fabric of any other, for example `fabric: store`"
        yield Problem("HW235", CLUSTER, (*path, "nics"), message, hint, Severity.WARNING, at_key=True)


def _gbps(speed: int) -> str:
    return f"{speed / GBPS:g}Gb/s"
