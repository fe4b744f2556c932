"""Defines the options of Kubernetes on a cluster."""

from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints

from headway.jobspec.spec.scheduling import NAME, SUBDOMAIN, Key, KubernetesAllow, Subdomain, Toleration, Value
from headway.jobspec.spec.section import Name, Section

# No part of a path is `.` or `..`.
Absolute = Annotated[str, StringConstraints(pattern=r"^(/([.]?[^/.][^/]*)?)+$")]
ExtendedResource = Annotated[str, StringConstraints(pattern=f"^{SUBDOMAIN}/{NAME}$")]


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
    context: str | None = Field(None, min_length=1, examples=["research-cluster"])
    """Context of the user's kubeconfig with which `headway submit` and the other verbs of runs reach the cluster; the current one when
    left out."""
    image: str | None = Field(None, pattern=r"^[^\s]+$", examples=[f"registry.example.com/headway@sha256:{'4f' * 32}"])
    """Container image of jobs that set none, with headway and what the training needs; a digest is the same everywhere."""
    image_pull_policy: Literal["Always", "IfNotPresent", "Never"] | None = Field(None, examples=["IfNotPresent"])
    """When nodes pull the image; Kubernetes' default when left out."""
    service_account: Subdomain | None = Field(None, examples=["training"])
    """ServiceAccount of the pods; the namespace's `default` when left out. Pods get no token of it."""
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
    local_queue: Name | None = Field(None, examples=["research"])
    """LocalQueue of Kueue that admits jobs; Kueue is not used when left out."""
    priority_class: Subdomain | None = Field(None, examples=["training"])
    """PriorityClass of the pods."""
    labels: dict[Key, Value] = Field(default_factory=dict, examples=[{"team": "nlp"}])
    """Labels of each JobSet and of its pods."""
    annotations: dict[Key, str] = Field(default_factory=dict, examples=[{"k8s.v1.cni.cncf.io/networks": "rail-0,rail-1"}])
    """Annotations of the pods."""
    image_pull_secrets: tuple[Subdomain, ...] = Field((), max_length=64, examples=[["registry"]])
    """Secrets of the namespace with which nodes pull images."""
    secrets: Subdomain = Field("headway-secrets", examples=["training-secrets"])
    """Secret of the namespace that has jobs' `secrets`, by the names of their variables, unless a job names another."""
    runtime_class: Subdomain | None = Field(None, examples=["nvidia"])
    """RuntimeClass of the pods."""
    pod: dict[str, Any] = Field(default_factory=dict, examples=[{"schedulerName": "volcano"}])
    """Further fields of a pod's `spec`, as Kubernetes names them; `volumes`, `containers` and `initContainers` are added to headway's."""
    container: dict[str, Any] = Field(default_factory=dict, examples=[{"env": [{"name": "SITE", "value": "a"}]}])
    """Further fields of the container that runs the ranks, as Kubernetes names them; `env` and `volumeMounts` are added to headway's."""
    allow: KubernetesAllow | None = Field(None, examples=[{"local_queue": ["research", "spot"], "labels": "any"}])
    """Fields that jobs may set under `scheduler.kubernetes`; all when left out, within what the API server permits."""
    restricted: bool = Field(False, examples=[True])
    """Whether pods meet the Pod Security level `restricted`: a user other than root, and the runtime's seccomp profile."""
    fs_group: int | None = Field(None, ge=0, le=2**31 - 1, examples=[1000])
    """Group that owns the volumes of claims, so that a user other than root can write to them."""
    user: int | None = Field(None, ge=0, le=2**31 - 1, examples=[1000])
    """User id of the processes; the image's when left out."""
    group: int | None = Field(None, ge=0, le=2**31 - 1, examples=[1000])
    """Group id of the processes; the image's when left out."""
    max_restarts: int = Field(100, ge=0, le=2**31 - 1, examples=[100])
    """Attempts after the first, not counting those that end at their time limit."""
