"""Defines groups of identical nodes: processors, GPUs, adapters."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, StringConstraints

from headway.jobspec.spec.section import Name, Section
from headway.jobspec.units import BitRate, ByteRate, Bytes

Host = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][-A-Za-z0-9.]*(:[0-9]+)?$", max_length=259)]
AdapterName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][-A-Za-z0-9_.]{0,62}$")]
# Linux has 15 characters for it; without those that are a pattern for systemd.
InterfaceName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][-A-Za-z0-9_.]{0,14}$")]
_MODEL = r"^[A-Za-z0-9][-A-Za-z0-9_.]*$"


class Nic(Section):
    """An adapter of each node."""

    name: AdapterName = Field(examples=["mlx5_0"])
    """Its name, as `ibv_devices` prints it."""
    rail: int | None = Field(None, ge=0, le=63, examples=[0])
    """Rail that it is on; its place among the adapters on its fabric, counted from 0, when left out."""
    fabric: Name | None = Field(None, examples=["rails"])
    """Fabric that it is on; the scale-out fabric when left out."""
    interface: InterfaceName | None = Field(None, examples=["enp26s0np0"])
    """Its network interface, as `ip link` prints it, which a file of netplan names."""


def _named(value: Any) -> Any:
    return {"name": value} if isinstance(value, str) else value


NamedNic = Annotated[Nic, BeforeValidator(_named, json_schema_input_type=AdapterName | Nic)]


class GpuModel(Section):
    """A GPU that the catalogue does not have, by what it differs in from one that it has."""

    like: str = Field(pattern=_MODEL, examples=["H100-SXM-80"])
    """The model of the same generation in the catalogue (docs/models.md) that it resembles. Its values hold where this leaves them out, and
    so do the efficiencies measured on it."""
    memory: Bytes | None = Field(None, ge=1 << 30, examples=["96GiB"])
    """Memory that a job can use."""
    memory_bandwidth: ByteRate | None = Field(None, ge=1, examples=["4TB/s"])
    """Bandwidth of the memory."""
    bf16_tflops: float | None = Field(None, gt=0, examples=[148])
    """Peak rate of dense matrices in bf16, in 10^12 operations a second."""
    fp8_tflops: float | None = Field(None, ge=0, examples=[296])
    """Peak rate of dense matrices in fp8; 0 without such units."""
    fp4_tflops: float | None = Field(None, ge=0, examples=[0])
    """Peak rate of dense matrices in 4 bits; 0 without such units."""
    nvlink: ByteRate | None = Field(None, ge=1, examples=["400GB/s"])
    """Exchange rate with the other GPUs of its NVLink domain, both directions together; that of PCIe where there is no NVLink."""


class NodeGroup(Section):
    """A group of identical nodes."""

    name: Name = Field(examples=["gpu"])
    """Name of the group: jobs and storage refer to it as `group` and `groups`, and its nodes are called `NAME-1`, `NAME-2` and so on."""
    count: int = Field(ge=1, le=100_000, examples=[2])
    """Nodes in the group."""
    held_back: int = Field(0, ge=0, le=100_000, examples=[1])
    """Nodes of the group that no job may plan with: the site keeps them to replace lost ones. Spares are what a job holds itself."""
    arch: Literal["x86_64", "aarch64"] = Field("x86_64", examples=["aarch64"])
    """Instruction set of the hosts."""
    cpus: int = Field(ge=1, le=4096, examples=[96])
    """CPU cores that a job gets on one node."""
    threads_per_core: int = Field(1, ge=1, le=8, examples=[2])
    """Hardware threads of a core that the scheduler counts as processors: `ThreadsPerCore` of Slurm, hyperthreads for Kubernetes."""
    host_memory: Bytes | None = Field(None, ge=1, examples=["2TiB"])
    """Main memory of one node."""
    procs: int | None = Field(None, ge=1, le=1024, examples=[2])
    """Ranks that one node of a group without GPUs runs; 1 when left out."""
    gpu: str | None = Field(None, pattern=_MODEL, examples=["H100-SXM-80"])
    """Name of the GPU model in the catalogue (docs/models.md), or of one that `gpu_model` describes."""
    gpu_model: GpuModel | None = Field(None, examples=[{"like": "H100-SXM-80", "memory": "96GiB", "bf16_tflops": 148}])
    """The GPU, where the catalogue does not have it."""
    gpus: int | None = Field(None, ge=1, le=64, examples=[8])
    """GPUs in one node, each of which runs one rank."""
    nvlink_domain: int | None = Field(None, ge=1, le=576, examples=[72])
    """GPUs connected by NVLink; those of one node when left out, a multiple of them in rack-scale systems, and fewer where bridges
    join PCIe cards in pairs."""
    imex: bool = Field(False, examples=[True])
    """Whether GPUs of one NVLink domain may map memory of other nodes: the IMEX service runs and its channels are there."""
    nics: tuple[NamedNic, ...] = Field((), max_length=64, examples=[["mlx5_0", "mlx5_1"]])
    """RDMA adapters of one node, by name or with their rail and fabric."""
    network_config: Literal["script", "netplan"] = Field("script", examples=["netplan"])
    """How the adapters on switched RoCE fabrics get addresses, MTU, routes and rules: from the script `headway-qos` when the node \
starts, or from a file of netplan, where that configures the node's other networks too, by systemd-networkd. Each of these adapters \
then needs its `interface`."""
    nic: str | None = Field(None, examples=["ConnectX-7"])
    """Model of the adapters in the catalogue (docs/models.md). Estimates of time and an `auto` layout need it, or `nic_speed`, where a
    job has several nodes."""
    nic_speed: BitRate | None = Field(None, examples=["400Gb/s"])
    """Speed of one adapter's link, also of an Ethernet port without RDMA. Adapters on another fabric than the scale-out one have the \
`speed` of its switches, if that is set."""
    hosts: tuple[Host, ...] = Field((), examples=[["10.0.0.11", "10.0.0.12"]])
    """SSH addresses of the nodes, in order, with `:PORT` unless it is 22. An Inventory may set them too."""
    hourly_cost: float | None = Field(None, ge=0, examples=[24.5])
    """Cost of one node per hour, in any one currency."""
