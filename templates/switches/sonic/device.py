"""Finds the device under a switch's plan: its HwSKU and all of its ports, from the model's row or from the switch's own base."""

import re
from collections.abc import Mapping
from functools import cache
from typing import Any

from msgspec import Struct

from headway.jobspec.plan import ClusterPlan, SwitchPlan
from headway.templates.switches.sonic.hardware import ASSUMED_MODEL, ROLES, Hardware, HwSku, SwitchPort, hardware
from headway.templates.switches.sonic.options import SonicOptions, Tables


class SonicDevice(Struct, frozen=True):
    """A switch as SONiC sees it.

    `ports` are all that the device has, by name and in the order of the front panel; those in `outside` are too slow for the fabric.
    `breakout` is the mode of each cage by its name, empty where SONiC keeps none.
    """

    platform: str
    hwsku: HwSku
    ports: Mapping[str, SwitchPort]
    outside: Mapping[str, SwitchPort]
    breakout: Mapping[str, str]


def model_of(switch: SwitchPlan, cluster: ClusterPlan) -> str:
    """Return the name of the switch's model."""
    return cluster.fabric(switch.fabric).switch_model or ASSUMED_MODEL


def device_of(options: SonicOptions, switch: SwitchPlan, cluster: ClusterPlan) -> SonicDevice | None:
    """Return the device; None if neither SONiC's device tree has the model with such ports, nor a base describes it."""
    known = hardware().get(model_of(switch, cluster))
    if known is not None:
        lanes = [port.lanes for port in switch.ports] or [known.breakouts[0]]
        upper = next((_number(port.name) for port in switch.ports if port.lanes != lanes[0]), None)
        return _of_model(known.model, lanes[0], lanes[-1], None if upper is None else upper // known.cage_lanes)
    base = options.base_of(switch.name)
    return None if base is None else _of_base(base)


@cache
def _of_model(model: str, lanes: int, upper_lanes: int, upper_cage: int | None) -> SonicDevice | None:
    """Return the model with ports of so many lanes, and from a cage on of `upper_lanes`: both are then breakouts of one HwSKU."""
    found = hardware()[model]
    hwsku = found.hwsku(max(lanes, upper_lanes))
    if hwsku is None or (upper_cage is not None and not {lanes, upper_lanes} <= found.modes.keys()):
        return None
    breakout = _breakout(found, lanes)
    ports = {port.name: port for port in found.ports(lanes) if upper_cage is None or port.index <= upper_cage}
    if upper_cage is not None:
        ports |= {port.name: port for port in found.ports(upper_lanes) if port.index > upper_cage}
        breakout |= dict.fromkeys(found.cage_names[upper_cage:], found.modes[upper_lanes])
    outside = {port.name: port for port in found.extra}
    return SonicDevice(found.platform, hwsku, ports | outside, outside, breakout)


def _breakout(found: Hardware, lanes: int) -> dict[str, str]:
    modes = dict.fromkeys(found.cage_names, found.modes[lanes]) if lanes in found.modes else {}
    # The smaller ports have one mode, by the same name as `show interfaces breakout` prints.
    return modes | {port.name: f"1x{port.gbps}G{'[10G]' if port.gbps == 25 else ''}" for port in found.extra if modes}


def _of_base(base: Tables) -> SonicDevice | None:
    """Return the device that a base describes: its own HwSKU, ports, and buffers."""
    device = base.get("DEVICE_METADATA", {}).get("localhost", {})
    rows = base.get("PORT", {})
    if not rows or not {"platform", "hwsku"} <= device.keys():
        return None
    ports = {name: _port(name, row) for name, row in sorted(rows.items(), key=lambda item: _number(item[0]))}
    lanes = min(port.lanes.count(",") + 1 for port in ports.values())
    pools, profiles = base.get("BUFFER_POOL", {}), base.get("BUFFER_PROFILE", {})
    kind = "static" if pools and profiles else "sai"
    by_role = dict.fromkeys(ROLES, pools)
    if device.get("buffer_model") == "dynamic" and "egress_lossless_pool" in pools:
        kind = "dynamic-two-pools" if "ingress_lossy_pool" in pools else "dynamic-one-pool"
    size = str(pools.get("egress_lossless_pool", {}).get("size"))
    hwsku = HwSku(
        name=str(device["hwsku"]),
        lanes=lanes,
        buffers=kind,
        egress_pool_bytes=int(size) if size.isdecimal() else None,
        pools=by_role,
        profiles=dict.fromkeys(ROLES, profiles),
    )
    modes = {name: str(row.get("brkout_mode")) for name, row in base.get("BREAKOUT_CFG", {}).items()}
    return SonicDevice(str(device["platform"]), hwsku, ports, {}, modes)


def _port(name: str, row: Mapping[str, Any]) -> SwitchPort:
    speed, subport = str(row.get("speed", "")), str(row.get("subport", "0"))
    return SwitchPort(
        name=name,
        lanes=str(row.get("lanes", "")),
        alias=str(row.get("alias", name)),
        index=_number(str(row.get("index", "0"))),
        subport=int(subport) if subport.isdecimal() else 0,
        gbps=int(speed) // 1000 if speed.isdecimal() else None,
    )


def _number(text: str) -> int:
    digits = re.sub(r"\D", "", text)
    return int(digits or 0)
