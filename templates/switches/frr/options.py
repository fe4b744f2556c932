"""Defines the options of FRR on a fabric's switches."""

from pydantic import Field

from headway.jobspec.spec.section import Section


class FrrOptions(Section):
    """How soon a switch declares a silent neighbour dead."""

    bfd_ms: int | None = Field(300, ge=10, le=60000, examples=[300])
    """Milliseconds between two BFD packets; no BFD when null."""
    bfd_multiplier: int = Field(3, ge=2, le=255, examples=[3])
    """Missing BFD packets in a row that end a link."""
    hold_s: int = Field(9, ge=3, le=3600, examples=[9])
    """Seconds without a BGP message that end a session; keepalives are sent three times as often."""
