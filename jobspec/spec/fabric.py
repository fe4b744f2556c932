"""A network of a cluster and what travels on it."""

from typing import Literal

from pydantic import Field

from headway.jobspec.spec.section import Name, Section


class Fabric(Section):
    """A network with one role."""

    name: Name = Field(examples=["rails"])
    """Name of the fabric."""
    role: Literal["scale_up", "scale_out", "storage", "management"] = Field(examples=["scale_out"])
    """What it is for: `scale_up` inside a node or NVLink domain, `scale_out` between them."""
    transport: Literal["roce", "infiniband", "tcp", "nvlink"] = Field(examples=["roce"])
    """How data travels on it."""
    interface: str | None = Field(None, pattern=r"^[^\s/:]{1,15}$", examples=["eth0"])
    """Kernel interface of a TCP fabric, by the name that `ip link` prints."""
    dscp: int | None = Field(None, ge=0, le=63, examples=[26])
    """DSCP that marks RoCE traffic, so that the switches put it into the queue made for it."""
