"""Defines the options of Cumulus Linux on a fabric's switches."""

from typing import Annotated

from pydantic import Field, StringConstraints

from headway.templates.switches.options import SiteOptions

PortName = Annotated[str, StringConstraints(pattern=r"^swp[0-9]{1,3}(s[0-7])?$")]


class NvueOptions(SiteOptions):
    """The site's own configuration, the buffer of lossless traffic, and how soon a neighbour is declared dead."""

    base: str | None = Field(None, min_length=1, max_length=4096, examples=["base/{switch}.yaml"])
    """The site's `startup.yaml`, which headway's settings are merged into: management, users, time, logging. `{switch}` is \
replaced by a switch's name, `{role}` by `leaf` or `spine`. Relative to the cluster's file."""
    keep_ports: tuple[PortName, ...] = Field((), max_length=1024, examples=[["swp65"]])
    """Ports outside the fabric that stay as the base has them; headway omits all others that it plans no cable for, so that they are \
down."""
    lossless_percent: int | None = Field(None, ge=1, le=99, examples=[90])
    """Share of the buffer's memory for lossless traffic, of which the rest is for other traffic; Cumulus Linux decides when left out."""
