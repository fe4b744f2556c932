"""The Cluster document: what the platform's owner says about the machines."""

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from headway.jobspec.choice import Choice
from headway.jobspec.spec.fabric import Fabric
from headway.jobspec.spec.section import API_VERSION, Name, Section

Host = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][-A-Za-z0-9.]*(:[0-9]+)?$", max_length=259)]
Adapter = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][-A-Za-z0-9_.]{0,62}$")]


class NodeGroup(Section):
    """Nodes that are alike."""

    group: Name = Field(examples=["gpu"])
    """Name of the group."""
    count: int = Field(ge=1, le=100_000, examples=[2])
    """Nodes in the group."""
    cpus: int = Field(ge=1, le=4096, examples=[96])
    """CPU cores that a job gets on one node."""
    procs: int | None = Field(None, ge=1, le=1024, examples=[2])
    """Ranks that one node of a group without GPUs runs; 1 when left out."""
    gpu: str | None = Field(None, pattern=r"^[A-Za-z0-9][-A-Za-z0-9_.]*$", examples=["H100-SXM-80"])
    """Name of the GPU model."""
    gpus: int | None = Field(None, ge=1, le=64, examples=[8])
    """GPUs in one node, each of which runs one rank."""
    nics: tuple[Adapter, ...] = Field((), examples=[["mlx5_0", "mlx5_1"]])
    """RDMA adapters of one node, by the names that `ibv_devices` prints; adapter i is on rail i."""
    hosts: tuple[Host, ...] = Field((), examples=[["10.0.0.11", "10.0.0.12"]])
    """Addresses by which the nodes are reached over SSH, in their order, with `:PORT` where it is not 22."""


class Storage(Section):
    """A place for files."""

    name: Name = Field(examples=["scratch"])
    """Name of the storage."""
    kind: Literal["posix"] = Field(examples=["posix"])
    """How it is reached; `posix` is a mounted file system."""
    path: str = Field(min_length=1, examples=["/scratch/runs"])
    """Directory; a relative one counts from where the job is submitted."""
    shared: bool = Field(False, examples=[True])
    """Whether every node sees the same files. The first shared storage holds the runs."""


class Cluster(Section):
    """A Cluster document."""

    apiVersion: Literal["headway/v1alpha1"] = Field(examples=[API_VERSION])  # noqa: N815 (the document's spelling)
    """Version of the spec's language."""
    kind: Literal["Cluster"] = Field(examples=["Cluster"])
    """Kind of document."""
    name: Name = Field(examples=["two-h100-nodes"])
    """Name of the cluster: a DNS label, lower case."""
    scheduler: Choice = Field(examples=[{"kind": "slurm"}])
    """What starts jobs."""
    provider: Choice | None = Field(None, examples=[{"kind": "onprem"}])
    """How `headway up` reaches the machines."""
    nodes: tuple[NodeGroup, ...] = Field(min_length=1, examples=[[{"group": "gpu", "count": 2, "cpus": 96}]])
    """Groups of nodes; a job runs on the first."""
    fabrics: tuple[Fabric, ...] = Field(
        (), examples=[[{"name": "admin", "role": "management", "transport": "tcp", "interface": "eth0"}]]
    )
    """Networks, each with its role."""
    storage: tuple[Storage, ...] = Field((), examples=[[{"name": "runs", "kind": "posix", "path": "runs", "shared": True}]])
    """Places for files."""
