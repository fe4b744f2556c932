"""Defines finished plans: every default filled in, every rank, path and variable decided; renderers only print them."""

import json
from collections.abc import Mapping
from functools import cached_property
from typing import Any

from msgspec import Struct, field

from headway.jobspec.catalog.gpus import Gpu, gpus
from headway.jobspec.json_text import Omitted, json_text
from headway.jobspec.resolve.fingerprint import with_sizes
from headway.jobspec.resolve.model import ModelSizes
from headway.runner.contract import Mesh, RunConfig, without_shared

JOB_PLAN_SCHEMA = "headway.job-plan/3"
CLUSTER_PLAN_SCHEMA = "headway.cluster-plan/3"

# The two lowest bits of the traffic class byte; 10 means that the sender understands marks.
_ECT0 = 2


class EnvVar(Struct, frozen=True):
    """A variable of every rank's environment, why it is set, and the public source that defines it.

    `decided_by` is the part of the cluster file with which its value must agree; None if a job may set another.
    """

    name: str
    value: str
    reason: str
    source: str
    decided_by: str | None = None


class Rank(Struct, frozen=True):
    """Where a rank runs, and its coordinates in the order of the mesh's axes."""

    rank: int
    slot: int
    local_rank: int
    coords: tuple[int, ...]


class FabricNics(Struct, frozen=True):
    """Adapters of a node on one fabric, in the order of their rails."""

    fabric: str
    nics: tuple[str, ...]


class NicInterface(Struct, frozen=True):
    """The network interface of an adapter, as `ip link` prints it."""

    nic: str
    interface: str


class GroupPlan(Struct, frozen=True):
    """Nodes that are alike: `procs` ranks on each, which share its `cpus` cores.

    Jobs may plan with `count` less `held_back` of them. `nvlink_domain` GPUs reach each other over NVLink; 0 without GPUs. `nics` are
    the adapters on the fabric between the nodes, in the order of their rails, `other_nics` those on other fabrics. `gpu_model` is the GPU
    that the cluster file describes because the catalogue does not have it. `grow_to` are the nodes of the group in the fabric between them
    when that has the size that it is planned for; None where it has the present ones. `interfaces` are those of its adapters, where the
    cluster file names them, and netplan configures them if it `uses_netplan`.
    """

    name: str
    count: int
    cpus: int
    procs: int
    gpu: str | None
    gpus: int
    nics: tuple[str, ...]
    gpu_model: Gpu | None = None
    held_back: int = 0
    arch: str = "x86_64"
    host_memory_bytes: int | None = None
    nvlink_domain: int = 0
    imex: bool = False
    nic: str | None = None
    nic_gbps: float | None = None
    hourly_cost: float | None = None
    threads_per_core: int = 1
    other_nics: Omitted[tuple[FabricNics, ...] | None] = None
    grow_to: Omitted[int | None] = None
    interfaces: Omitted[tuple[NicInterface, ...] | None] = None
    uses_netplan: Omitted[bool] = False

    @property
    def known_gpu(self) -> Gpu | None:
        """The values of its GPU, from the cluster file or the catalogue; None without GPUs and where neither has them."""
        return self.gpu_model or (None if self.gpu is None else gpus().get(self.gpu))

    @property
    def is_amd(self) -> bool:
        """Whether its GPUs are AMD's; those that nothing describes count as NVIDIA's."""
        return self.known_gpu is not None and self.known_gpu.vendor == "AMD"

    @property
    def backend(self) -> str:
        """The collectives library of torch that its ranks use."""
        return "nccl" if self.gpus else "gloo"


class NodePlan(Struct, frozen=True):
    """A node: the `index`-th of its group. `host` and `port` are its SSH address; None when no document has it."""

    name: str
    group: str
    index: int
    host: str | None
    port: int
    nics: tuple[str, ...]
    serial: str | None = None


class EcnPlan(Struct, frozen=True):
    """Switches mark packets from `min_bytes` of queue on, `percent` of them at `max_bytes`, and all above."""

    min_bytes: int
    max_bytes: int
    percent: int


class ClassPlan(Struct, frozen=True):
    """A class of traffic and every number by which some device identifies it.

    `priority` is 802.1p's and PFC's; `traffic_class`, `queue` and `priority_group` are the switch's own: the class
    after its DSCP is read, the queue at the way out, the buffer at the way in. `bandwidth_percent` None is strict
    priority.
    """

    name: str
    carries: str
    dscp: int
    priority: int
    traffic_class: int
    queue: int
    priority_group: int
    lossless: bool
    ecn: EcnPlan | None
    bandwidth_percent: int | None

    @property
    def tos(self) -> int:
        """The IP traffic class byte of its packets: the DSCP, and ECT(0) where switches mark them (RFC 3168)."""
        return self.dscp << 2 | (_ECT0 if self.ecn else 0)


class QosPlan(Struct, frozen=True):
    """All classes of a fabric. Every other DSCP has priority, traffic class, queue and group 0, and `rest_percent` of a full link."""

    classes: tuple[ClassPlan, ...]
    rest_percent: int

    def carrying(self, what: str) -> ClassPlan | None:
        """Return the class of the traffic `what`."""
        return next((each for each in self.classes if each.carries == what), None)

    @property
    def rdma(self) -> ClassPlan | None:
        """The class of RDMA: of collectives, or of files on a fabric for storage."""
        return self.carrying("collectives") or self.carrying("storage")

    def of_dscp(self, dscp: int) -> ClassPlan | None:
        """Return the class of packets with this DSCP; None is the rest."""
        return next((each for each in self.classes if each.dscp == dscp), None)

    @property
    def lossless_priorities(self) -> tuple[int, ...]:
        """The PFC priorities that pause and do not drop, ascending."""
        return tuple(sorted(each.priority for each in self.classes if each.lossless))


class FabricPlan(Struct, frozen=True):
    """A network with one role. `qos` is None where no class is planned.

    Rail r is in plane r modulo `planes`. Of what comes into a leaf from below, 1 in `leaf_oversubscription` fits through its links up;
    the same between a pod and the tier above it. `congestion` is None if it is not set. `addresses` is the network that the
    adapters' addresses are of; `os` are the kinds of files that its switches get, and `switch_model` is their model in the catalogue,
    if the cluster file names one. `sharp` is whether its switches reduce, `service_level` that of collectives on InfiniBand.
    """

    name: str
    role: str
    transport: str
    interface: str | None
    qos: QosPlan | None
    addresses: str | None
    os: tuple[str, ...]
    shape: str | None = None
    rails: int = 1
    planes: int = 1
    pods: int = 1
    leaf_oversubscription: float = 1.0
    spine_oversubscription: float = 1.0
    congestion: str | None = None
    balancing: str = "ecmp"
    switch_model: str | None = None
    sharp: Omitted[bool] = False
    service_level: Omitted[int | None] = None


class PortPlan(Struct, frozen=True):
    """A port with a cable in it, or for the cable of a device to come. `index` counts from 0; `peer_port` is the port or adapter at the
    other end.

    `role`: `node` or `fabric`. `address` is this end's own with its prefix length; None on unnumbered links between switches.
    """

    index: int
    name: str
    lanes: int
    role: str
    peer: str
    peer_port: str
    gbps: int
    metres: int
    address: str | None


class SwitchPlan(Struct, frozen=True):
    """A switch: the `index`-th with its `role` (`leaf`, `spine`, `core`) in its fabric. `router_id` is its loopback address too; switches
    of InfiniBand have none, nor an AS number.

    `block` is the network of a leaf's links to nodes; None on spines, and where the links of one leaf are no network.

    `host` and `ssh_port` are where SSH answers at its management port; None when no inventory has them, as `guid`, that of InfiniBand.
    `port_count` are all ports of a switch of InfiniBand, with and without a cable.
    """

    name: str
    fabric: str
    role: str
    index: int
    asn: int | None
    router_id: str | None
    ports: tuple[PortPlan, ...]
    block: str | None = None
    host: str | None = None
    ssh_port: int = 22
    serial: str | None = None
    guid: Omitted[str | None] = None
    port_count: Omitted[int | None] = None

    @property
    def uplinks(self) -> tuple[PortPlan, ...]:
        """Its ports to other switches: the interfaces of its BGP sessions."""
        return tuple(port for port in self.ports if port.role == "fabric")


class ComingSwitch(Struct, frozen=True):
    """A switch that comes when the fabric grows, and for which those that exist have ports."""

    name: str
    fabric: str
    role: str
    asn: int | None


class LinkPlan(Struct, frozen=True):
    """A cable between two ends, each a device and its port or adapter. The end at a node has the `address`."""

    a: str
    a_port: str
    b: str
    b_port: str
    gbps: int
    metres: int
    address: str | None


class StoragePlan(Struct, frozen=True):
    """A place for files: `path` of a file system, `url` of an object store, for the nodes of `groups`."""

    name: str
    kind: str
    path: str | None
    shared: bool
    url: str | None = None
    groups: tuple[str, ...] = ()
    write_bytes_s: int | None = None
    read_bytes_s: int | None = None
    capacity_bytes: int | None = None


class FailurePlan(Struct, frozen=True):
    """Mean times in seconds, as far as they were observed on the cluster."""

    node_mtbf_s: float | None = None
    job_mtbf_s: float | None = None
    rack_mtbf_s: float | None = None
    repair_s: float | None = None


class ClusterPlan(Struct, frozen=True, dict=True):
    """The cluster against which a job is resolved. `hash` is that of its document, at the size that a fabric may grow to.

    `coming` are switches that do not exist yet; nodes to come are peers of ports alone.
    """

    name: str
    hash: str
    scheduler: str
    provider: str | None
    groups: tuple[GroupPlan, ...]
    nodes: tuple[NodePlan, ...]
    fabrics: tuple[FabricPlan, ...]
    switches: tuple[SwitchPlan, ...]
    links: tuple[LinkPlan, ...]
    storage: tuple[StoragePlan, ...]
    versions: Mapping[str, str] = field(default_factory=dict)
    failures: FailurePlan = field(default_factory=FailurePlan)
    coming: Omitted[tuple[ComingSwitch, ...]] = ()
    schema: str = CLUSTER_PLAN_SCHEMA

    @property
    def shared_storage(self) -> StoragePlan | None:
        """The shared file system that holds the runs and their checkpoints; None without one."""
        return next((storage for storage in self.storage if storage.shared and storage.path is not None), None)

    def group(self, name: str) -> GroupPlan:
        """Return the group of nodes of this name; KeyError when there is none."""
        return {group.name: group for group in self.groups}[name]

    def fabric(self, name: str) -> FabricPlan:
        """Return the fabric of this name; KeyError when there is none."""
        found = {fabric.name: fabric for fabric in self.fabrics}
        return found[name]

    def nics_on(self, node: NodePlan, fabric: str) -> tuple[str, ...]:
        """Return the node's adapters on a fabric, in the order of their rails."""
        if self.scale_out is not None and self.scale_out.name == fabric:
            return node.nics
        return next((each.nics for each in self.group(node.group).other_nics or () if each.fabric == fabric), ())

    @cached_property
    def switch_of_name(self) -> Mapping[str, SwitchPlan]:
        """Each switch by its name."""
        return {switch.name: switch for switch in self.switches}

    @cached_property
    def switch_roles(self) -> Mapping[str, str]:
        """The role of each switch by its name, those to come too."""
        return {switch.name: switch.role for switch in self.switches} | {switch.name: switch.role for switch in self.coming}

    @cached_property
    def switch_asns(self) -> Mapping[str, int | None]:
        """The AS number of each switch by its name, those to come too."""
        return {switch.name: switch.asn for switch in self.switches} | {switch.name: switch.asn for switch in self.coming}

    @cached_property
    def devices(self) -> frozenset[str]:
        """Names of the nodes and switches that exist."""
        return frozenset({node.name for node in self.nodes}.union(switch.name for switch in self.switches))

    def cabled(self, switch: SwitchPlan) -> tuple[PortPlan, ...]:
        """Return the ports of the switch with a device at the other end that exists."""
        there = self.devices
        return tuple(port for port in switch.ports if port.peer in there)

    @cached_property
    def link_addresses(self) -> Mapping[str, Mapping[str, tuple[str, str]]]:
        """By node and adapter: the adapter's address with its prefix length, and the address of the leaf's port at the other end."""
        leaves = {(switch.name, port.name): port.address for switch in self.switches for port in switch.ports if port.address}
        found: dict[str, dict[str, tuple[str, str]]] = {}
        for link in self.links:
            gateway = leaves.get((link.a, link.a_port))
            if link.address and gateway:
                found.setdefault(link.b, {})[link.b_port] = (link.address, gateway.partition("/")[0])
        return found

    @property
    def scale_out(self) -> FabricPlan | None:
        """The fabric between the nodes, which NCCL uses."""
        return next((fabric for fabric in self.fabrics if fabric.role == "scale-out"), None)


class MountPlan(Struct, frozen=True):
    """A directory of the nodes, inside the job's containers."""

    source: str
    target: str
    read_only: bool


class JobPlan(Struct, frozen=True):
    """A job on one cluster. `runs` is the directory that holds its runs; `time_limit` is hours:minutes:seconds.

    `spares` nodes are held in addition to the `slots` that compute. `segment_nodes` must come from one NVLink domain
    together, and as multiples of which every domain is used; None where it does not matter which nodes the job gets.

    `spec` is the whole spec with its defaults, `code` what is to run: the git commit (`HEAD`: the one that holds the
    spec) and image.
    """

    name: str
    cluster: str
    scheduler: str
    spec_hash: str
    cluster_hash: str
    group: str
    slots: int
    spares: int
    procs_per_slot: int
    cpus_per_slot: int
    gpus_per_slot: int
    world_size: int
    mesh: Mesh
    backend: str
    ranks: tuple[Rank, ...]
    env: tuple[EnvVar, ...]
    runs: str
    time_limit: str | None
    segment_nodes: int | None
    code: Mapping[str, str | None]
    model: ModelSizes | None
    mounts: tuple[MountPlan, ...]
    run: RunConfig
    spec: Mapping[str, Any]
    gpus_per_node: int = 0
    schema: str = JOB_PLAN_SCHEMA

    @property
    def has_whole_nodes(self) -> bool:
        """Whether the job uses all GPUs of its nodes, or there are none; else others may run next to it."""
        return self.gpus_per_slot == self.gpus_per_node

    @property
    def nodes(self) -> int:
        """The nodes of an attempt: those that compute, then the spares."""
        return self.slots + self.spares

    @property
    def outlives_nodes(self) -> bool:
        """Whether an attempt continues when it loses a node: another takes its place."""
        return self.spares > 0 or self.run.timeouts["replace"].floor_s > 0 or self.run.min_slots is not None

    @property
    def node_range(self) -> str:
        """The nodes of an attempt as schedulers write them: their number, or the fewest and the most."""
        return f"{self.nodes}" if self.run.min_slots is None else f"{self.run.min_slots}-{self.nodes}"

    @property
    def secrets(self) -> tuple[str, ...]:
        """The names of the variables that are secrets."""
        return tuple(secret["name"] for secret in self.spec["secrets"])

    @property
    def preparation(self) -> str | None:
        """The job's set-up as a script for `sh -c`, which then runs the command in its arguments; None without one."""
        lines = self.spec["setup"]
        return "\n".join(["set -e", *lines, 'exec "$@"']) if lines else None

    @property
    def kept_spec(self) -> Mapping[str, Any]:
        """The part of the spec that an attempt keeps, to compare a later one with: the model by its sizes too."""
        return with_sizes(self.spec, self.model)

    @property
    def spec_without_run(self) -> Mapping[str, Any]:
        """The kept spec without the values that run.json has, for files that hold both; the runner puts them together."""
        return without_shared(json.loads(json_text(self.kept_spec)), json.loads(to_json(self.run)))

    @property
    def run_stem(self) -> str:
        """The prefix of its runs' names; a number, a date or the scheduler's job id follows."""
        return f"{self.name}-{self.spec_hash[:8]}"


def to_json(plan: JobPlan | ClusterPlan | RunConfig) -> str:
    """Return the plan as JSON text: the same plan gives the same bytes."""
    return json_text(plan)
