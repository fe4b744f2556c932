"""The TrainingJob document: what a user wants to run, on any cluster."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from headway.jobspec.choice import Choice
from headway.jobspec.spec.layout import Layout
from headway.jobspec.spec.model import Model
from headway.jobspec.spec.resilience import Checkpoint, Restart
from headway.jobspec.spec.section import API_VERSION, Name, Section
from headway.runner import contract

DEFAULT_TRAINER = "builtin"


class Batch(Section):
    """How much one optimizer step reads."""

    global_sequences: int = Field(alias="global", ge=1, examples=[1024])
    """Sequences per optimizer step, over all ranks."""
    micro_sequences: int = Field(alias="micro", ge=1, examples=[2])
    """Sequences per forward pass of one rank."""
    sequence_length: int = Field(alias="sequence", ge=1, examples=[4096])
    """Tokens in one sequence."""


class Optimizer(Section):
    """AdamW with linear warm-up, then a cosine."""

    lr: float = Field(gt=0, examples=[3e-4])
    """Learning rate after the warm-up."""
    beta1: float = Field(contract.Optimizer.beta1, ge=0, lt=1, examples=[0.9])
    """Decay of the first moment."""
    beta2: float = Field(contract.Optimizer.beta2, ge=0, lt=1, examples=[0.95])
    """Decay of the second moment."""
    eps: float = Field(contract.Optimizer.eps, gt=0, examples=[1e-8])
    """Term that keeps the update away from division by zero."""
    weight_decay: float = Field(contract.Optimizer.weight_decay, ge=0, examples=[0.1])
    """Decoupled weight decay."""
    clip_norm: float = Field(contract.Optimizer.clip_norm, gt=0, examples=[1.0])
    """Largest norm of the gradient over all parameters."""
    warmup_steps: int = Field(contract.Optimizer.warmup_steps, ge=0, examples=[2000])
    """Steps of linear warm-up."""
    min_lr_ratio: float = Field(contract.Optimizer.min_lr_ratio, ge=0, le=1, examples=[0.1])
    """Learning rate at the last step, as a share of `lr`."""


def _as_names(value: Any) -> Any:
    return (value,) if isinstance(value, str) else tuple(value) if isinstance(value, list) else value


class TrainingJob(Section):
    """A TrainingJob document."""

    apiVersion: Literal["headway/v1alpha1"] = Field(examples=[API_VERSION])  # noqa: N815 (the document's spelling)
    """Version of the spec's language."""
    kind: Literal["TrainingJob"] = Field(examples=["TrainingJob"])
    """Kind of document."""
    name: Name = Field(examples=["quickstart"])
    """Name of the job: a DNS label, lower case."""
    cluster: Annotated[tuple[Name, ...], BeforeValidator(_as_names)] = Field(min_length=1, examples=["two-h100-nodes"])
    """Name of the Cluster document, or a list of names of which the first is the default."""
    nodes: int = Field(ge=1, le=100_000, examples=[2])
    """Nodes to run on."""
    model: Model = Field(examples=[{"vocab_size": 256, "layers": 4, "hidden": 128}])
    """What is trained."""
    layout: Layout = Field(default_factory=Layout, examples=[{"dp_shard": 16}])
    """How the ranks are laid out."""
    data: Choice = Field(examples=[{"kind": "files", "options": {"paths": ["corpus/*.txt"]}}])
    """Where the tokens come from."""
    batch: Batch = Field(examples=[{"global": 1024, "micro": 2, "sequence": 4096}])
    """How much one optimizer step reads."""
    optimizer: Optimizer = Field(examples=[{"lr": 3e-4, "warmup_steps": 2000}])
    """How the parameters are updated."""
    trainer: Choice = Field(Choice(kind=DEFAULT_TRAINER), examples=[{"kind": "builtin"}])
    """Who runs the steps."""
    steps: int = Field(ge=1, examples=[10000])
    """Optimizer steps of the whole run."""
    seed: int = Field(contract.RunConfig.seed, ge=0, le=2**63 - 1, examples=[1])
    """Seed of initialization, dropout and the sample order."""
    checkpoint: Checkpoint = Field(examples=[{"tiers": [{"kind": "disk", "every_steps": 100}]}])
    """How the run is saved."""
    restart: Restart = Field(default_factory=Restart, examples=[{"budget": 3}])
    """How often it starts again after a failure."""
    time_limit: str | None = Field(None, pattern=r"^[0-9]{1,3}:[0-5][0-9]:[0-5][0-9]$", examples=["01:30:00"])
    """Longest time of one attempt, as hours:minutes:seconds; the scheduler ends the attempt then."""
    grace_s: float = Field(contract.RunConfig.grace_s, gt=0, le=3600, examples=[30])
    """Seconds that a worker gets to save and stop when it is told to."""
