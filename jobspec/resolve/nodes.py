"""Resolves groups of nodes into the plan's: the adapters on the fabric between them, in the order of their rails."""

from collections.abc import Iterable

from msgspec import Struct
from msgspec.structs import replace

from headway.jobspec.catalog.gpus import Gpu, gpus
from headway.jobspec.plan import FabricNics, GroupPlan, NicInterface
from headway.jobspec.spec.fabric import GBPS, Fabric
from headway.jobspec.spec.nodes import Nic, NodeGroup


def procs_per_node(nodes: NodeGroup) -> int:
    """Return ranks of one node: one a GPU, else the group's setting."""
    return nodes.gpus or nodes.procs or 1


def domain_of(nodes: NodeGroup) -> int:
    """Return the number of ranks that reach each other over NVLink: a node's, unless the group sets more."""
    return nodes.nvlink_domain or procs_per_node(nodes)


def rails_of_group(nodes: NodeGroup, scale_out: str | None) -> dict[str, int]:
    """Return rail of each adapter on the fabric `scale-out` between the nodes, by the adapter's name and in the order
    of the rails."""
    return _rails(nic for nic in nodes.nics if nic.fabric in (None, scale_out))


def adapters_on(nodes: NodeGroup, fabric: Fabric) -> dict[str, int]:
    """Return the rail of each adapter on the fabric, by its name and in the order of the rails; one without a fabric is
    on the scale-out one."""
    if fabric.role == "scale-out":
        return rails_of_group(nodes, fabric.name)
    return _rails(nic for nic in nodes.nics if nic.fabric == fabric.name)


def gpu_of(nodes: NodeGroup) -> Gpu | None:
    """Return the GPU of the nodes, as the group describes it or the catalogue; None without GPUs and where neither has it."""
    name, own = nodes.gpu, nodes.gpu_model
    if name is None or own is None:
        return None if name is None else gpus().get(name)
    if own.like not in gpus():
        return None
    known = gpus()[own.like]
    return replace(
        known,
        name=name,
        source="the cluster file",
        host_arch=None,
        memory_gib=known.memory_gib if own.memory is None else own.memory // (1 << 30),
        usable_gib=known.usable_gib if own.memory is None else own.memory / (1 << 30),
        memory_tb_s=known.memory_tb_s if own.memory_bandwidth is None else own.memory_bandwidth / 1e12,
        bf16_tflops=known.bf16_tflops if own.bf16_tflops is None else own.bf16_tflops,
        fp8_tflops=known.fp8_tflops if own.fp8_tflops is None else own.fp8_tflops or None,
        fp4_tflops=known.fp4_tflops if own.fp4_tflops is None else own.fp4_tflops or None,
        scale_up_gb_s=known.scale_up_gb_s if own.nvlink is None else own.nvlink / 1e9,
    )


def part_of_nodes(nodes: NodeGroup, gpus: int | None) -> NodeGroup:
    """Return what a job that uses so many GPUs of each node sees of the group: a node's share of everything but its adapters."""
    if nodes.gpus is None or gpus is None or gpus >= nodes.gpus:
        return nodes
    part = _Part.of(gpus, nodes.gpus, nodes.cpus, nodes.host_memory, domain_of(nodes), nodes.hourly_cost)
    shares = {"cpus": part.cpus, "host_memory": part.memory, "nvlink_domain": part.domain, "hourly_cost": part.cost}
    return nodes.model_copy(update={"gpus": gpus, **shares})


def part_of_group(group: GroupPlan, gpus: int | None) -> GroupPlan:
    """Return the same of a planned group."""
    if gpus is None or not group.gpus or gpus >= group.gpus:
        return group
    part = _Part.of(gpus, group.gpus, group.cpus, group.host_memory_bytes, group.nvlink_domain, group.hourly_cost)
    return replace(
        group,
        gpus=gpus,
        procs=gpus,
        cpus=part.cpus,
        host_memory_bytes=part.memory,
        nvlink_domain=part.domain,
        hourly_cost=part.cost,
    )


class _Part(Struct, frozen=True):
    """The share of a node that some of its GPUs have: cores, memory in bytes, GPUs that NVLink connects, and cost an hour."""

    cpus: int
    memory: int | None
    domain: int
    cost: float | None

    @classmethod
    def of(cls, gpus: int, whole: int, cpus: int, memory: int | None, domain: int, cost: float | None) -> "_Part":
        return cls(
            max(1, cpus * gpus // whole),
            None if memory is None else memory * gpus // whole,
            min(domain, gpus) if domain <= whole else domain // whole * gpus,
            None if cost is None else cost * gpus / whole,
        )


def _rails(nics: Iterable[Nic]) -> dict[str, int]:
    rails = {nic.name: place if nic.rail is None else nic.rail for place, nic in enumerate(nics)}
    return dict(sorted(rails.items(), key=lambda item: item[1]))


def resolve_group(nodes: NodeGroup, scale_out: str | None) -> GroupPlan:
    """Return the group with every default filled in; `scale-out` is the name of the fabric between the nodes."""
    return GroupPlan(
        name=nodes.name,
        count=nodes.count,
        held_back=nodes.held_back,
        arch=nodes.arch,
        cpus=nodes.cpus,
        host_memory_bytes=nodes.host_memory,
        procs=procs_per_node(nodes),
        gpu=nodes.gpu,
        gpu_model=None if nodes.gpu_model is None else gpu_of(nodes),
        gpus=nodes.gpus or 0,
        nvlink_domain=domain_of(nodes) if nodes.gpus else 0,
        imex=nodes.imex,
        nics=tuple(rails_of_group(nodes, scale_out)),
        nic=nodes.nic,
        nic_gbps=None if nodes.nic_speed is None else nodes.nic_speed / GBPS,
        hourly_cost=nodes.hourly_cost,
        threads_per_core=nodes.threads_per_core,
        other_nics=_other_nics(nodes, scale_out),
        interfaces=tuple(NicInterface(nic.name, nic.interface) for nic in nodes.nics if nic.interface is not None) or None,
        uses_netplan=nodes.network_config == "netplan",
    )


def _other_nics(nodes: NodeGroup, scale_out: str | None) -> tuple[FabricNics, ...] | None:
    """Return the adapters on other fabrics than `scale_out`, in the order in which the group names those; None without any."""
    names = dict.fromkeys(nic.fabric for nic in nodes.nics if nic.fabric not in (None, scale_out))
    found = (FabricNics(str(name), tuple(_rails(nic for nic in nodes.nics if nic.fabric == name))) for name in names)
    return tuple(found) or None
