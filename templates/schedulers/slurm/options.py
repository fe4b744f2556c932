"""Defines the options of Slurm on a cluster."""

from typing import Literal

from pydantic import Field

from headway.jobspec.spec.scheduling import Constraint, Dependency, Directive, NodeList, SlurmAllow, Word
from headway.jobspec.spec.section import Section
from headway.jobspec.units import Bytes, Seconds


class SlurmOptions(Section):
    """Options of every job of the cluster."""

    partition: Word | None = Field(None, examples=["main"])
    """Partition; Slurm's default when left out."""
    account: Word | None = Field(None, examples=["research"])
    """Account to charge."""
    qos: Word | None = Field(None, examples=["high"])
    """Quality of service."""
    constraint: Constraint | None = Field(None, examples=["nvme&ib"])
    """Features that the nodes must have, as in sbatch's `--constraint`."""
    reservation: Word | None = Field(None, examples=["training"])
    """Reservation that the nodes come from."""
    exclude: NodeList | None = Field(None, examples=["n[3-4],n9"])
    """Nodes that no job may get."""
    nice: int | None = Field(None, ge=-(2**31) + 3, le=2**31 - 3, examples=[100])
    """Number by which jobs' priority is lowered."""
    dependency: Dependency | None = Field(None, examples=["singleton"])
    """Jobs that each job waits for, as in sbatch's `--dependency`."""
    allow: SlurmAllow | None = Field(None, examples=[{"partition": ["main", "debug"], "qos": "any"}])
    """Fields that jobs may set under `scheduler.slurm`; all when left out, within what Slurm itself permits its users."""
    memory: Bytes | None = Field(None, ge=1 << 20, examples=["1900GiB"])
    """Memory of a node that a job asks for; all of it when left out, where Slurm's default may be little for each CPU."""
    kill_wait: Seconds = Field(30.0, gt=0, le=65533, examples=["2m"])
    """`KillWait` of slurm.conf: the time between a request to stop, by a requeue, a preemption or scancel, and the kill."""
    # topology/block allocates segments, each inside of one block; Slurm takes `--segment` since 24.05, and only a number that divides the
    # job's nodes or is larger (SchedMD/slurm CHANGELOG/slurm-24.05.md, https://slurm.schedmd.com/topology.html).
    topology: Literal["block"] | None = Field(None, examples=["block"])
    """Slurm's plugin for the network: `block` is topology/block of Slurm 24.05 or newer, with a block for each NVLink domain whose nodes
    follow one another in name, as ranks do; jobs whose groups of ranks span nodes then request segments."""
    exclusive: bool = Field(False, examples=[True])
    """Whether a job gets nodes exclusively."""
    containers: Literal["pyxis"] | None = Field(None, examples=["pyxis"])
    """The plugin that starts a job's image: NVIDIA's pyxis, 0.15 or newer; none when left out."""
    directives: tuple[Directive, ...] = Field((), max_length=64, examples=[["--mail-type=FAIL"]])
    """Further options of sbatch, each as `--name=value`, for what has no field here."""
    srun: tuple[Directive, ...] = Field((), max_length=64, examples=[["--network=sn_all"]])
    """Further options of the srun that starts the runner on each node, each as `--name=value`."""
    setup: tuple[str, ...] = Field((), examples=[["source /opt/headway/bin/activate"]])
    """Lines of bash that run first on the node of the batch script, for example to find `python3`."""
