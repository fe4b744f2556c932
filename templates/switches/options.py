"""Defines the options that several systems share: of routing, and of switches that also have settings of the site's own."""

from collections.abc import Mapping
from typing import Any, Self

from pydantic import Field, PrivateAttr

from headway.jobspec.plan import SwitchPlan
from headway.jobspec.spec.section import Section


class RoutingOptions(Section):
    """How soon a switch declares a silent neighbour dead."""

    bfd_ms: int | None = Field(300, ge=10, le=60000, examples=[300])
    """Milliseconds between two BFD packets; no BFD when null."""
    bfd_multiplier: int = Field(3, ge=2, le=255, examples=[3])
    """Missing BFD packets in a row that end a link."""
    hold_s: int = Field(9, ge=3, le=3600, examples=[9])
    """Seconds without a BGP message that end a session; keepalives are sent three times as often."""


class SiteOptions(RoutingOptions):
    """The site's own configuration of a switch, and how soon a neighbour is declared dead."""

    base: str | None = Field(None, min_length=1, max_length=4096, examples=["base/{switch}"])
    """The site's own file of a switch, which headway's settings are merged into. `{switch}` is replaced by a switch's name, `{role}` by \
`leaf` or `spine`. Relative to the cluster's file."""

    # What was read of each switch's base, by the switch's name; the compiler reads the files.
    _bases: Mapping[str, Any] = PrivateAttr(default_factory=dict)

    def base_file(self, switch: SwitchPlan) -> str | None:
        """Return the path of the switch's base; None without one."""
        return None if self.base is None else self.base.replace("{switch}", switch.name).replace("{role}", switch.role)

    def with_bases(self, bases: Mapping[str, Any]) -> Self:
        """Return the options with what was read of the bases, by the switches' names."""
        found = self.model_copy()
        found._bases = bases
        return found

    def base_of(self, switch: str) -> Any:
        """Return what was read of the switch's base; None without one."""
        return self._bases.get(switch)
