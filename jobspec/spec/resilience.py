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

    kind: Literal["memory", "peer", "disk", "remote"] = Field(examples=["disk"])
    """`memory`: this node's, which outlives the death of a process; `peer`: another node's, which outlives the loss of a node; `disk`: \
the storage that holds the runs; `remote`: an object store. A script of one's own has them by `headway.checkpoint`."""
    every: Annotated[Every, OrAuto("1 steps")] = Field(examples=["100 steps", "15m"])
    """Steps or time from one checkpoint to the next."""
    url: StoreUrl | None = Field(None, examples=["s3://training/checkpoints"])
    """Bucket and prefix of a `remote` tier."""
    keep: int | None = Field(None, ge=2, examples=[10])
    """Verified checkpoints that stay on `disk` or `remote`; the checkpoint section's `keep` when left out. Memory holds the newest."""


class Checkpoint(Section):
    """Checkpoints of a run."""

    tiers: tuple[Tier, ...] = Field(min_length=1, max_length=4, examples=[[{"kind": "disk", "every": "100 steps"}]])
    """Where checkpoints go, each kind once."""
    keep: int = Field(contract.Tier.keep, ge=2, examples=[3])
    """Verified checkpoints that stay; at least 2, so that one is left when the newest does not verify."""
    horizon: Steps | None = Field(None, examples=["10000 steps"])
    """How far back silent corruption may be found, in steps: one verified checkpoint that is older stays beside the newest. At least as \
far as `resilience.corruption` looks back."""
    host_memory: Bytes | None = Field(None, ge=1, examples=["400GiB"])
    """What captures of the ranks, and copies for other nodes, may take of a node's memory; what the node has when left out."""


class Restart(Section):
    """How often a failed run starts again by itself."""

    budget: int = Field(contract.Restart.budget, ge=0, examples=[3])
    """Restarts at hand."""
    refill_steps: int = Field(contract.Restart.refill_steps, ge=1, examples=[100])
    """Steps of new progress that give one restart back."""
    no_progress: int = Field(contract.Restart.no_progress, ge=1, examples=[3])
    """Restarts in a row without a new step after which the run stops."""


class Timeouts(Section):
    """How long something may take before it counts as failed."""

    join: Seconds = Field(contract.DEFAULT_TIMEOUTS["join"].floor_s, gt=0, le=86400, examples=["10m"])
    """Until every node of the job has come up."""
    last_call: Seconds = Field(contract.DEFAULT_TIMEOUTS["last_call"].floor_s, gt=0, le=86400, examples=["30s"])
    """Until spares take the places of nodes that have not come up, once enough nodes are there."""
    agent: Seconds = Field(contract.DEFAULT_TIMEOUTS["agent"].floor_s, ge=1, le=3600, examples=["30s"])
    """A node that cannot be reached and does not come back, where nothing else speaks for its loss."""
    node: Seconds = Field(contract.DEFAULT_TIMEOUTS["node"].floor_s, ge=1, le=3600, examples=["10s"])
    """A node that says nothing while no rank goes on, and for which no spare waits: machines pause for seconds."""
    node_spare: Seconds = Field(contract.DEFAULT_TIMEOUTS["node_spare"].floor_s, ge=1, le=3600, examples=["3s"])
    """The same where a spare waits."""
    replace: Seconds = Field(contract.DEFAULT_TIMEOUTS["replace"].floor_s, ge=0, le=86400, examples=["5m"])
    """Until a node comes in place of a lost one, where no spare is left; `0s`: at once the scheduler replaces it, in a new attempt."""
    listen: Seconds = Field(contract.DEFAULT_TIMEOUTS["listen"].floor_s, ge=1, le=86400, examples=["1m"])
    """Until the node of slot 0 can listen on its own name for the other nodes; then another one takes the slot."""
    kill: Seconds = Field(contract.DEFAULT_TIMEOUTS["kill"].floor_s, ge=1, le=86400, examples=["1m"])
    """A rank that was killed, and whose process does not end (it hangs in a driver or a mount); then its node is taken out."""
    store: Seconds = Field(contract.DEFAULT_TIMEOUTS["store"].floor_s, ge=1, le=86400, examples=["10m"])
    """A store that does not answer at all when the run begins, starts anew or ends."""
    start: Seconds = Field(contract.DEFAULT_TIMEOUTS["start"].floor_s, gt=0, le=86400, examples=["30m"])
    """A rank before its first step without a sign of life. This and those below end what nothing else shows to hang, and all but
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
    """In place of those above but `collective`: a rank that is seen to use a processor, or to read and write, without a sign of life."""


class Corruption(Section):
    """Checks against silent data corruption: wrong numbers that nothing reports."""

    compare: Every | None = Field(None, examples=["1000 steps"])
    """How often ranks compare checksums of what they hold alike: parameters and optimizer state of data-parallel replicas, as \
DistributedDataParallel and DTensors have them. For a script."""
    replay: Every | None = Field(None, examples=["5000 steps"])
    """How often a step is computed on other ranks too and compared, bit by bit, before it is applied. Of the trainer `builtin`."""
    grad_norm_factor: float | None = Field(None, gt=1, examples=[10.0])
    """A gradient norm so many times its running median is looked into in the same way, before it is applied. Of the trainer `builtin`."""


class Notify(Section):
    """Who hears of a failure that needs a person."""

    webhook_env: EnvName = Field(examples=["RUN_WEBHOOK"])
    """Variable that holds the address of a webhook where the job is submitted; the address is a secret and not part of a spec."""


class Resilience(Section):
    """What a job does against failures."""

    spares: Annotated[int, OrAuto(0)] = Field(0, ge=0, le=10_000, examples=[1])
    """Nodes that the job holds beside those that it computes on, to go on at once when one is lost."""
    restart: Restart = Field(default_factory=Restart, examples=[{"budget": 3}])
    """How often a failed run starts again by itself."""
    timeouts: Timeouts = Field(default_factory=Timeouts, examples=[{"join": "10m"}])
    """How long something may take."""
    corruption: Corruption | None = Field(None, examples=[{"compare": "1000 steps"}])
    """Checks against silent data corruption."""
    notify: Notify | None = Field(None, examples=[{"webhook_env": "RUN_WEBHOOK"}])
    """Who hears of a failure that needs a person."""
    grace: Seconds = Field(contract.RunConfig.grace_s, gt=0, le=3600, examples=["30s"])
    """What a worker gets to save and stop when it is told to."""
