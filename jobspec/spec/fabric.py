"""Defines a network of a cluster: its traffic, its classes and its switches."""

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from headway.jobspec.choice import Choice
from headway.jobspec.spec.section import Name, Section
from headway.jobspec.units import BitRate, Bytes, Metres

GBPS = 1_000_000_000

Prefix = Annotated[str, StringConstraints(pattern=r"^[0-9.]+/[0-9]{1,2}$")]


class Ecn(Section):
    """Queue lengths at which a switch marks packets, so that their senders slow down."""

    min: Bytes = Field(ge=1, le=1 << 40, examples=["1MiB"])
    """Queue length at which marking begins."""
    max: Bytes = Field(ge=1, le=1 << 40, examples=["2MiB"])
    """Queue length at which the marked share has grown to `percent`; above it every packet is marked."""
    percent: int = Field(ge=1, le=100, examples=[5])
    """Share of the packets that is marked at `max`."""


class TrafficClass(Section):
    """Traffic of one DSCP, from the sender's mark to the switch's queue."""

    name: Name = Field(examples=["roce"])
    """Name of the class."""
    carries: Literal["collectives", "storage", "cnp", "checkpoints"] = Field(examples=["collectives"])
    """`collectives`: what NCCL sends; `storage`: RDMA of file systems, on a fabric with the role `storage`; `cnp`: the congestion \
notifications that answer marked packets; `checkpoints`: copies of checkpoints for the `peer` tier, which go over TCP."""
    dscp: int = Field(ge=0, le=63, examples=[26])
    """DSCP of its packets."""
    priority: int | None = Field(None, ge=1, le=7, examples=[3])
    """802.1p and PFC priority; the DSCP's upper three bits when left out, as adapters do by default."""
    queue: int | None = Field(None, ge=1, le=7, examples=[3])
    """Egress queue of the switches; the priority's number when left out. Queue 0 is for traffic outside all classes. For a lossless class \
SONiC requires the priority's number, because its PFC watchdog watches the queue with that number."""
    lossless: bool = Field(False, examples=[True])
    """Whether a full buffer pauses the sender (PFC) where it would drop."""
    ecn: Ecn | None = Field(None, examples=[{"min": "1MiB", "max": "2MiB", "percent": 5}])
    """When switches mark its packets; they never do when left out."""
    bandwidth_percent: int | None = Field(None, ge=1, le=99, examples=[60])
    """Its share of a saturated link. When left out, 50 for collectives and storage, and 10 for checkpoints; `cnp` has priority over \
every share."""


class Switches(Section):
    """Switches of one fabric, in one tier, two (leaves, spines) or three (with cores). headway derives every size that is left out from \
the nodes, their adapters and the model; `headway plan` shows them."""

    model: str | None = Field(None, examples=["SN5600"])
    """Model of the switches in the catalogue (docs/models.md)."""
    grow_to: int | None = Field(None, ge=1, le=200_000, examples=[512])
    """Nodes that the fabric is sized for; the present number when left out. Until there are so many, new nodes add leaves and whole \
pods, and no cable and no file of a switch, host or job changes: switches have the ports of what is to come. Of several groups the last \
one with GPUs grows."""
    tiers: Literal[1, 2, 3] | None = Field(None, examples=[2])
    """Tiers of switches; the fewest that connect all nodes when left out."""
    leaves: int | None = Field(None, ge=1, le=16384, examples=[2])
    """Number of leaves: a multiple of those in a unit, which is one for each rail unless `leaf_rails` share one. With `spines` and no \
other size, it states two tiers in which the lower half of a leaf's ports is for nodes."""
    spines: int | None = Field(None, ge=1, le=16384, examples=[2])
    """Number of spines: a multiple of the planes; every leaf is linked to every spine of its pod and plane."""
    uplinks: int | None = Field(None, ge=1, le=256, examples=[1])
    """Links between a leaf and a spine. When left out, 1 if `leaves` and `spines` are the only sizes; else they follow."""
    cores: int | None = Field(None, ge=1, le=16384, examples=[64])
    """Number of cores, which connect the pods."""
    core_uplinks: int | None = Field(None, ge=1, le=256, examples=[1])
    """Links between a spine and each core that it is linked to."""
    node_ports: int | None = Field(None, ge=1, le=1024, examples=[32])
    """Ports of a leaf that are for nodes. When left out, so many that the others carry their traffic at `oversubscription.leaf`, and \
a power of two where that costs at most one port in 16: their addresses are then one network."""
    leaf_rails: int | None = Field(None, ge=1, le=64, examples=[2])
    """Rails that share a leaf. When left out, 1, or as many as a leaf has ports for if all nodes fit into one unit."""
    ports: int | None = Field(None, ge=2, le=1024, examples=[64])
    """Ports of a switch; when left out, all that the `model` has with so many `lanes`, or 64 without a model."""
    spine_ports: int | None = Field(None, ge=2, le=4096, examples=[576])
    """Ports of a spine if it has more than a leaf, as a chassis does; `ports` when left out."""
    speed: BitRate | None = Field(None, ge=GBPS, le=1600 * GBPS, multiple_of=GBPS, examples=["400Gb/s"])
    """Speed of the links to nodes, in whole Gb/s. When left out, that of the adapters (`nic_speed`, `nic`), or 400Gb/s where none is \
known or `leaves` and `spines` are the only sizes."""
    uplink_speed: BitRate | None = Field(None, ge=GBPS, le=1600 * GBPS, multiple_of=GBPS, examples=["800Gb/s"])
    """Speed of the links between switches. When left out, `speed` if that is set or `leaves` and `spines` are the only sizes; else the \
fastest of the `model` with which two tiers are enough, or its fastest."""
    lanes: int | None = Field(None, ge=1, le=8, examples=[4])
    """SerDes lanes of a port to a node; when left out, the fewest of the `model` that carry its speed, or 8 without a model."""
    node_cable: Metres = Field(5, ge=1, le=2000, examples=["5m"])
    """Length of the cables between nodes and leaves; lossless queues need room for the data in flight."""
    spine_cable: Metres = Field(40, ge=1, le=2000, examples=["40m"])
    """Length of the cables between leaves and spines."""
    core_cable: Metres = Field(40, ge=1, le=2000, examples=["40m"])
    """Length of the cables between spines and cores."""
    asn: int = Field(4200000000, ge=1, le=4294967294, examples=[4200000000])
    """BGP: AS number of the top tier; the leaves use the numbers after it. In three tiers the spines of a pod share one from 32768 \
numbers later on. RFC 6996 keeps 4200000000 and up for private use."""
    loopbacks: Prefix = Field("10.255.0.0/16", examples=["10.255.0.0/16"])
    """Addresses of the switches themselves: the lower half for spines, and its upper half for cores; the upper half for leaves."""
    addresses: Prefix = Field("10.128.0.0/10", examples=["10.10.0.0/16"])
    """Addresses of the links to nodes, two for each: the leaf's and the adapter's."""
    os: tuple[Choice, ...] = Field(min_length=1, max_length=8, examples=[[{"kind": "sonic"}, {"kind": "frr"}]])
    """Operating systems that each switch's files are rendered for."""


class Oversubscription(Section):
    """Ratio of bandwidth from below to bandwidth upward, tier by tier; 1 is none."""

    leaf: float = Field(1.0, ge=0.75, le=64, examples=[1.5])
    """Speed of a leaf's links to nodes, over that of its links to spines. Below 1 a leaf has spare links, for the loss of \
spines: 0.889 is 16 links to nodes and 18 to spines."""
    spine: float = Field(1.0, ge=1, le=64, examples=[7.0])
    """Speed at which a pod can send, over that of its uplinks."""


class Fabric(Section):
    """A network with one role."""

    name: Name = Field(examples=["rails"])
    """Name of the fabric."""
    role: Literal["scale-up", "scale-out", "storage", "management"] = Field(examples=["scale-out"])
    """Its purpose: `scale-up` inside a node or NVLink domain, `scale-out` between them."""
    transport: Literal["roce", "infiniband", "efa", "tcpxo", "tcp", "nvlink"] = Field(examples=["roce"])
    """How data travels on it; `efa` is AWS's adapter, `tcpxo` Google's GPUDirect-TCPXO, whose own script sets NCCL's variables."""
    interface: str | None = Field(None, pattern=r"^[^\s/:]{1,15}$", examples=["eth0"])
    """Kernel interface of a TCP fabric, by the name that `ip link` prints."""
    shape: Literal["rail-optimized", "rail-only", "leaf-spine", "fat-tree", "dragonfly", "torus"] | None = Field(
        None, examples=["rail-optimized"]
    )
    """How its switches are linked. `rail-optimized`: each rail has separate leaves, connected by spines; `rail-only`: not connected; \
`leaf-spine`: all adapters of a node connect to one leaf."""
    rails: int | None = Field(None, ge=1, le=64, examples=[8])
    """Networks that the adapters of a node are spread over; as many as a node has adapters on it when left out."""
    planes: int = Field(1, ge=1, le=64, examples=[2])
    """Parts with separate spines; rail r is in plane r modulo this number."""
    pods: int = Field(1, ge=1, le=1024, examples=[4])
    """Parts connected only by a tier above the spines."""
    oversubscription: Oversubscription = Field(default_factory=Oversubscription, examples=[{"leaf": 1.0, "spine": 7.0}])
    """Ratio of bandwidth from below to bandwidth upward."""
    congestion: Literal["pfc", "pfc-ecn", "ecn-lossy", "trim-lossy", "nic-managed"] | None = Field(None, examples=["pfc-ecn"])
    """How senders learn that a queue is full. It must agree with the classes, and follows from them when left out."""
    balancing: Literal["ecmp", "ucmp", "qp-hash", "dlb", "adaptive", "spray"] = Field("ecmp", examples=["adaptive"])
    """How packets are spread over equal paths: by flow (`ecmp`, `ucmp` weighted, `qp-hash` by queue pair too), by load (`dlb`), or \
packet by packet (`adaptive`, `spray`). Files of Ethernet switches have `ecmp`, those of Cumulus Linux also `adaptive`, of EOS `dlb`."""
    sharp: bool = Field(False, examples=[True])
    """InfiniBand: whether its switches add up gradients (SHARP). NCCL then needs the plugin of HPC-X (nccl-rdma-sharp-plugins), \
and the switches' aggregation manager must run."""
    service_level: int | None = Field(None, ge=0, le=14, examples=[1])
    """InfiniBand: service level of collectives. Any but 0 has a virtual lane for itself."""
    classes: tuple[TrafficClass, ...] = Field(
        (), max_length=64, examples=[[{"name": "roce", "carries": "collectives", "dscp": 26, "lossless": True}]]
    )
    """Traffic classes of a RoCE fabric; all other traffic shares queue 0. One with the role `scale-out` needs a class that carries
    `collectives`, whatever its switches run: NCCL marks packets with its DSCP."""
    switches: Switches | None = Field(None, examples=[{"leaves": 2, "spines": 2, "os": [{"kind": "sonic"}]}])
    """Its switches, if headway renders their files. Each fabric with switches has its own addresses, loopbacks and AS numbers."""
