"""Defines run.json (`RunConfig`) and its parts."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any

from headway.runner.contract.history import Change, in_force
from headway.runner.contract.timeouts import DEFAULT_TIMEOUTS, Timeout

RUN_SCHEMA = "headway.run/1"


@dataclass(frozen=True)
class Mesh:
    """Degrees of each mesh axis, outermost first: the rank order is the layout order, tp innermost."""

    pp: int = 1
    dp_replicate: int = 1
    dp_shard: int = 1
    cp: int = 1
    tp: int = 1

    @property
    def axes(self) -> tuple[str, ...]:
        return tuple(f.name for f in dataclasses.fields(self))

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(getattr(self, axis) for axis in self.axes)

    @property
    def world_size(self) -> int:
        return prod(self.shape)


@dataclass(frozen=True)
class Model:
    """A Llama-family decoder: RMSNorm, rotary positions, grouped-query attention, gated MLP."""

    vocab_size: int
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    ffn_hidden: int
    rope_theta: float = 10_000.0
    norm_eps: float = 1e-5
    dropout: float = 0.0
    tie_embeddings: bool = False


@dataclass(frozen=True)
class Data:
    """The source of the tokens: `{kind, options}`."""

    kind: str
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Batch:
    """Sequences per optimizer step over all ranks, sequences per forward pass of one rank, tokens per sequence."""

    global_sequences: int
    micro_sequences: int
    sequence_length: int


@dataclass(frozen=True)
class Optimizer:
    """AdamW with linear warm-up, then the schedule: `cosine` and `linear` fall to `min_lr_ratio` of `lr` at the last step,
    `wsd` does so over the last `decay_steps`, `constant` never."""

    lr: float
    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-8
    weight_decay: float = 0.1
    clip_norm: float = 1.0
    warmup_steps: int = 0
    min_lr_ratio: float = 0.1
    schedule: str = "cosine"
    decay_steps: int | None = None


@dataclass(frozen=True)
class Execution:
    """How the builtin trainer computes a step: the `options` of its `trainer` in run.json.

    `sharding`: the state that data-parallel ranks split, `none`, `optimizer`, `gradients` or `parameters`. `schedule` is a
    class of torch.distributed.pipelining, with `virtual_stages` on each pipeline rank. `parameters`, `compute` and `reduce`
    are formats: of the copy that the optimizer updates, of matrix products, and of sums of gradients. `recompute`: `none`,
    `selective` (attention) or `full` (blocks). `prefetch`: the next block's parameters are gathered while a block computes.
    """

    sharding: str = "parameters"
    sequence_parallel: bool = True
    schedule: str = "1F1B"
    virtual_stages: int = 1
    parameters: str = "fp32"
    compute: str = "fp32"
    reduce: str = "fp32"
    recompute: str = "none"
    compile: bool = False
    prefetch: bool = False


@dataclass(frozen=True)
class Trainer:
    """The trainer that runs the steps: `{kind, options}`."""

    kind: str
    options: Mapping[str, Any] = field(default_factory=dict)


# Every kind of checkpoint tier, from the one that is lost first to the one that is lost last; a restore prefers them in this order.
TIER_KINDS = ("memory", "peer", "shared", "remote")
# Those with files, a manifest and a commit, which outlive the job's nodes. The others are captures in the memory of nodes, the newest only.
STORED_TIERS = ("shared", "remote")
CAPTURED_TIERS = ("memory", "peer")


@dataclass(frozen=True)
class Tier:
    """One checkpoint tier of a kind in TIER_KINDS, written each `every_steps` optimizer steps or each `every_s` seconds.

    Exactly one of the two is set. `keep` is the number of verified checkpoints to retain; `url` is bucket and prefix of a remote tier.
    """

    kind: str
    every_steps: int | None = None
    every_s: float | None = None
    keep: int = 3
    url: str | None = None

    def interval_s(self, step_s: float) -> float:
        """Return the seconds of training between two checkpoints, for steps of `step_s` seconds."""
        return self.every_s if self.every_steps is None and self.every_s is not None else (self.every_steps or 1) * step_s


@dataclass(frozen=True)
class Checkpoint:
    """The checkpoint tiers of a run.

    `horizon_steps`: silent corruption may be detected this many steps late, so one verified checkpoint that is at least
    this much older than the newest is retained. `host_memory_bytes` limits the memory of a node for captures and copies
    for other nodes; null: all that the node has.
    """

    tiers: tuple[Tier, ...] = ()
    horizon_steps: int = 0
    host_memory_bytes: int | None = None

    def has(self, kind: str) -> bool:
        """Return whether there is a tier of this kind."""
        return any(tier.kind == kind for tier in self.tiers)

    @property
    def remote(self) -> str | None:
        """Bucket and prefix of the remote tier; None without one."""
        return next((tier.url for tier in self.tiers if tier.kind == "remote"), None)

    @property
    def buffers(self) -> int:
        """Captures of each rank in its node's memory: one is filled while another is written; an upload may hold a third for long."""
        return 0 if not self.tiers else 3 if self.has("remote") else 2

    @property
    def copies(self) -> int:
        """Captures of each of the partner's ranks in a node's memory: the newest, and the one that is being received."""
        return 2 if self.has("peer") else 0


@dataclass(frozen=True)
class Store:
    """The place of the chain and the checkpoints. `url` is null until the run directory exists."""

    kind: str = "posix"
    url: str | None = None


@dataclass(frozen=True)
class Restart:
    """`budget` restarts, one returned for every `refill_steps` of new progress; stop after `no_progress` restarts in a row without any."""

    budget: int = 3
    refill_steps: int = 100
    no_progress: int = 3


@dataclass(frozen=True)
class Limits:
    """The most that all attempts of a run may use together: seconds without those in the queue, and GPU-hours with those of spares."""

    time_s: float | None = None
    gpu_hours: float | None = None


@dataclass(frozen=True)
class Ports:
    """TCP ports; 0 takes any free one: the coordinator publishes its port in the attempt's directory, and each generation's
    rendezvous store has another. A port that is given for the store is that of all generations."""

    coordinator: int = 0
    store: int = 0


@dataclass(frozen=True)
class Every:
    """Once per `steps` optimizer steps or per `seconds`: exactly one of the two is set."""

    steps: int | None = None
    seconds: float | None = None


@dataclass(frozen=True)
class Corruption:
    """Checks against silent data corruption.

    `compare`: compare checksums of the state that replicas share. `replay`: compute a step again, each part of its batch
    on another rank. `grad_norm_factor`: examine a gradient norm of this many times its running median.
    """

    compare: Every | None = None
    replay: Every | None = None
    grad_norm_factor: float | None = None


@dataclass(frozen=True)
class Notify:
    """`webhook_env`: the variable of the supervisor's environment with the webhook's address, which is a secret."""

    webhook_env: str


@dataclass(frozen=True)
class Domain:
    """Hosts that share a failure or an NVLink domain."""

    name: str
    hosts: tuple[str, ...]


@dataclass(frozen=True)
class RunConfig:
    """run.json: the runner's whole configuration. `run` and `store.url` are null until the run directory exists.

    `spares` nodes are idle in addition to the `slots` that compute. With `min_slots` fewer slots may compute, if there are
    no more nodes. `partner_segment` consecutive slots may be lost together (one NVLink domain); copies for `peer` are in
    another segment if there is one. `segment_required`: each `segment_slots` consecutive slots must be in one of `domains`
    (groups of ranks that communicate over NVLink). `peer_dscp` marks the packets of peer copies; null: the system's default.
    `replica_recovery`: the other replica groups train on while a lost one starts again.
    `cluster` names the list of suspect hosts, which jobs share. `metrics_port` serves Prometheus on loopback.
    """

    slots: int
    procs_per_slot: int
    mesh: Mesh
    trainer: Trainer
    spec_hash: str
    seed: int = 0
    steps: int | None = None
    backend: str = "gloo"
    model: Model | None = None
    data: Data | None = None
    batch: Batch | None = None
    optimizer: Optimizer | None = None
    checkpoint: Checkpoint = field(default_factory=Checkpoint)
    history: tuple[Change, ...] = ()
    store: Store = field(default_factory=Store)
    restart: Restart = field(default_factory=Restart)
    timeouts: Mapping[str, Timeout] = field(default_factory=lambda: dict(DEFAULT_TIMEOUTS))
    grace_s: float = 30.0
    spares: int = 0
    min_slots: int | None = None
    corruption: Corruption | None = None
    replica_recovery: bool = False
    notify: Notify | None = None
    limits: Limits = field(default_factory=Limits)
    domains: tuple[Domain, ...] = ()
    segment_required: bool = False
    segment_slots: int = 1
    partner_segment: int = 1
    cluster: str | None = None
    metrics_port: int | None = None
    peak_tflops: float | None = None
    peer_dscp: int | None = None
    ports: Ports = field(default_factory=Ports)
    run: str | None = None
    schema: str = RUN_SCHEMA

    @property
    def world_size(self) -> int:
        return self.slots * self.procs_per_slot

    def timeout_s(self, name: str) -> float:
        """Return a timeout in seconds. An older run.json may not have it; then its default applies."""
        return self.timeouts.get(name, DEFAULT_TIMEOUTS[name]).floor_s

    @property
    def last_step(self) -> int | None:
        """The number of steps of the whole run, with the changes of its history."""
        return next((change.set["steps"] for change in reversed(in_force(self.history)) if "steps" in change.set), self.steps)


def coordinates(mesh: Mesh, rank: int) -> dict[str, int]:
    """Return the rank's coordinate on every axis of `mesh`."""
    found: dict[str, int] = {}
    for axis, degree in zip(reversed(mesh.axes), reversed(mesh.shape), strict=True):
        rank, found[axis] = divmod(rank, degree)
    return {axis: found[axis] for axis in mesh.axes}
