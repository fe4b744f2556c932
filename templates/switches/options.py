"""Defines the options of systems whose switches also have settings of the site's own."""

from collections.abc import Mapping
from typing import Any, Self

from pydantic import Field, PrivateAttr

from headway.jobspec.plan import SwitchPlan
from headway.templates.switches.frr.options import RoutingOptions


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
