"""Defines the TrainingJob document: a training job that any cluster can run."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, StringConstraints

from headway.jobspec.choice import Choice
from headway.jobspec.spec.batch import Batch
from headway.jobspec.spec.history import Change
from headway.jobspec.spec.layout import Layout
from headway.jobspec.spec.model import Model
from headway.jobspec.spec.resilience import Checkpoint, EnvName, Resilience
from headway.jobspec.spec.scheduling import SchedulerRequest, Subdomain
from headway.jobspec.spec.section import API_VERSION, Ignore, Name, Section
from headway.jobspec.spec.training import Optimizer, Overlap, Precision
from headway.jobspec.spec.written import Bases, OrAuto, OrRange, one_or_many
from headway.jobspec.units import Seconds
from headway.runner import contract

DEFAULT_TRAINER = "builtin"

# execve(2) ends an argument at its first NUL.
Argument = Annotated[str, StringConstraints(pattern=r"^[^\x00]*$")]

_Names = Annotated[tuple[Name, ...], Field(min_length=1, max_length=64)]
Clusters = Annotated[_Names, BeforeValidator(one_or_many, json_schema_input_type=Name | _Names)]


class Code(Section):
    """The code that runs: exactly what was reviewed."""

    commit: Annotated[str, StringConstraints(pattern=r"^(HEAD|[0-9a-f]{40})$")] = Field("HEAD", examples=["HEAD"])
    """Git commit: its whole hash, or `HEAD`, the commit that holds this spec. `headway snapshot` archives it for the job's runs."""
    image: str | None = Field(
        None, pattern=r"^[A-Za-z0-9./_][-A-Za-z0-9._/:@#+]*$", examples=["registry.example.com/train@sha256:9b2c..."]
    )
    """Container image by its digest, since a tag can later refer to another image, or an image file by its path."""


class Secret(Section):
    """A variable of every rank whose value is a secret, which is in no file of the job."""

    name: EnvName = Field(examples=["HF_TOKEN"])
    """Name of the variable."""
    source: Subdomain | None = Field(None, examples=["tracking"])
    """Kubernetes: the Secret of the namespace that has it; that of the cluster's options when left out."""
    key: str | None = Field(None, pattern=r"^[A-Za-z0-9][-A-Za-z0-9_.]{0,254}$", examples=["token"])
    """Kubernetes: its key in the Secret; the variable's name when left out."""


def _named(value: Any) -> Any:
    return {"name": value} if isinstance(value, str) else value


NamedSecret = Annotated[Secret, BeforeValidator(_named, json_schema_input_type=EnvName | Secret)]


class Mount(Section):
    """A directory of the nodes inside the job's containers."""

    source: str = Field(pattern=r"^/", examples=["/data/corpus"])
    """Directory on the node."""
    target: str | None = Field(None, pattern=r"^/", examples=["/data"])
    """Directory in the container; the same when left out."""
    read_only: bool = Field(True, examples=[True])
    """Whether the mount is read-only."""


class Sweep(Section):
    """Runs of the job with other values, one run for each point. A run's name is the job's with the values of its point."""

    grid: dict[str, Annotated[tuple[Any, ...], Field(min_length=1)]] = Field(
        default_factory=dict, examples=[{"optimizer.lr": [1e-4, 3e-4], "seed": [1, 2]}]
    )
    """Values by field, as `optimizer.lr`: one run for every combination."""
    points: tuple[dict[str, Any], ...] = Field((), examples=[[{"optimizer.lr": 1e-4, "batch.micro": 2}]])
    """One run for each item, with the values of its fields."""


class AttemptLimits(Section):
    """The limits of one attempt: from the start of the job, or its restart by the scheduler, to its end."""

    time: Seconds | None = Field(None, ge=60, le=365 * 86400, examples=["1:30:00", "7d"])
    """Longest time of an attempt; the scheduler then ends the attempt, and the next one resumes."""
    gpu_hours: float | None = Field(None, gt=0, examples=[5000])
    """Largest number of GPU-hours of an attempt: nodes x GPUs x time. `headway check` compares it with `time`."""


class RunLimits(Section):
    """The limits of a run over all its attempts. At a limit the run saves where it can, and stops with exit code 83."""

    time: Seconds | None = Field(None, ge=1, le=10 * 365 * 86400, examples=["30d"])
    """Longest time of all attempts together, without the time in the queue."""
    gpu_hours: float | None = Field(None, gt=0, examples=[50000])
    """Largest number of GPU-hours of all attempts together, with those of spares."""


class Limits(Section):
    """The limits of time and cost: of each attempt, and of the run with all its attempts."""

    attempt: AttemptLimits = Field(default_factory=AttemptLimits, examples=[{"time": "7d"}])
    """The limits of one attempt."""
    run: RunLimits = Field(default_factory=RunLimits, examples=[{"gpu_hours": 50000}])
    """The limits of the run over all its attempts."""


class TrainingJob(Section):
    """A TrainingJob document."""

    apiVersion: Literal["headway/v1alpha1"] = Field(examples=[API_VERSION])  # noqa: N815 (the document's spelling)
    """Version of the spec's language."""
    kind: Literal["TrainingJob"] = Field(examples=["TrainingJob"])
    """Kind of document."""
    name: Name = Field(examples=["quickstart"])
    """Name of the job: a DNS label, lower case."""
    extends: Bases = Field((), examples=["base.yaml"])
    """A TrainingJob document that this one extends, by its path from here, or a list of which later ones win."""
    partial: bool = Field(False, examples=[True])
    """Whether this document is only a base for others, and may be incomplete."""
    ignore: tuple[Ignore, ...] = Field(
        (), max_length=100, examples=[[{"code": "HW427", "field": "batch.micro", "reason": "measured: 71 GiB"}]]
    )
    """Problems that are accepted, each with its reason: warnings, and errors about which the author can know better."""
    code: Code = Field(default_factory=Code, examples=[{"commit": "HEAD"}])
    """The code that runs: exactly what was reviewed."""
    cluster: Clusters = Field(examples=["two-h100-nodes"])
    """Name of the Cluster document, or a list of names of which the first is the default. It is looked for in the job's folder and then
    in each folder above, up to the repository's root (`.git`); the nearest counts. If none has it, the whole
    repository is searched. `local`, where no document has that name, is this machine with one rank."""
    group: Name | None = Field(None, examples=["gpu"])
    """Group of nodes to run on; the cluster's first when left out."""
    nodes: Annotated[int, OrRange()] = Field(1, ge=1, le=100_000, examples=[2])
    """Nodes to compute on, or `{min: 6, max: 8}` for a script that can use fewer."""
    min_nodes: int | None = Field(None, ge=1, le=100_000, examples=[6])
    """The `min` of `nodes: {min, max}`, written apart: the run starts on as many nodes as are free, and continues with fewer after a
    loss."""
    gpus: int | None = Field(None, ge=1, le=64, examples=[4])
    """GPUs of each node that the job uses, each for one rank, with the same share of its processors and memory; all when left out."""
    scheduler: SchedulerRequest | None = Field(None, examples=[{"slurm": {"partition": "debug"}}])
    """Fields of the cluster's scheduler that the job sets itself, within what the cluster allows."""
    model: Model | None = Field(None, examples=[{"preset": "llama-3.1-8b"}])
    """The model to train."""
    layout: Annotated[Layout, OrAuto({})] = Field(default_factory=Layout, examples=[{"dp_shard": 16}])
    """How the ranks are laid out."""
    data: Choice | None = Field(None, examples=[{"kind": "files", "options": {"paths": ["corpus/*.txt"]}}])
    """Where the tokens come from."""
    batch: Batch | None = Field(None, examples=[{"global": "1024 sequences", "micro": 2, "sequence": 4096}])
    """How much one optimizer step reads."""
    precision: Precision = Field(default_factory=Precision, examples=[{"compute": "bf16", "reduce": "fp32"}])
    """Number formats."""
    recompute: Annotated[Literal["none", "selective", "full"] | None, OrAuto()] = Field(None, examples=["selective"])
    """Activations recomputed in the backward pass: none, all of a block, or what the framework's own word `selective` means
    (docs/script.md)."""
    overlap: Overlap = Field(default_factory=Overlap, examples=[{"tensor": True}])
    """Communication that overlaps with computation."""
    compile: bool | None = Field(None, examples=[True])
    """Whether blocks are compiled by torch.compile."""
    optimizer: Optimizer | None = Field(None, examples=[{"lr": 3e-4, "warmup_steps": 2000}])
    """How the parameters are updated."""
    run: Annotated[tuple[Argument, ...], Field(min_length=1)] | None = Field(None, examples=[["train.py", "--epochs=3"]])
    """The training script and its arguments: short for `trainer: {kind: script, options: {argv: [...]}}`."""
    trainer: Choice = Field(Choice(kind=DEFAULT_TRAINER), examples=[{"kind": "builtin"}])
    """The trainer that runs the steps: `script` for a job with `run`, `builtin` for one with `data`; else it has to be named."""
    steps: int | None = Field(None, ge=1, examples=[10000])
    """Optimizer steps of the whole run."""
    seed: int = Field(contract.RunConfig.seed, ge=0, le=2**63 - 1, examples=[1])
    """Seed of initialization, dropout and the sample order."""
    checkpoint: Checkpoint | None = Field(None, examples=[{"tiers": [{"kind": "shared", "every": "100 steps"}]}])
    """How the run is saved."""
    resilience: Resilience = Field(default_factory=Resilience, examples=[{"restart": {"budget": 3}}])
    """How the job handles failures."""
    limits: Limits = Field(default_factory=Limits, examples=[{"attempt": {"time": "1:30:00"}}])
    """The limits of the run."""
    environment: dict[EnvName, str] = Field(default_factory=dict, examples=[{"HF_HOME": "/data/hf"}])
    """Variables of every rank, each of one line; they override the plan's, except those that follow from the cluster file
    (docs/fabric.md). Not for secrets."""
    secrets: tuple[NamedSecret, ...] = Field((), max_length=64, examples=[["HF_TOKEN"]])
    """Variables of every rank that are secrets, by name. On Slurm and locally they come from the environment of the submission, or from
    the user's file of that name in `~/.config/headway/secrets` with mode 0600; on Kubernetes from a Secret."""
    setup: tuple[Argument, ...] = Field((), max_length=100, examples=[[". /opt/venv/bin/activate"]])
    """Lines of POSIX shell that run on every node, in the container if there is one, before the ranks; their variables reach the ranks."""
    mounts: tuple[Mount, ...] = Field((), max_length=64, examples=[[{"source": "/data/corpus"}]])
    """Directories of the nodes inside the job's containers."""
    sweep: Sweep | None = Field(None, examples=[{"grid": {"optimizer.lr": [1e-4, 3e-4]}}])
    """Other values of fields, for one run each."""
    history: tuple[Change, ...] = Field(
        (), max_length=1000, examples=[[{"from_step": 12000, "rollback_to": 11800, "skip_samples": 204800}]]
    )
    """Changes made after the run started, oldest first."""
