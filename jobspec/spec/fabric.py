"""A network of a cluster: what travels on it, in which class, over which switches."""

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from headway.jobspec.choice import Choice
from headway.jobspec.spec.section import Name, Section

Prefix = Annotated[str, StringConstraints(pattern=r"^[0-9.]+/[0-9]{1,2}$")]


class Ecn(Section):
    """From which length of a queue on a switch marks packets, so that their senders slow down."""

    min_bytes: int = Field(ge=1, le=1 << 40, examples=[1048576])
    """Queue length at which marking begins, in bytes."""
    max_bytes: int = Field(ge=1, le=1 << 40, examples=[2097152])
    """Queue length at which the marked share has grown to `percent`; above it every packet is marked, in bytes."""
    percent: int = Field(ge=1, le=100, examples=[5])
    """Share of the packets that is marked at `max_bytes`."""


class TrafficClass(Section):
    """Traffic of one DSCP, from the sender's mark to the switch's queue."""

    name: Name = Field(examples=["roce"])
    """Name of the class."""
    carries: Literal["collectives", "cnp"] = Field(examples=["collectives"])
    """`collectives`: what NCCL sends; `cnp`: the congestion notifications that answer marked packets."""
    dscp: int = Field(ge=0, le=63, examples=[26])
    """DSCP of its packets."""
    priority: int | None = Field(None, ge=1, le=7, examples=[3])
    """802.1p and PFC priority; the DSCP's upper three bits when left out, which is what adapters do by themselves."""
    queue: int | None = Field(None, ge=1, le=7, examples=[3])
    """Egress queue of the switches; the priority's number when left out. Queue 0 takes what is in no class."""
    lossless: bool = Field(False, examples=[True])
    """Whether a full buffer pauses the sender (PFC) where it would drop."""
    ecn: Ecn | None = Field(None, examples=[{"min_bytes": 1048576, "max_bytes": 2097152, "percent": 5}])
    """When switches mark its packets; they never do when left out."""
    bandwidth_percent: int | None = Field(None, ge=1, le=99, examples=[60])
    """Its share of a link that is full. When left out, 50 for collectives; `cnp` goes before everything that has a share."""


class Switches(Section):
    """Leaves and spines of one fabric. Adapter i of every node hangs on a leaf of rail i."""

    leaves: int = Field(ge=1, le=16384, examples=[2])
    """Number of leaves: a multiple of the rails, that is, of the adapters of a node."""
    spines: int = Field(ge=1, le=4096, examples=[2])
    """Number of spines; every leaf is linked to every spine."""
    uplinks: int = Field(1, ge=1, le=64, examples=[1])
    """Links between a leaf and a spine."""
    ports: int = Field(64, ge=2, le=1024, examples=[64])
    """Ports of a switch. The lower half of a leaf is for nodes, the upper half for spines."""
    gbps: int = Field(400, ge=1, le=1600, examples=[400])
    """Speed of every link."""
    lanes: int = Field(8, ge=1, le=8, examples=[8])
    """Lanes of a port."""
    node_metres: int = Field(5, ge=1, le=2000, examples=[5])
    """Length of the cables between nodes and leaves; lossless queues need room for what is on the cable."""
    spine_metres: int = Field(40, ge=1, le=2000, examples=[40])
    """Length of the cables between leaves and spines."""
    asn: int = Field(4200000000, ge=1, le=4294967294, examples=[4200000000])
    """BGP: AS number of all spines; the leaves count on from it. RFC 6996 keeps 4200000000 and up for private use."""
    loopbacks: Prefix = Field("10.255.0.0/16", examples=["10.255.0.0/16"])
    """Addresses of the switches themselves: the lower half for spines, the upper half for leaves."""
    addresses: Prefix = Field("10.128.0.0/10", examples=["10.10.0.0/16"])
    """Addresses of the links to nodes, two for each: the leaf's and the adapter's."""
    os: tuple[Choice, ...] = Field(min_length=1, examples=[[{"kind": "sonic"}, {"kind": "frr"}]])
    """Operating systems that each switch's files are rendered for."""


class Fabric(Section):
    """A network with one role."""

    name: Name = Field(examples=["rails"])
    """Name of the fabric."""
    role: Literal["scale_up", "scale_out", "storage", "management"] = Field(examples=["scale_out"])
    """What it is for: `scale_up` inside a node or NVLink domain, `scale_out` between them."""
    transport: Literal["roce", "infiniband", "tcp", "nvlink"] = Field(examples=["roce"])
    """How data travels on it."""
    interface: str | None = Field(None, pattern=r"^[^\s/:]{1,15}$", examples=["eth0"])
    """Kernel interface of a TCP fabric, by the name that `ip link` prints."""
    classes: tuple[TrafficClass, ...] = Field(
        (), examples=[[{"name": "roce", "carries": "collectives", "dscp": 26, "lossless": True}]]
    )
    """Classes of traffic of a RoCE fabric; what is in none of them shares queue 0."""
    switches: Switches | None = Field(None, examples=[{"leaves": 2, "spines": 2, "os": [{"kind": "sonic"}]}])
    """Its switches, where headway renders their files."""
