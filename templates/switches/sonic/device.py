"""Finds the device under a switch's plan: its HwSKU and all of its ports, from the model's row or from the switch's own base."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from headway.jobspec.plan import ClusterPlan, SwitchPlan
from headway.templates.switches.sonic.hardware import ASSUMED_MODEL, Hardware, HwSku, SwitchPort, hardware
from headway.templates.switches.sonic.options import SonicOptions, Tables


@dataclass(frozen=True)
class SonicDevice:
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
    lanes = switch.ports[0].lanes if switch.ports else None
    known = hardware().get(model_of(switch, cluster))
    if known is not None:
        return _of_model(known.model, lanes or known.breakouts[0])
    base = options.base_of(switch.name)
    return None if base is None else _of_base(base)


@cache
def _of_model(model: str, lanes: int) -> SonicDevice | None:
    found = hardware()[model]
    hwsku = found.hwsku(lanes)
    if hwsku is None:
        return None
    ports = {port.name: port for port in found.ports(lanes)}
    outside = {port.name: port for port in found.extra}
    return SonicDevice(found.platform, hwsku, ports | outside, outside, _breakout(found, lanes))


def _breakout(found: Hardware, lanes: int) -> Mapping[str, str]:
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
    by_role = dict.fromkeys(("leaf", "spine"), pools)
    if device.get("buffer_model") == "dynamic" and "egress_lossless_pool" in pools:
        kind = "dynamic-two-pools" if "ingress_lossy_pool" in pools else "dynamic-one-pool"
    size = str(pools.get("egress_lossless_pool", {}).get("size"))
    hwsku = HwSku(
        name=str(device["hwsku"]),
        lanes=lanes,
        buffers=kind,
        egress_pool_bytes=int(size) if size.isdecimal() else None,
        pools=by_role,
        profiles=dict.fromkeys(("leaf", "spine"), profiles),
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
