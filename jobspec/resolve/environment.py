"""Builds the environment of every rank from the nodes and fabrics that it uses; every variable has a reason."""

from collections.abc import Iterator, Mapping, Sequence

from msgspec.structs import replace

from headway.jobspec.catalog.versions import compatibility
from headway.jobspec.plan import ClassPlan, ClusterPlan, EnvVar, FabricPlan, GroupPlan

_TORCH_NCCL = "docs.pytorch.org torch_nccl_environment_variables"
_NET_IB = "NVIDIA/nccl src/transport/net_ib/connect.cc"
_NCCL_GUIDE = "NVIDIA/nccl docs/userguide/source/env.rst"

# 4.096 us x 2^20 = 4.3 s before each of 7 retries, 30 s together: three times the 9 s after which BGP gives a silent neighbour up,
# where BFD does not see it first. 22 would let one lost packet idle the job for 17 s.
_IB_TIMEOUT = 20
IB_RETRIES_S = 4.096e-6 * 2**_IB_TIMEOUT * 7
"""Seconds for which an adapter sends a lost packet again, at least: NCCL_IB_TIMEOUT as planned, and NCCL's 7 retries."""
_QPS = 4
_FLIGHT_RECORDER_ENTRIES = 2000

# Why several queue pairs spread a connection, by how switches choose a path for each flow.
_BY_FLOW = {
    "ecmp": "each queue pair has its own UDP source port, so that ECMP spreads one connection over several links",
    "ucmp": "each queue pair has its own UDP source port, so that weighted ECMP spreads one connection over several links",
    "qp-hash": "switches choose a path by queue pair too, so that several of them spread one connection over several links",
}
_BY_PACKET = ("adaptive", "spray")
_RAILS_APART = ("rail-optimized", "rail-only")

_OWN = "set by the job"

# Names of one setting of torch: the second is what the plan sets. ProcessGroupNCCL.hpp, FlightRecorder.hpp, c10/core/AllocatorConfig.h.
_OLDER = {
    "NCCL_ASYNC_ERROR_HANDLING": "TORCH_NCCL_ASYNC_ERROR_HANDLING",
    "TORCH_NCCL_TRACE_BUFFER_SIZE": "TORCH_FR_BUFFER_SIZE",
    "PYTORCH_CUDA_ALLOC_CONF": "PYTORCH_ALLOC_CONF",
}
# An older torch is planned the older name, and reads no other: jobspec/catalog/versions.yaml, torch_variables.
_NEWER = {
    "TORCH_FR_BUFFER_SIZE": "TORCH_NCCL_TRACE_BUFFER_SIZE",
    "PYTORCH_ALLOC_CONF": "PYTORCH_CUDA_ALLOC_CONF",
}


def resolve_environment(cluster: ClusterPlan, group: GroupPlan) -> tuple[EnvVar, ...]:
    """Return the variables for ranks on nodes of `group`."""
    torch = cluster.versions.get("torch")
    nccl = nccl_environment(cluster.fabrics, group, torch) if group.gpus else ()
    # Ranks with GPUs use gloo too: for objects, barriers and asynchronous checkpoints.
    return (*_processes(group), *_gloo(cluster.fabrics), *nccl)


def with_own(planned: Sequence[EnvVar], own: Mapping[str, str]) -> Iterator[EnvVar]:
    """Yield the planned variables with the job's: those override it, also by another name of the setting, except where the cluster
    file decides. A setting that torch does not read by the job's name has the job's value under the planned name."""
    older = {_OLDER[name] for name in own.keys() & _OLDER.keys()}
    newer = {_NEWER[name]: value for name, value in own.items() if name in _NEWER}
    for variable in planned:
        value = own.get(variable.name, newer.get(variable.name))
        if variable.decided_by is not None or (value is None and variable.name not in older):
            yield variable
        elif value is not None:
            reason = f"{_OWN}, in place of {variable.value}: {variable.reason}"
            yield EnvVar(variable.name, value, reason, variable.source)
    taken = {variable.name for variable in planned}
    for name, value in own.items():
        if name not in taken:
            yield EnvVar(name, value, _OWN, "`environment` of the job")


def nccl_environment(fabrics: Sequence[FabricPlan], group: GroupPlan, torch: str | None = None) -> Iterator[EnvVar]:
    """Yield the variables of NCCL, of its plugins and of torch's use of it, by the names that this version of torch reads."""
    yield from _sockets(fabrics)
    yield from _network(fabrics, group)
    yield from _nvlink(group)
    yield EnvVar("NCCL_DEBUG", "WARN", "NCCL logs why it failed; it is silent when unset", "NVIDIA/nccl src/debug.cc")
    for variable in _torch():
        yield variable if torch is None else _as_torch_reads(variable, torch)


def _processes(group: GroupPlan) -> Iterator[EnvVar]:
    threads = max(1, group.cpus // group.procs)
    share = f"a node's cores ({group.cpus}) over its ranks ({group.procs}); another number changes how CPU sums are rounded"
    yield EnvVar("OMP_NUM_THREADS", str(threads), share, "docs.pytorch.org threading_environment_variables")
    yield EnvVar("PYTHONUNBUFFERED", "1", "a killed rank's last lines reach its log", "docs.python.org using/cmdline.html")


def _gloo(fabrics: Sequence[FabricPlan]) -> Iterator[EnvVar]:
    fabric = _socket_fabric(fabrics)
    if fabric is not None and fabric.interface is not None:
        reason = f"gloo connects over `{fabric.name}`; else it takes the address that the host name resolves to"
        source = "docs.pytorch.org distributed.html"
        yield EnvVar("GLOO_SOCKET_IFNAME", fabric.interface, reason, source, _of(fabric, "interface"))


def _sockets(fabrics: Sequence[FabricPlan]) -> Iterator[EnvVar]:
    fabric = _socket_fabric(fabrics)
    # Google's script sets it, and its plugin refuses another notation of the same name.
    if any(each.role == "scale-out" and each.transport == "tcpxo" for each in fabrics):
        return
    if fabric is not None and fabric.interface is not None:
        reason = (
            f"NCCL's bootstrap connects over `{fabric.name}`; `=` matches this exact name, not every name that begins with it"
        )
        source = "NVIDIA/nccl src/misc/socket.cc"
        yield EnvVar("NCCL_SOCKET_IFNAME", f"={fabric.interface}", reason, source, _of(fabric, "interface"))


def _network(fabrics: Sequence[FabricPlan], group: GroupPlan) -> Iterator[EnvVar]:
    fabric = next((fabric for fabric in fabrics if fabric.role == "scale-out"), None)
    if fabric is None:
        return
    if fabric.transport == "tcp":
        reason = f"the scale-out fabric `{fabric.name}` is TCP; an RDMA adapter of another fabric must not be used"
        yield EnvVar("NCCL_NET", "Socket", reason, "NVIDIA/nccl src/init.cc", _of(fabric, "transport"))
    elif fabric.transport == "efa":
        yield from _efa(fabric)
    elif fabric.transport in ("roce", "infiniband"):
        yield from _verbs(fabric, group)


def _efa(fabric: FabricPlan) -> Iterator[EnvVar]:
    """Yield the variables that AWS's plugin needs in all of its versions; newer ones set the rest by the type of the instance."""
    reason = f"AWS's plugin carries `{fabric.name}`: if it is missing, an error, not a silent fall-back to TCP; every version has this name"
    source = "aws/aws-ofi-nccl src/nccl_ofi_interface_nvidia.cpp"
    yield EnvVar("NCCL_NET", "AWS Libfabric", reason, source, _of(fabric, "transport"))
    reason = "libfabric uses the EFA adapters and no other provider that it finds; plugins up to 1.5 do not request it themselves"
    yield EnvVar("FI_PROVIDER", "efa", reason, "aws/aws-ofi-nccl doc/efa-env-var.md", _of(fabric, "transport"))


def _verbs(fabric: FabricPlan, group: GroupPlan) -> Iterator[EnvVar]:
    yield from _rdma(fabric, group)
    collectives = fabric.qos.carrying("collectives") if fabric.qos else None
    if collectives is not None:
        yield _traffic_class(collectives)
    yield from _paths(fabric)
    yield from _infiniband(fabric)
    if collectives is not None:
        yield from _gid(fabric)
    yield from _rails(fabric, group)


def _rdma(fabric: FabricPlan, group: GroupPlan) -> Iterator[EnvVar]:
    # A plugin is used only if its network has the name in NCCL_NET: on InfiniBand `IB` would keep IBext, and SHARP with it, out.
    if fabric.transport == "roce":
        reason = "no adapter is an error, not a silent fall-back to TCP"
        yield EnvVar("NCCL_NET", "IB", reason, "NVIDIA/nccl src/plugin/net.cc", _of(fabric, "transport"))
    reason = f"the adapters on `{fabric.name}`, by exact name; others belong to storage or management"
    source, decided_by = "NVIDIA/nccl src/transport/net_ib/init.cc", f"`nics` of the group `{group.name}`"
    yield EnvVar("NCCL_IB_HCA", f"={','.join(group.nics)}", reason, source, decided_by)
    reason = f"4.096 us x 2^{_IB_TIMEOUT} = 4.3 s before each of 7 retries, so that a route may change under a collective"
    yield EnvVar("NCCL_IB_TIMEOUT", str(_IB_TIMEOUT), reason, _NET_IB)


def _traffic_class(collectives: ClassPlan) -> EnvVar:
    dscp, kind = collectives.dscp, "lossless " if collectives.lossless else ""
    marked = " | ECT(0), which lets switches mark its packets" if collectives.ecn else ""
    reason = f"DSCP {dscp} << 2{marked}: adapters and switches put it into the {kind}class `{collectives.name}`"
    return EnvVar("NCCL_IB_TC", str(collectives.tos), reason, _NET_IB, f"`dscp` of the class `{collectives.name}`")


def _infiniband(fabric: FabricPlan) -> Iterator[EnvVar]:
    if fabric.service_level is not None:
        reason = f"service level of collectives on `{fabric.name}`, which opensm's file gives a virtual lane"
        yield EnvVar("NCCL_IB_SL", str(fabric.service_level), reason, _NET_IB, _of(fabric, "service_level"))
    if fabric.sharp:
        reason = f"switches of `{fabric.name}` add up gradients, through the SHARP plugin; without it NCCL does so on the GPUs"
        yield EnvVar("NCCL_COLLNET_ENABLE", "1", reason, "docs.nvidia.com HPC-X NCCL-RDMA-SHARP Plugins", _of(fabric, "sharp"))


def _paths(fabric: FabricPlan) -> Iterator[EnvVar]:
    """NCCL's part in the spreading over equal paths. InfiniBand's static routes go by address, so queue pairs spread nothing."""
    if fabric.transport == "roce" and fabric.balancing in _BY_FLOW:
        yield EnvVar("NCCL_IB_QPS_PER_CONNECTION", str(_QPS), _BY_FLOW[fabric.balancing], _NET_IB)
    elif fabric.balancing in _BY_PACKET:
        reason = f"packets may overtake each other on `{fabric.name}`: NCCL sends the completion notice in a separate message"
        yield EnvVar("NCCL_IB_ADAPTIVE_ROUTING", "1", reason, _NCCL_GUIDE, _of(fabric, "balancing"))


def _gid(fabric: FabricPlan) -> Iterator[EnvVar]:
    """Yield the variables by which NCCL finds the GID index; the index itself differs from host to host."""
    reason = (
        "RoCE v2 has an IP header and so a DSCP; NCCL finds the GID index by this version, since the index may differ by host"
    )
    yield EnvVar("NCCL_IB_ROCE_VERSION_NUM", "2", reason, _NET_IB, _of(fabric, "classes"))
    if fabric.addresses is not None:
        decided_by = _of(fabric, "switches.addresses")
        reason = "the adapters' addresses on the fabric are IPv4"
        yield EnvVar("NCCL_IB_ADDR_FAMILY", "AF_INET", reason, _NET_IB, decided_by)
        reason = f"the GID of an address on `{fabric.name}`, where an adapter has several"
        yield EnvVar("NCCL_IB_ADDR_RANGE", fabric.addresses, reason, _NET_IB, decided_by)


def _rails(fabric: FabricPlan, group: GroupPlan) -> Iterator[EnvVar]:
    """Rings and trees stay on their rail; for the rest NCCL hands data to the GPU at the right adapter (PXN), which is its default."""
    if fabric.shape not in _RAILS_APART or len(group.nics) < 2:
        return
    reason = f"a ring stays on one rail of `{fabric.name}`: nothing connects the rails"
    if fabric.planes > 1:
        reason = f"a ring stays on one rail of `{fabric.name}`, whose planes nothing connects"
    elif fabric.shape == "rail-optimized":
        reason = f"a ring stays on one rail of `{fabric.name}`, where it needs no spine"
    yield EnvVar("NCCL_CROSS_NIC", "0", reason, _NCCL_GUIDE, _of(fabric, "shape"))


def _nvlink(group: GroupPlan) -> Iterator[EnvVar]:
    if group.nvlink_domain > group.gpus and group.imex:
        reason = f"NVLink connects {group.nvlink_domain} GPUs across several nodes: if it cannot be used, an error, not a silent detour"
        yield EnvVar("NCCL_MNNVL_ENABLE", "1", reason, _NCCL_GUIDE, f"`imex` of the group `{group.name}`")


def _torch() -> Iterator[EnvVar]:
    reason = "a failed collective ends its process, so that the agent sees it; 1 would abort before the flight recorder is dumped"
    yield EnvVar("TORCH_NCCL_ASYNC_ERROR_HANDLING", "3", reason, _TORCH_NCCL)
    reason = "the flight recorder keeps this many collectives, enough to name the rank that fell behind"
    yield EnvVar("TORCH_FR_BUFFER_SIZE", str(_FLIGHT_RECORDER_ENTRIES), reason, _TORCH_NCCL)
    reason = "the flight recorder is written out when a collective times out"
    yield EnvVar("TORCH_NCCL_DUMP_ON_TIMEOUT", "1", reason, _TORCH_NCCL)
    reason = "the caching allocator grows its segments, so that fragmentation does not run out of memory"
    yield EnvVar("PYTORCH_ALLOC_CONF", "expandable_segments:True", reason, "docs.pytorch.org notes/cuda.html")


def _as_torch_reads(variable: EnvVar, torch: str) -> EnvVar:
    renamed = compatibility().before_renaming(variable.name, torch)
    if renamed is None:
        return variable
    reason = f"{variable.reason}; torch {torch} does not read it as `{variable.name}`"
    return replace(variable, name=renamed.before, reason=reason, source=f"{variable.source}; {renamed.source}")


def _of(fabric: FabricPlan, field: str) -> str:
    return f"`{field}` of the fabric `{fabric.name}`"


def _socket_fabric(fabrics: Sequence[FabricPlan]) -> FabricPlan | None:
    """Return the TCP fabric for sockets: scale-out if it is one, else management, else any."""
    order = ("scale-out", "management", "storage", "scale-up")
    tcp = [fabric for fabric in fabrics if fabric.transport == "tcp" and fabric.interface is not None]
    return min(tcp, key=lambda fabric: order.index(fabric.role), default=None)
