"""The environment of every rank, from the nodes and fabrics that it uses; nothing is set without a reason."""

from collections.abc import Iterator

from headway.jobspec.plan import ClassPlan, ClusterPlan, EnvVar, FabricPlan, GroupPlan

_TORCH_NCCL = "docs.pytorch.org torch_nccl_environment_variables"
_NET_IB = "NVIDIA/nccl src/transport/net_ib/connect.cc"

# 4.096 us x 2^22 = 17.2 s before one retry of seven.
_IB_TIMEOUT = 22
_QPS = 4
_FLIGHT_RECORDER_ENTRIES = 2000


def resolve_environment(cluster: ClusterPlan, group: GroupPlan) -> tuple[EnvVar, ...]:
    """The variables for ranks on nodes of `group`."""
    backend = _nccl(cluster, group) if group.gpus else _gloo(cluster)
    return (*_processes(group), *backend)


def _processes(group: GroupPlan) -> Iterator[EnvVar]:
    threads = max(1, group.cpus // group.procs)
    share = f"a node's cores ({group.cpus}) over its ranks ({group.procs}); another number changes how CPU sums are rounded"
    yield EnvVar("OMP_NUM_THREADS", str(threads), share, "docs.pytorch.org threading_environment_variables")
    yield EnvVar("PYTHONUNBUFFERED", "1", "a killed rank's last lines reach its log", "docs.python.org using/cmdline.html")


def _gloo(cluster: ClusterPlan) -> Iterator[EnvVar]:
    fabric = _socket_fabric(cluster)
    if fabric is not None and fabric.interface is not None:
        reason = f"gloo connects over `{fabric.name}`; else it takes the address that the host name resolves to"
        yield EnvVar("GLOO_SOCKET_IFNAME", fabric.interface, reason, "docs.pytorch.org distributed.html")


def _nccl(cluster: ClusterPlan, group: GroupPlan) -> Iterator[EnvVar]:
    yield from _sockets(cluster)
    yield from _network(cluster, group)
    yield EnvVar("NCCL_DEBUG", "WARN", "NCCL says why it failed; it is silent when unset", "NVIDIA/nccl src/debug.cc")
    yield from _torch()


def _sockets(cluster: ClusterPlan) -> Iterator[EnvVar]:
    fabric = _socket_fabric(cluster)
    if fabric is not None and fabric.interface is not None:
        reason = f"NCCL's bootstrap connects over `{fabric.name}`; `=` takes this very name and not all that begin with it"
        yield EnvVar("NCCL_SOCKET_IFNAME", f"={fabric.interface}", reason, "NVIDIA/nccl src/misc/socket.cc")


def _network(cluster: ClusterPlan, group: GroupPlan) -> Iterator[EnvVar]:
    fabric = cluster.scale_out
    if fabric is None:
        return
    if fabric.transport == "tcp":
        reason = f"the scale-out fabric `{fabric.name}` is TCP; an RDMA adapter of another fabric is not to be used"
        yield EnvVar("NCCL_NET", "Socket", reason, "NVIDIA/nccl src/init.cc")
        return
    yield from _rdma(fabric, group)
    collectives = fabric.qos.carrying("collectives") if fabric.qos else None
    if collectives is not None:
        yield from _roce(collectives)
        yield from _gid(fabric)


def _rdma(fabric: FabricPlan, group: GroupPlan) -> Iterator[EnvVar]:
    yield EnvVar("NCCL_NET", "IB", "no adapter is an error, not a silent fall-back to TCP", "NVIDIA/nccl src/init.cc")
    reason = f"the adapters on `{fabric.name}`, by exact name; others belong to storage or management"
    yield EnvVar("NCCL_IB_HCA", f"={','.join(group.nics)}", reason, "NVIDIA/nccl src/transport/net_ib/init.cc")
    reason = f"4.096 us x 2^{_IB_TIMEOUT} = 17 s before each of 7 retries, so that a route may change under a collective"
    yield EnvVar("NCCL_IB_TIMEOUT", str(_IB_TIMEOUT), reason, _NET_IB)


def _roce(collectives: ClassPlan) -> Iterator[EnvVar]:
    dscp, kind = collectives.dscp, "lossless " if collectives.lossless else ""
    reason = f"DSCP {dscp} << 2: adapters and switches put it into the {kind}class `{collectives.name}`"
    yield EnvVar("NCCL_IB_TC", str(dscp << 2), reason, _NET_IB)
    reason = "each queue pair has its own UDP source port, so that ECMP spreads one connection over several links"
    yield EnvVar("NCCL_IB_QPS_PER_CONNECTION", str(_QPS), reason, _NET_IB)


def _gid(fabric: FabricPlan) -> Iterator[EnvVar]:
    """NCCL finds the GID index by these; the index itself differs from host to host."""
    reason = "RoCE v2 has an IP header and so a DSCP; NCCL finds the GID index by this version, and an index may differ by host"
    yield EnvVar("NCCL_IB_ROCE_VERSION_NUM", "2", reason, _NET_IB)
    if fabric.addresses is not None:
        reason = "the adapters' addresses on the fabric are IPv4"
        yield EnvVar("NCCL_IB_ADDR_FAMILY", "AF_INET", reason, _NET_IB)
        reason = f"the GID of an address on `{fabric.name}`, where an adapter has several"
        yield EnvVar("NCCL_IB_ADDR_RANGE", fabric.addresses, reason, _NET_IB)


def _torch() -> Iterator[EnvVar]:
    reason = "a failed collective ends its process, so that the agent sees it; 1 would abort before the flight recorder is dumped"
    yield EnvVar("TORCH_NCCL_ASYNC_ERROR_HANDLING", "3", reason, _TORCH_NCCL)
    reason = "the flight recorder keeps this many collectives, enough to name the rank that fell behind"
    yield EnvVar("TORCH_FR_BUFFER_SIZE", str(_FLIGHT_RECORDER_ENTRIES), reason, _TORCH_NCCL)
    reason = "the flight recorder is written out when a collective times out"
    yield EnvVar("TORCH_NCCL_DUMP_ON_TIMEOUT", "1", reason, _TORCH_NCCL)
    reason = "the caching allocator grows its segments, so that fragments do not end in out of memory"
    yield EnvVar("PYTORCH_ALLOC_CONF", "expandable_segments:True", reason, "docs.pytorch.org notes/cuda.html")


def _socket_fabric(cluster: ClusterPlan) -> FabricPlan | None:
    """The TCP fabric for sockets: scale-out if it is one, else management, else any."""
    order = ("scale_out", "management", "storage", "scale_up")
    tcp = [fabric for fabric in cluster.fabrics if fabric.transport == "tcp" and fabric.interface is not None]
    return min(tcp, key=lambda fabric: order.index(fabric.role), default=None)
