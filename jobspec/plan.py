"""Finished plans: every default filled in, every rank, path and variable decided; renderers only print them."""

import dataclasses
from dataclasses import dataclass

from headway.jobspec.json_text import json_text
from headway.runner.contract import Mesh, RunConfig

JOB_PLAN_SCHEMA = "headway.job-plan/1"
CLUSTER_PLAN_SCHEMA = "headway.cluster-plan/1"


@dataclass(frozen=True)
class EnvVar:
    """A variable of every rank's environment, why it is set, and the public source that defines it."""

    name: str
    value: str
    reason: str
    source: str


@dataclass(frozen=True)
class Rank:
    """Where a rank runs, and its coordinates in the order of the mesh's axes."""

    rank: int
    slot: int
    local_rank: int
    coords: tuple[int, ...]


@dataclass(frozen=True)
class GroupPlan:
    """Nodes that are alike: `procs` ranks on each, which share its `cpus` cores."""

    name: str
    count: int
    cpus: int
    procs: int
    gpu: str | None
    gpus: int
    nics: tuple[str, ...]

    @property
    def backend(self) -> str:
        """The collectives library of torch that its ranks use."""
        return "nccl" if self.gpus else "gloo"


@dataclass(frozen=True)
class FabricPlan:
    """A network with one role."""

    name: str
    role: str
    transport: str
    interface: str | None
    dscp: int | None


@dataclass(frozen=True)
class StoragePlan:
    """A place for files."""

    name: str
    kind: str
    path: str
    shared: bool


@dataclass(frozen=True)
class ClusterPlan:
    """What a job is resolved against."""

    name: str
    hash: str
    scheduler: str
    groups: tuple[GroupPlan, ...]
    fabrics: tuple[FabricPlan, ...]
    storage: tuple[StoragePlan, ...]
    schema: str = CLUSTER_PLAN_SCHEMA


@dataclass(frozen=True)
class JobPlan:
    """A job on one cluster. `runs` is the directory that holds its runs; `time_limit` is hours:minutes:seconds."""

    name: str
    cluster: str
    scheduler: str
    spec_hash: str
    cluster_hash: str
    group: str
    slots: int
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
    run: RunConfig
    schema: str = JOB_PLAN_SCHEMA

    @property
    def run_stem(self) -> str:
        """What the names of its runs begin with; a number, a date or the scheduler's job id follows."""
        return f"{self.name}-{self.spec_hash[:8]}"


def to_json(plan: JobPlan | ClusterPlan | RunConfig) -> str:
    """The plan as JSON text: the same plan gives the same bytes."""
    return json_text(dataclasses.asdict(plan))
