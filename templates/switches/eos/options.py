"""Defines the options of Arista EOS on a fabric's switches."""

from typing import Annotated

from pydantic import Field, StringConstraints

from headway.templates.switches.options import SiteOptions

PortName = Annotated[str, StringConstraints(pattern=r"^Ethernet[0-9]{1,3}(/[0-9]{1,2}){0,2}$")]


class EosOptions(SiteOptions):
    """The site's own configuration, the watchdog of paused queues, and how soon a neighbour is declared dead."""

    base: str | None = Field(None, min_length=1, max_length=4096, examples=["base/{switch}.cfg"])
    """The site's running configuration, which headway's commands are merged into: management, users, time, logging. `{switch}` is \
replaced by a switch's name, `{role}` by `leaf` or `spine`. Relative to the cluster's file."""
    keep_ports: tuple[PortName, ...] = Field((), max_length=1024, examples=[["Ethernet65"]])
    """Ports outside the fabric that stay as the base has them; headway shuts all others of the model's cages that it plans no cable for."""
    guaranteed_percent: int | None = Field(None, ge=1, le=100, examples=[1])
    """Bandwidth that a lossless queue is guaranteed. On some platforms EOS's watchdog looks only at queues that have one."""
    bfd_ms: int | None = Field(300, ge=50, le=60000, examples=[300])
    """Milliseconds between two BFD packets; no BFD when null."""
    bfd_multiplier: int = Field(3, ge=3, le=50, examples=[3])
    """Missing BFD packets in a row that end a link."""
