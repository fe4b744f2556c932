"""Describes network adapter models: the transports they support, and the speed of a port for each."""

import types
from collections.abc import Mapping
from functools import cache

from msgspec import Struct

from headway.jobspec.catalog.table import rows


class Nic(Struct, frozen=True):
    """An adapter model. `gbps` has the fastest rate of one port for each transport that it carries."""

    name: str
    vendor: str
    gbps: Mapping[str, int]
    source: str


@cache
def nics() -> Mapping[str, Nic]:
    """Return the adapter models by name."""
    return types.MappingProxyType({name: Nic(name, **row) for name, row in rows("nics").items()})


def is_configured(name: str | None) -> bool:
    """Return whether headway's host files fit the adapter: mlx5 drives it, or the catalogue does not have it."""
    model = nics().get(name or "")
    return model is None or model.vendor == "NVIDIA"
