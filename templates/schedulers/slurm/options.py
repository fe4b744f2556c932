"""Options of Slurm on a cluster."""

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from headway.jobspec.spec.section import Section

# What stands behind #SBATCH is read by sbatch, not by a shell; names of Slurm's accounting need no more than this.
Word = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.,+-]*$")]


class SlurmOptions(Section):
    """What every job of the cluster is submitted with."""

    partition: Word | None = Field(None, examples=["main"])
    """Partition; Slurm's default when left out."""
    account: Word | None = Field(None, examples=["research"])
    """Account that is charged."""
    qos: Word | None = Field(None, examples=["high"])
    """Quality of service."""
    exclusive: bool = Field(False, examples=[True])
    """Whether a job gets whole nodes for itself."""
    containers: Literal["pyxis"] | None = Field(None, examples=["pyxis"])
    """What starts the image that a job names: NVIDIA's plugin pyxis, 0.15 or newer; nothing when left out."""
    setup: tuple[str, ...] = Field((), examples=[["source /opt/headway/bin/activate"]])
    """Lines of bash that run first on the node of the batch script, for example to find `python3`."""
