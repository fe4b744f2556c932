"""Defines the options of Slurm on a cluster."""

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from headway.jobspec.spec.section import Section

# sbatch, not a shell, reads the text after #SBATCH; names of Slurm's accounting need no more than this. The same holds
# for node features with their operators, for lists of nodes, and for whole options, which may hold quoted text.
Constraint = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_(\[!][A-Za-z0-9_.,:&|*()\[\]!+-]*$")]
NodeList = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.,\[\]-]*$")]
Directive = Annotated[str, StringConstraints(pattern=r"^--[a-z][a-z0-9_-]*(=[^\x00-\x1f\x7f]*)?$")]
Word = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.,+-]*$")]


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
    """Further options of sbatch, each as `--name=value`, for what has no field here; docs/slurm.md lists those that headway sets itself."""
    setup: tuple[str, ...] = Field((), examples=[["source /opt/headway/bin/activate"]])
    """Lines of bash that run first on the node of the batch script, for example to find `python3`."""
