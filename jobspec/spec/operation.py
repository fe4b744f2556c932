"""Defines how a cluster is operated: software versions, health checks, and observed failures."""

from typing import Annotated

from pydantic import Field, StringConstraints

from headway.jobspec.spec.section import Section
from headway.jobspec.units import Seconds

Version = Annotated[str, StringConstraints(pattern=r"^[0-9]{1,4}(\.[0-9]{1,5}){1,3}$")]


class Versions(Section):
    """Software on every node, as text: `12.10` without quotes is the number 12.1."""

    driver: Version | None = Field(None, examples=["570.124.06"])
    """NVIDIA driver."""
    cuda: Version | None = Field(None, examples=["12.8"])
    """CUDA toolkit that jobs are built with."""
    nccl: Version | None = Field(None, examples=["2.27.3"])
    """NCCL."""
    torch: Version | None = Field(None, examples=["2.8.0"])
    """PyTorch."""


class Health(Section):
    """When a node is excluded."""

    timeout: Seconds = Field(30.0, gt=0, le=3600, examples=["30s"])
    """Longest time of all checks of a node before a job; a check that hangs must not block the queue."""
    every: Seconds | None = Field(None, ge=60, examples=["15m"])
    """How often idle nodes are checked."""
    drain_at_most: int | None = Field(None, ge=1, examples=[4])
    """Largest number of nodes that checks may exclude at one time; more at once is likely a mistake of the check."""


class Failures(Section):
    """Failures observed on this cluster. Published rates replace what is left out."""

    node_mtbf: Seconds | None = Field(None, gt=0, examples=["300d"])
    """Mean time between failures of one node that end a job."""
    job_mtbf: Seconds | None = Field(None, gt=0, examples=["30d"])
    """Mean time between failures that end a job of any size: storage, scheduler, fabric."""
    rack_mtbf: Seconds | None = Field(None, gt=0, examples=["5y"])
    """Mean time between failures of one NVLink domain or rack as a whole."""
    repair: Seconds | None = Field(None, gt=0, examples=["1d"])
    """Mean time until a lost node is back."""
