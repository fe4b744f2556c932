"""Defines what a job asks of the scheduler of its cluster, by kind of scheduler, and the forms of these values."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, StringConstraints

from headway.jobspec.spec.section import Name, Section
from headway.jobspec.spec.written import one_or_many

# sbatch, not a shell, reads the text after #SBATCH; names of Slurm's accounting need no more than this (IDRIS has `project@v100`).
# The same holds for node features with their operators, for lists of nodes, and for whole options, which may hold quoted text.
_PART = r"[A-Za-z0-9_.,:&|*()!+-]"
Constraint = Annotated[str, StringConstraints(pattern=rf"^([A-Za-z0-9_(!]{_PART}*|\[{_PART}+\]{_PART}*)(\[{_PART}+\]{_PART}*)*$")]
_NODES = r"[A-Za-z0-9_][A-Za-z0-9_.-]*(\[[0-9]+([,-][0-9]+)*\][A-Za-z0-9_.-]*)*"
NodeList = Annotated[str, StringConstraints(pattern=f"^{_NODES}(,{_NODES})*$")]
Directive = Annotated[str, StringConstraints(pattern=r"^--[a-z][a-z0-9_-]*(=[^\x00-\x1f\x7f]*)?$")]
Word = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.,@+-]*$")]
Dependency = Annotated[str, StringConstraints(pattern=r"^(singleton|[a-z]+(:[0-9_+]+)+)([,?](singleton|[a-z]+(:[0-9_+]+)+))*$")]

# JobSet's webhook checks none of these: it accepts a wrong one, and no pod ever starts. Names of objects are labels
# with dots between them (RFC 1123 subdomain); those of labels, taints and resources may have a domain before a slash.
SUBDOMAIN = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*"
NAME = r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
Subdomain = Annotated[str, StringConstraints(pattern=f"^{SUBDOMAIN}$", max_length=253)]
Key = Annotated[str, StringConstraints(pattern=f"^({SUBDOMAIN}/)?{NAME}$")]
Value = Annotated[str, StringConstraints(pattern=f"^({NAME})?$")]

# What jobs may set: a list of values, or of names; `any` for all.
ANY = "any"
# Each of these is meant as `any`.
ALL = (("all",), ("*",))
_Allowed = Annotated[tuple[str, ...], Field(max_length=1024)]
Allowed = Annotated[_Allowed, BeforeValidator(one_or_many, json_schema_input_type=Literal["any"] | str | _Allowed)]
_OptionName = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9-]*$")]
_Options = Annotated[tuple[_OptionName, ...], Field(max_length=1024)]
AllowedOptions = Annotated[_Options, BeforeValidator(one_or_many, json_schema_input_type=Literal["any"] | _OptionName | _Options)]


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


class SlurmRequest(Section):
    """The job's own fields of Slurm. Each value replaces the cluster's, `exclude`, `sbatch`, `srun` and `apptainer` are added to it."""

    partition: Word | None = Field(None, examples=["debug"])
    """Partition, or several with commas between them."""
    account: Word | None = Field(None, examples=["research"])
    """Account to charge."""
    qos: Word | None = Field(None, examples=["high"])
    """Quality of service."""
    reservation: Word | None = Field(None, examples=["training"])
    """Reservation that the nodes come from."""
    nice: int | None = Field(None, ge=-(2**31) + 3, le=2**31 - 3, examples=[100])
    """Number by which the job's priority is lowered, as in sbatch's `--nice`."""
    constraint: Constraint | None = Field(None, examples=["nvme&ib"])
    """Features that the nodes must have, as in sbatch's `--constraint`."""
    exclude: NodeList | None = Field(None, examples=["n[3-4],n9"])
    """Nodes that the job must not get."""
    dependency: Dependency | None = Field(None, examples=["singleton"])
    """Jobs that it waits for, as in sbatch's `--dependency`: `singleton`, or for example `afterok:1234`."""
    sbatch: tuple[Directive, ...] = Field((), max_length=64, examples=[["--switches=1@10:00"]])
    """Further options of sbatch, each as `--name=value`; not those that headway sets."""
    srun: tuple[Directive, ...] = Field((), max_length=64, examples=[["--cpu-bind=cores"]])
    """Further options of the srun that starts the runner on each node; not those that headway sets."""
    apptainer: tuple[Directive, ...] = Field((), max_length=64, examples=[["--fakeroot"]])
    """Further options of `apptainer exec`, each as `--name=value`, on clusters whose containers it starts; not those that headway sets."""


class KubernetesRequest(Section):
    """The job's own fields of Kubernetes. A value replaces the cluster's; lists and mappings are added to it."""

    local_queue: Name | None = Field(None, examples=["research"])
    """LocalQueue of Kueue that admits the job."""
    priority_class: Subdomain | None = Field(None, examples=["high"])
    """PriorityClass of the pods."""
    labels: dict[Key, Value] = Field(default_factory=dict, examples=[{"team": "nlp"}])
    """Labels of the JobSet and of its pods."""
    annotations: dict[Key, str] = Field(default_factory=dict, examples=[{"karpenter.sh/do-not-disrupt": "true"}])
    """Annotations of the pods."""
    image_pull_secrets: tuple[Subdomain, ...] = Field((), max_length=64, examples=[["registry"]])
    """Secrets of the namespace with which nodes pull the image."""
    runtime_class: Subdomain | None = Field(None, examples=["nvidia"])
    """RuntimeClass of the pods."""
    node_selector: dict[Key, Value] = Field(default_factory=dict, examples=[{"pool": "spot"}])
    """Labels that a node must have."""
    tolerations: tuple[Toleration, ...] = Field((), max_length=64, examples=[[{"key": "spot"}]])
    """Taints of nodes that the pods tolerate."""
    pod: dict[str, Any] = Field(default_factory=dict, examples=[{"hostPID": True}])
    """Further fields of a pod's `spec`, as Kubernetes names them; `volumes`, `containers` and `initContainers` are added to headway's."""
    container: dict[str, Any] = Field(default_factory=dict, examples=[{"workingDir": "/work"}])
    """Further fields of the container that runs the ranks, as Kubernetes names them; `env` and `volumeMounts` are added to headway's."""


class SchedulerRequest(Section):
    """The job's own fields of the scheduler, by its kind: each is for clusters of this kind, and no other."""

    slurm: SlurmRequest | None = Field(None, examples=[{"partition": "debug", "qos": "high"}])
    """For clusters with the scheduler `slurm`."""
    kubernetes: KubernetesRequest | None = Field(None, examples=[{"local_queue": "research"}])
    """For clusters with the scheduler `kubernetes`."""


class SlurmAllow(Section):
    """The fields of `scheduler.slurm` that jobs may set: a list of values for each, or `any`; others are closed to them."""

    partition: Allowed = Field((), examples=[["main", "debug"]])
    """Partitions."""
    account: Allowed = Field((), examples=["any"])
    """Accounts."""
    qos: Allowed = Field((), examples=[["normal", "high"]])
    """Qualities of service."""
    reservation: Allowed = Field((), examples=[["training"]])
    """Reservations."""
    nice: bool = Field(False, examples=[True])
    """Whether jobs may set it."""
    constraint: Allowed = Field((), examples=["any"])
    """Constraints, each as a whole."""
    exclude: bool = Field(False, examples=[True])
    """Whether jobs may set it."""
    dependency: bool = Field(False, examples=[True])
    """Whether jobs may set it."""
    sbatch: AllowedOptions = Field((), examples=[["switches", "mail-type"]])
    """Names of options of sbatch, without the dashes."""
    srun: AllowedOptions = Field((), examples=[["cpu-bind"]])
    """Names of options of srun, without the dashes."""
    apptainer: AllowedOptions = Field((), examples=[["fakeroot"]])
    """Names of options of `apptainer exec`, without the dashes."""


class KubernetesAllow(Section):
    """The fields of `scheduler.kubernetes` that jobs may set: a list of values or names for each, or `any`; others are closed to them."""

    local_queue: Allowed = Field((), examples=[["research", "spot"]])
    """LocalQueues."""
    priority_class: Allowed = Field((), examples=[["low", "normal"]])
    """PriorityClasses."""
    labels: Allowed = Field((), examples=["any"])
    """Keys of labels."""
    annotations: Allowed = Field((), examples=["any"])
    """Keys of annotations."""
    image_pull_secrets: Allowed = Field((), examples=[["registry"]])
    """Names of Secrets."""
    runtime_class: Allowed = Field((), examples=[["nvidia"]])
    """RuntimeClasses."""
    node_selector: Allowed = Field((), examples=[["pool"]])
    """Keys of nodes' labels."""
    tolerations: Allowed = Field((), examples=[["spot"]])
    """Keys of taints."""
    pod: Allowed = Field((), examples=[["schedulerName"]])
    """Names of fields of a pod's `spec`."""
    container: Allowed = Field((), examples=[["workingDir"]])
    """Names of fields of the container."""
