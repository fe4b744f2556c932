"""Defines the options of Slurm on a cluster."""

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from headway.jobspec.spec.scheduling import Constraint, Dependency, Directive, NodeList, SlurmAllow, Word
from headway.jobspec.spec.section import Name, Section
from headway.jobspec.units import Bytes, Seconds

# Without the separators of pyxis' mounts, and without what a shell would expand.
Place = Annotated[str, StringConstraints(pattern=r"^(/[A-Za-z0-9_.+-]+)+$")]


class Login(Section):
    """How a login node is reached over SSH. Omitted values come from ~/.ssh/config, as for ssh; there are no passwords."""

    host: str = Field(pattern=r"^([A-Za-z0-9_][A-Za-z0-9_.-]*|[0-9A-Fa-f]*(:[0-9A-Fa-f.]*){2,})$", examples=["login.example.com"])
    """Host, or its name in ~/.ssh/config."""
    port: int = Field(0, ge=0, le=65535, examples=[22])
    """Port of its sshd; that of ~/.ssh/config, or 22, when left out."""
    user: str = Field("", pattern=r"^([A-Za-z_][-A-Za-z0-9_.]*)?$", examples=["trainer"])
    """User to log in as; that of ~/.ssh/config, or of this machine, when left out."""
    jump: str | None = Field(None, pattern=r"^[A-Za-z0-9_.:@,\[\]-]+$", examples=["bastion.example.com"])
    """Hosts that the connection goes through, as `[user@]host[:port]`, separated by commas; those of ~/.ssh/config when left out."""
    identity: str | None = Field(None, min_length=1, examples=["~/.ssh/id_ed25519"])
    """File of a private key for all hosts on the way, tried before those of the agent and of ~/.ssh. Relative to the cluster's file."""
    known_hosts: str | None = Field(None, min_length=1, examples=["known_hosts"])
    """File with the hosts' keys, in ssh's format; ssh's files when left out. Relative to the cluster's file."""
    folder: str | None = Field(None, min_length=1, examples=["jobs"])
    """Folder there from which jobs are submitted, and from which relative paths count; the home when left out."""
    setup: tuple[str, ...] = Field((), max_length=64, examples=[["module load slurm"]])
    """Lines of sh that run there before each command, for example to find `sbatch`."""


class NodeCheck(Section):
    """A script for slurm.conf's `HealthCheckProgram` and `Prolog`, which drains a node without its GPUs, adapters or file systems."""

    most_drained: int = Field(ge=1, examples=[4])
    """Most nodes that the script drains at the same time. A fault of all nodes, such as of a file system, drains no more."""
    timeout: Seconds = Field(20.0, ge=1, le=50, examples=["30s"])
    """Time of all checks together. A check that has not answered by then has failed. slurmd ends a health check after 60 s."""


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
    # job's nodes or is larger (SchedMD/slurm CHANGELOG/slurm-24.05.md, https://slurm.schedmd.com/topology.html). topology/tree counts leaf
    # switches (`--switches`).
    topology: Literal["block", "tree"] | None = Field(None, examples=["block"])
    """Slurm's plugin for the network: `block` is topology/block of Slurm 24.05 or newer, with a block for each NVLink domain whose nodes
    follow one another in name, as ranks do; jobs whose groups of ranks span nodes then request segments. `tree` is topology/tree, with a
    leaf switch for the nodes below the same leaves of the fabric; jobs then request the fewest leaf switches that hold them."""
    leaf_nodes: int | None = Field(None, ge=1, le=4096, examples=[32])
    """Nodes below one leaf switch of topology/tree; those of the fabric's plan when left out."""
    switch_wait: Seconds | None = Field(None, ge=1, examples=["12h"])
    """How long a job waits for so few leaf switches before it takes more. Slurm waits `max_switch_wait` of slurm.conf at most, which is
    300 s unless it is set."""
    node_names: dict[Name, NodeList] = Field(default_factory=dict, examples=[{"h100": "gpu[001-128]"}])
    """Slurm's names of the nodes, by group and in the plan's order. A job excludes the nodes of other groups by them. For topology.conf
    and the node check, without them the short host names count, or the plan's names where no host name is known."""
    node_check: NodeCheck | None = Field(None, examples=[{"most_drained": 4}])
    """A check of the nodes by slurmd, rendered with the cluster; none when left out."""
    exclusive: bool = Field(False, examples=[True])
    """Whether a job gets nodes exclusively."""
    bundle: Place | None = Field(None, examples=["/shared/headway/headway-0.1.0-2f1c0a9b7d3e"])
    """Runtime bundle, made by `headway bundle`: its path on the nodes. The runner then starts from it, in images and on hosts that have
    Python 3.10 or newer and torch, but not headway."""
    image_cache: Place | None = Field(None, examples=["/local/headway/images"])
    """Directory on a disk of each node. An image with a digest is brought there once, by `enroot import` or `apptainer pull`, and a `.sif`
    file is copied there once; further attempts and jobs start from that file. One that no job has used for 14 days is deleted."""
    containers: Literal["pyxis", "apptainer"] | None = Field(None, examples=["apptainer"])
    """The runtime that starts a job's image: `pyxis` is NVIDIA's plugin of srun, 0.15 or newer; `apptainer` is Apptainer 1.1 or newer on
    each node; none when left out."""
    directives: tuple[Directive, ...] = Field((), max_length=64, examples=[["--mail-type=FAIL"]])
    """Further options of sbatch, each as `--name=value`, for what has no field here; docs/slurm.md lists those that headway sets itself."""
    srun: tuple[Directive, ...] = Field((), max_length=64, examples=[["--network=sn_all"]])
    """Further options of the srun that starts the runner on each node, each as `--name=value`."""
    apptainer: tuple[Directive, ...] = Field((), max_length=64, examples=[["--writable-tmpfs"]])
    """Further options of `apptainer exec`, each as `--name=value`, with `containers: apptainer`."""
    setup: tuple[str, ...] = Field((), examples=[[". /opt/headway/bin/activate"]])
    """Lines of POSIX shell that run first on the node of the batch script, for example to find `python3`. `.` reads a file, which
    `source` does only in some shells."""
    login: Login | None = Field(None, examples=[{"host": "login.example.com", "jump": "bastion.example.com"}])
    """How `headway submit` and the other verbs of runs reach Slurm: over SSH; Slurm's commands of this machine when left out."""
