"""Defines the Cluster document, in which the platform's owner describes the machines."""

from typing import Literal

from pydantic import Field

from headway.jobspec.choice import Choice
from headway.jobspec.spec.fabric import Fabric
from headway.jobspec.spec.nodes import NodeGroup
from headway.jobspec.spec.operation import Failures, Health, Versions
from headway.jobspec.spec.section import API_VERSION, Ignore, Name, Section
from headway.jobspec.spec.storage import Storage
from headway.jobspec.spec.written import Bases


class Cluster(Section):
    """A Cluster document."""

    apiVersion: Literal["headway/v1alpha1"] = Field(examples=[API_VERSION])  # noqa: N815 (the document's spelling)
    """Version of the spec's language."""
    kind: Literal["Cluster"] = Field(examples=["Cluster"])
    """Kind of document."""
    name: Name = Field(examples=["two-h100-nodes"])
    """Name of the cluster: a DNS label, lower case."""
    extends: Bases = Field((), examples=["base.yaml"])
    """A Cluster document that this one extends, by its path from here, or a list of which later ones win."""
    partial: bool = Field(False, examples=[True])
    """Whether this document is only a base for others, and may be incomplete."""
    ignore: tuple[Ignore, ...] = Field(
        (), max_length=100, examples=[[{"code": "HW231", "field": "node_groups", "reason": "a sample of the next GPU"}]]
    )
    """Problems that are accepted, each with its reason: warnings, and errors about which the author can know better."""
    scheduler: Choice = Field(examples=[{"kind": "slurm"}])
    """The scheduler that starts jobs."""
    provider: Choice | None = Field(None, examples=[{"kind": "onprem"}])
    """How `headway up` reaches the machines."""
    node_groups: tuple[NodeGroup, ...] = Field(
        min_length=1, max_length=1024, examples=[[{"name": "gpu", "count": 2, "cpus": 96}]]
    )
    """Groups of nodes; a job without `group` runs on the first."""
    fabrics: tuple[Fabric, ...] = Field(
        (), max_length=32, examples=[[{"name": "admin", "role": "management", "transport": "tcp", "interface": "eth0"}]]
    )
    """Networks, each with its role."""
    storage: tuple[Storage, ...] = Field(
        (), max_length=64, examples=[[{"name": "runs", "kind": "posix", "path": "runs", "shared": True}]]
    )
    """Places for files."""
    versions: Versions = Field(default_factory=Versions, examples=[{"driver": "570.124.06", "cuda": "12.8", "nccl": "2.27.3"}])
    """Software on the nodes; the versions are checked against each other and against the GPUs."""
    health: Health | None = Field(None, examples=[{"timeout": "30s", "drain_at_most": 4}])
    """When a node is excluded."""
    failures: Failures = Field(default_factory=Failures, examples=[{"node_mtbf": "300d"}])
    """Failures observed on this cluster."""
