"""Defines the options of opensm, which manages the switches of an InfiniBand fabric."""

from typing import Literal

from pydantic import Field

from headway.jobspec.spec.section import Section


class OpensmOptions(Section):
    """How opensm routes, and what its default partition carries."""

    routing: Literal["updn", "ftree", "minhop"] | None = Field(None, examples=["updn"])
    """Routing engine: `updn` on any tree, `ftree` on a symmetrical one, `minhop` without loops only. `updn` when left out. With \
`balancing: adaptive` its adaptive form comes first, `ar_updn` or `ar_ftree`, which NVIDIA's opensm has and Debian's passes over."""
    ipoib: bool = Field(True, examples=[True])
    """Whether the default partition carries IP, which its broadcast group needs."""
    directory: str = Field("/etc/opensm", pattern=r"^/[A-Za-z0-9_./-]*$", examples=["/etc/opensm"])
    """Folder of these files on the host that runs opensm."""
