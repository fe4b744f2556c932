"""Defines the options of Kubernetes on a cluster."""

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from headway.jobspec.spec.section import Name, Section

# JobSet's webhook checks none of these: it accepts a wrong one, and no pod ever starts. Names of objects are labels
# with dots between them (RFC 1123 subdomain); those of labels, taints and resources may have a domain before a slash.
_SUBDOMAIN = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*"
_NAME = r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
# No part of a path is `.` or `..`.
Absolute = Annotated[str, StringConstraints(pattern=r"^(/([.]?[^/.][^/]*)?)+$")]
Subdomain = Annotated[str, StringConstraints(pattern=f"^{_SUBDOMAIN}$", max_length=253)]
Key = Annotated[str, StringConstraints(pattern=f"^({_SUBDOMAIN}/)?{_NAME}$")]
Value = Annotated[str, StringConstraints(pattern=f"^({_NAME})?$")]
ExtendedResource = Annotated[str, StringConstraints(pattern=f"^{_SUBDOMAIN}/{_NAME}$")]


class Mount(Section):
    """A directory that the pods get from outside: either a claim's or the node's own."""

    path: Absolute = Field(examples=["/scratch"])
    """Path in the pods."""
    claim: Subdomain | None = Field(None, examples=["scratch"])
    """PersistentVolumeClaim in the job's namespace that holds it."""
    host_path: Absolute | None = Field(None, examples=["/mnt/scratch"])
    """Directory of the node, for file systems that every node mounts itself."""
    read_only: bool = Field(False, examples=[True])
    """Whether the pods may only read it."""


class Toleration(Section):
    """A taint of nodes that the pods accept."""

    key: Key = Field(examples=["nvidia.com/gpu"])
    """Key of the taint."""
    value: Value | None = Field(None, examples=["present"])
    """Value of the taint; any when left out."""
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = Field(None, examples=["NoSchedule"])
    """Effect of the taint; any when left out."""
    seconds: int | None = Field(None, ge=0, le=2**31 - 1, examples=[30])
    """How long a pod stays on a node that gets the taint, where the effect is `NoExecute`; forever when left out."""


class Rdma(Section):
    """The RDMA devices of a pod, as the device plugin of the cluster offers them."""

    resource: ExtendedResource = Field(examples=["rdma/hca_shared_devices_a"])
    """Name of the resource."""
    count: int = Field(1, ge=1, le=1024, examples=[1])
    """How many of it a pod asks for; a shared resource counts pods, not adapters."""


class KubernetesOptions(Section):
    """Options of every job of the cluster."""

    namespace: Name = Field("default", examples=["research"])
    """Namespace of all objects."""
    image: str | None = Field(None, pattern=r"^[^\s]+$", examples=[f"registry.example.com/headway@sha256:{'4f' * 32}"])
    """Container image of jobs that set none, with headway and what the training needs; a digest is the same everywhere."""
    image_pull_policy: Literal["Always", "IfNotPresent", "Never"] | None = Field(None, examples=["IfNotPresent"])
    """When nodes pull the image; Kubernetes' default when left out."""
    service_account: Subdomain | None = Field(None, examples=["training"])
    """ServiceAccount of the pods; when left out each job creates one without permissions."""
    setup: tuple[str, ...] = Field((), examples=[[". /opt/headway/bin/activate"]])
    """Lines of POSIX shell that run first in every pod, for example to find `python3`."""
    mounts: tuple[Mount, ...] = Field((), examples=[[{"path": "/scratch", "claim": "scratch"}]])
    """Directories from outside; one of them must hold the runs."""
    memory: str | None = Field(None, pattern=r"^[1-9][0-9]*(([KMGT]i|[kMGT])B?)?$", examples=["1536Gi"])
    """Memory of one pod, including /dev/shm; without it a pod is among the first to be evicted when its node runs short."""
    rdma: Rdma | None = Field(None, examples=[{"resource": "rdma/hca_shared_devices_a"}])
    """RDMA devices of one pod."""
    host_network: bool = Field(False, examples=[True])
    """Whether pods use their node's network, as RoCE needs unless a CNI plugin gives adapters to pods."""
    node_selector: dict[Key, Value] = Field(default_factory=dict, examples=[{"pool": "training"}])
    """Labels that a node must have."""
    tolerations: tuple[Toleration, ...] = Field((), examples=[[{"key": "nvidia.com/gpu"}]])
    """Taints of nodes that the pods tolerate."""
    user: int | None = Field(None, ge=0, le=2**31 - 1, examples=[1000])
    """User id of the processes; the image's when left out."""
    group: int | None = Field(None, ge=0, le=2**31 - 1, examples=[1000])
    """Group id of the processes; the image's when left out."""
    max_restarts: int = Field(100, ge=0, le=2**31 - 1, examples=[100])
    """Attempts after the first, not counting those that end at their time limit."""
