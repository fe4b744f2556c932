"""Defines how a job handles failures: checkpoints, restarts, spares, and checks for silent corruption."""

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from headway.jobspec.spec.section import Section
from headway.jobspec.spec.storage import StoreUrl
from headway.jobspec.spec.written import OrAuto
from headway.jobspec.units import Bytes, Every, Seconds, Steps
from headway.runner import contract

EnvName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=128)]


class Tier(Section):
    """A place for checkpoints and how often one is written there."""

    kind: Literal["memory", "peer", "shared", "remote"] = Field(examples=["shared"])
    """`memory`: this node's, which survives the death of a process; `peer`: another node's, which survives the loss of a node; `shared`: \
the storage that holds the runs; `remote`: an object store. Scripts use them through `headway.checkpoint`."""
    every: Annotated[Every, OrAuto("1 steps")] = Field(examples=["100 steps", "15m"])
    """Steps or time from one checkpoint to the next."""
    url: StoreUrl | None = Field(None, examples=["s3://training/checkpoints"])
    """Bucket and prefix of a `remote` tier, in an object store that the cluster's `storage` lists (`kind: object`)."""
    keep: int | None = Field(None, ge=2, examples=[10])
    """Verified checkpoints kept on `shared` or `remote`; the checkpoint section's `keep` when left out. Memory holds the newest."""


class Checkpoint(Section):
    """Checkpoints of a run."""

    tiers: tuple[Tier, ...] = Field(min_length=1, max_length=4, examples=[[{"kind": "shared", "every": "100 steps"}]])
    """Where checkpoints go, each kind once."""
    keep: int = Field(contract.Tier.keep, ge=2, examples=[3])
    """Verified checkpoints to keep; at least 2, so that one is left when the newest fails verification."""
    horizon: Steps | None = Field(None, examples=["10000 steps"])
    """How far back silent corruption may be found, in steps: one older verified checkpoint is kept in addition to the newest. At least as \
far as `resilience.corruption` looks back."""
    host_memory: Bytes | None = Field(None, ge=1, examples=["400GiB"])
    """Node memory for captures of its ranks and copies for other nodes; all of the node's when left out."""


class Restart(Section):
    """How often a failed run restarts automatically."""

    budget: int = Field(contract.Restart.budget, ge=0, examples=[3])
    """Restarts available."""
    refill_steps: int = Field(contract.Restart.refill_steps, ge=1, examples=[100])
    """Steps of new progress that give one restart back."""
    no_progress: int = Field(contract.Restart.no_progress, ge=1, examples=[3])
    """Restarts in a row without a new step after which the run stops."""


class Timeouts(Section):
    """How long something may take before it counts as failed."""

    join: Seconds = Field(contract.DEFAULT_TIMEOUTS["join"].floor_s, gt=0, le=86400, examples=["10m"])
    """Until every node of the job has joined."""
    last_call: Seconds = Field(contract.DEFAULT_TIMEOUTS["last_call"].floor_s, gt=0, le=86400, examples=["30s"])
    """Until spares replace nodes that have not joined, once enough nodes are there."""
    agent: Seconds = Field(contract.DEFAULT_TIMEOUTS["agent"].floor_s, ge=1, le=3600, examples=["30s"])
    """A node that cannot be reached and does not reconnect, without other evidence of its loss."""
    node: Seconds = Field(contract.DEFAULT_TIMEOUTS["node"].floor_s, ge=1, le=3600, examples=["10s"])
    """A silent node while no rank makes progress and no spare is available: machines pause for seconds."""
    node_spare: Seconds = Field(contract.DEFAULT_TIMEOUTS["node_spare"].floor_s, ge=1, le=3600, examples=["3s"])
    """The same if a spare is available."""
    replace: Seconds = Field(contract.DEFAULT_TIMEOUTS["replace"].floor_s, ge=0, le=86400, examples=["5m"])
    """Until a node replaces a lost one when no spare is left; `0s`: the scheduler replaces it at once, in a new attempt."""
    replica: Seconds = Field(contract.DEFAULT_TIMEOUTS["replica"].floor_s, gt=0, le=86400, examples=["5m"])
    """With `replica_recovery`: until a lost replica group trains again; then all ranks restart from a checkpoint."""
    listen: Seconds = Field(contract.DEFAULT_TIMEOUTS["listen"].floor_s, ge=1, le=86400, examples=["1m"])
    """Until the node of slot 0 can listen on its own name for the other nodes; then another one takes the slot."""
    terminate: Seconds = Field(contract.DEFAULT_TIMEOUTS["terminate"].floor_s, gt=0, le=86400, examples=["30s"])
    """From SIGTERM to SIGKILL, for ranks of a script whose peer has failed: they may save."""
    kill: Seconds = Field(contract.DEFAULT_TIMEOUTS["kill"].floor_s, ge=1, le=86400, examples=["1m"])
    """A killed rank whose process does not exit (it hangs in a driver or a mount); then its node is excluded."""
    store: Seconds = Field(contract.DEFAULT_TIMEOUTS["store"].floor_s, ge=1, le=86400, examples=["10m"])
    """A store that does not answer when the run starts, restarts or ends."""
    verify: Seconds = Field(contract.DEFAULT_TIMEOUTS["verify"].floor_s, gt=0, le=86400, examples=["5m"])
    """Until the ranks of a restarted script have verified its saved files; files loaded later are verified when they are loaded."""
    start: Seconds = Field(contract.DEFAULT_TIMEOUTS["start"].floor_s, gt=0, le=86400, examples=["30m"])
    """A rank before its first step without a heartbeat. This and those below end what nothing else shows to hang, and all but
    `start` and `collective` are longer where ten times the usual is."""
    data: Seconds = Field(contract.DEFAULT_TIMEOUTS["data"].floor_s, gt=0, le=86400, examples=["15m"])
    """A rank that waits for a batch."""
    compute: Seconds = Field(contract.DEFAULT_TIMEOUTS["compute"].floor_s, gt=0, le=86400, examples=["15m"])
    """A rank in a forward or backward pass, or an optimizer step."""
    compile: Seconds = Field(contract.DEFAULT_TIMEOUTS["compile"].floor_s, gt=0, le=86400, examples=["1h"])
    """A rank that compiles."""
    collective: Seconds = Field(contract.DEFAULT_TIMEOUTS["collective"].floor_s, ge=1, le=86400, examples=["10m"])
    """A rank in a collective; the builtin trainer gives it to torch.distributed too."""
    checkpoint: Seconds = Field(contract.DEFAULT_TIMEOUTS["checkpoint"].floor_s, gt=0, le=86400, examples=["30m"])
    """A rank that saves or loads a checkpoint."""
    evaluation: Seconds = Field(contract.DEFAULT_TIMEOUTS["evaluation"].floor_s, gt=0, le=86400, examples=["1h"])
    """A rank that evaluates, or waits for a server or a clock."""
    busy: Seconds = Field(contract.DEFAULT_TIMEOUTS["busy"].floor_s, gt=0, le=604800, examples=["1d"])
    """In place of those above but `collective`: a rank that uses CPU or I/O but sends no heartbeat."""


class Corruption(Section):
    """Checks against silent data corruption: wrong values that nothing reports."""

    compare: Every | None = Field(None, examples=["1000 steps"])
    """How often ranks compare checksums of what they hold identically: parameters and optimizer state of data-parallel replicas, as \
DistributedDataParallel and DTensors have them. Trainer `script` only."""
    replay: Every | None = Field(None, examples=["5000 steps"])
    """How often a step is recomputed on other ranks and compared, bit by bit, before it is applied. Trainer `builtin` only, on \
data-parallel ranks (`pp`, `cp` and `tp` are 1), without `compile`."""
    grad_norm_factor: float | None = Field(None, gt=1, examples=[10.0])
    """A step whose gradient norm is this many times its running median is checked in the same way. Trainer `builtin` only."""


class Notify(Section):
    """Whom to notify of a failure that needs a person."""

    webhook_env: EnvName = Field(examples=["RUN_WEBHOOK"])
    """Variable with the address of a webhook, set where the job is submitted; the address is a secret and not part of a spec."""


class Resilience(Section):
    """How a job handles failures."""

    spares: Annotated[int, OrAuto(0)] = Field(0, ge=0, le=10_000, examples=[1])
    """Spare nodes that the job holds, so that it can continue at once when one is lost."""
    restart: Restart = Field(default_factory=Restart, examples=[{"budget": 3}])
    """How often a failed run restarts automatically."""
    timeouts: Timeouts = Field(default_factory=Timeouts, examples=[{"join": "10m"}])
    """How long something may take."""
    corruption: Corruption | None = Field(None, examples=[{"compare": "1000 steps"}])
    """Checks against silent data corruption."""
    replica_recovery: bool = Field(False, examples=[True])
    """Whether the other replica groups (`layout.dp_replicate`) train on when one loses a process, and take over its share of each batch \
until it is back. Trainer `builtin` only, on CPUs."""
    notify: Notify | None = Field(None, examples=[{"webhook_env": "RUN_WEBHOOK"}])
    """Whom to notify of a failure that needs a person."""
    grace: Seconds = Field(contract.RunConfig.grace_s, gt=0, le=3600, examples=["30s"])
    """Time that a worker gets to save and stop when asked to."""
