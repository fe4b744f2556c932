"""Reads hardware.yaml: the ports and buffers of switch models under SONiC."""

import string
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from msgspec import Struct, field

# The model of a fabric that names none: the first whose ports are the fabric's default, 400 Gb/s over 8 lanes.
ASSUMED_MODEL = "SN5400"

# Roles of a switch that have rows of buffers; SONiC's templates know two, and every switch above a leaf has a spine's.
ROLES = ("leaf", "spine", "core")

Row = Mapping[str, str]


class SwitchPort(Struct, frozen=True):
    """A port as SONiC names it. `subport` counts the parts of a broken-out cage from 1; it is 0 where the port is the whole cage.

    `gbps` is the speed of a port outside the fabric's, which has one speed of its own.
    """

    name: str
    lanes: str
    alias: str
    index: int
    subport: int = 0
    gbps: int | None = None


class HwSku(Struct, frozen=True):
    """A HwSKU for ports of `lanes` lanes. `buffers` is how its buffers are configured (hardware.yaml).

    `pools` and `profiles` are the rows of a static buffer model, by role and name. `headroom`: Gb/s -> metres -> [size, xon, xoff] in
    bytes.
    """

    name: str
    lanes: int
    buffers: str
    egress_pool_bytes: int | None = None
    pools: Mapping[str, Mapping[str, Row]] = field(default_factory=dict)
    profiles: Mapping[str, Mapping[str, Row]] = field(default_factory=dict)
    headroom: Mapping[int, Mapping[int, tuple[int, int, int]]] = field(default_factory=dict)

    @property
    def is_dynamic(self) -> bool:
        """Whether SONiC computes each port's headroom, as on NVIDIA's switches."""
        return self.buffers.startswith("dynamic")


class Hardware(Struct, frozen=True):
    """A switch model under SONiC. `modes` are its breakout modes by the lanes of a port."""

    model: str
    platform: str
    source: str
    alias: str
    cage_lanes: int
    cages: tuple[int, ...]
    extra: tuple[SwitchPort, ...]
    modes: Mapping[int, str]
    hwskus: Mapping[str, HwSku]
    breakout_of: str | None = None

    def hwsku(self, lanes: int) -> HwSku | None:
        """Return the HwSKU whose ports have so many lanes, or that SONiC breaks out into such ports; None without either."""
        own = next((each for each in self.hwskus.values() if each.lanes == lanes), None)
        return own or (self.hwskus[self.breakout_of] if self.breakout_of and lanes in self.modes else None)

    @property
    def breakouts(self) -> tuple[int, ...]:
        """The numbers of lanes that a port may have, descending."""
        every = {*self.modes, *(each.lanes for each in self.hwskus.values())}
        return tuple(sorted((lanes for lanes in every if self.hwsku(lanes)), reverse=True))

    def speeds(self, lanes: int) -> tuple[int, ...]:
        """Return the speeds of such ports in Gb/s; empty where SONiC lists none."""
        _, _, speeds = self.modes.get(lanes, "").partition("x")
        return tuple(int(each) for each in speeds.replace("[", ",").replace("]", "").replace("G", "").split(",") if each)

    def ports(self, lanes: int) -> tuple[SwitchPort, ...]:
        """Return the fabric's ports in the order of the front panel."""
        return _ports(self.model, lanes)

    @property
    def cage_names(self) -> tuple[str, ...]:
        """The first port of each cage, by which BREAKOUT_CFG names the cage."""
        return tuple(f"Ethernet{index * self.cage_lanes}" for index in range(len(self.cages)))


@cache
def hardware() -> Mapping[str, Hardware]:
    """Return the switch models that SONiC's device tree describes, by their names in the catalogue."""
    rows: dict[str, dict[str, Any]] = yaml.load(
        Path(__file__).with_name("hardware.yaml").read_text(encoding="utf-8"), yaml.CSafeLoader
    )
    return {model: _hardware(model, row) for model, row in rows.items()}


def _hardware(model: str, row: dict[str, Any]) -> Hardware:
    extra = tuple(SwitchPort(**{**each, "lanes": str(each["lanes"])}) for each in row["extra"])
    hwskus = {name: _hwsku(name, each) for name, each in row["hwskus"].items()}
    return Hardware(**{**row, "model": model, "cages": tuple(row["cages"]), "extra": extra, "hwskus": hwskus})


def _hwsku(name: str, row: dict[str, Any]) -> HwSku:
    """Return a HwSKU; where its spines have no pools of their own, they have those of its leaves."""
    plain = {key: value for key, value in row.items() if not key.startswith(("pools_", "profiles_"))}
    return HwSku(name=name, pools=_by_role(row, "pools"), profiles=_by_role(row, "profiles"), **plain)


def _by_role(row: dict[str, Any], what: str) -> dict[str, Any]:
    leaf = row.get(f"{what}_leaf")
    return {} if leaf is None else {"leaf": leaf, **dict.fromkeys(ROLES[1:], row.get(f"{what}_spine", leaf))}


@cache
def _ports(model: str, lanes: int) -> tuple[SwitchPort, ...]:
    found = hardware()[model]
    parts = found.cage_lanes // lanes
    return tuple(
        SwitchPort(
            name=f"Ethernet{(cage * parts + part) * lanes}",
            lanes=",".join(str(first + part * lanes + lane) for lane in range(lanes)),
            alias=found.alias.format(cage=cage + 1, part=string.ascii_lowercase[part] if parts > 1 else ""),
            index=cage + 1,
            subport=part + 1 if parts > 1 else 0,
        )
        for cage, first in enumerate(found.cages)
        for part in range(parts)
    )
