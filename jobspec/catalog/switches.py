"""Describes switch models: their ports and lanes."""

import types
from collections.abc import Mapping
from functools import cache

from msgspec import Struct

from headway.jobspec.catalog.table import rows


class Switch(Struct, frozen=True):
    """A switch model: `ports` of `gbps` and of `lanes` lanes each. `buffer_mb` is the packet buffer in 10^6 bytes, where it is printed.

    `cages` are the places for transceivers, where one holds several ports.
    """

    name: str
    vendor: str
    asic: str
    ports: int
    gbps: int
    lanes: int
    source: str
    buffer_mb: int | None = None
    cages: int | None = None
    transport: str = "ethernet"


@cache
def switches() -> Mapping[str, Switch]:
    """Return the switch models by name."""
    return types.MappingProxyType({name: Switch(name, **row) for name, row in rows("switches").items()})
