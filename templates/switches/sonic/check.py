"""Reports what SONiC cannot do with a plan."""

from collections.abc import Iterator
from typing import Any

from headway.jobspec.document import Path
from headway.jobspec.plan import ClusterPlan, FabricPlan, PortPlan, SwitchPlan
from headway.jobspec.problem import CLUSTER, Problem, Severity
from headway.jobspec.suggest import joined_or, nearest
from headway.templates.switches.limits import check_kept_ports
from headway.templates.switches.sonic.device import SonicDevice, device_of, model_of
from headway.templates.switches.sonic.hardware import ASSUMED_MODEL, Hardware, HwSku, hardware
from headway.templates.switches.sonic.options import SonicOptions, Tables

# SONiC's platforms keep buffers for two lossless classes (qos_config.j2, LOSSLESS_TC).
_MOST_LOSSLESS = 2
_LOSSLESS_OF_SAI = (3, 4)


def check(options: SonicOptions, switch: SwitchPlan, cluster: ClusterPlan) -> Iterator[Problem]:
    """Check that the hardware has such ports, that options and base agree with it, and that it has buffers for the classes."""
    fabric = cluster.fabric(switch.fabric)
    at: Path = ("fabrics", cluster.fabrics.index(fabric))
    os: Path = (*at, "switches", "os", fabric.os.index("sonic"))
    yield from _check_classes((*at, "classes"), fabric)
    device = device_of(options, switch, cluster)
    yield from _check_base(os, options, device, switch, cluster)
    if device is None:
        yield from _check_model((*at, "switches"), os, switch, cluster)
        return
    if fabric.switch_model is None:
        message = f"the files depend on the switches' model, and none is set: they are those of an {ASSUMED_MODEL}"
        yield Problem("HW513", CLUSTER, (*at, "switches"), message, "set `model`", Severity.WARNING, at_key=True)
    yield from _check_options((*os, "options"), options, device, switch)
    yield from _check_ports((*at, "switches"), (*os, "options"), options, device, switch, cluster)
    yield from _check_lossless(at, device.hwsku, fabric, switch, cluster)


# --- the model --------------------------------------------------------------------------------------------------------


def _check_model(path: Path, os: Path, switch: SwitchPlan, cluster: ClusterPlan) -> Iterator[Problem]:
    """Report a model that SONiC's device tree does not have, or not with ports of so many lanes."""
    model, known = model_of(switch, cluster), hardware().get(model_of(switch, cluster))
    if known is None:
        message = f"headway has no SONiC device of the model `{model}`: its HwSKU, ports and buffers are unknown"
        hint = "set `base` to a config_db.json of such a switch, which has them"
        if (near := nearest(model, hardware())) is not None:
            yield Problem("HW513", CLUSTER, (*path, "model"), message, f"did you mean `{near}`? Else {hint}", fix=near)
            return
        hint += f"; or use one of {', '.join(hardware())}"
        yield Problem("HW513", CLUSTER, (*os, "options", "base"), message, hint)
        return
    lanes = " and ".join(str(each) for each in dict.fromkeys(port.lanes for port in switch.ports))
    message = f"SONiC has no HwSKU of the {model} with ports of {lanes} lanes"
    hint = f"use {joined_or([str(each) for each in known.breakouts])} `lanes`; left out, they follow from `speed`"
    yield Problem("HW513", CLUSTER, (*path, "lanes"), message, hint)


def _check_options(path: Path, options: SonicOptions, device: SonicDevice, switch: SwitchPlan) -> Iterator[Problem]:
    """Check that options which repeat what the model decides agree with it."""
    hwsku = device.hwsku
    wanted: dict[str, Any] = {
        "platform": device.platform,
        "hwsku": hwsku.name,
        "buffer_model": "dynamic" if hwsku.is_dynamic else "traditional",
        "egress_pool_bytes": hwsku.egress_pool_bytes,
    }
    for key, value in wanted.items():
        found = getattr(options, key)
        if found not in (None, value):
            what = "no such pool" if value is None else f"`{value}`"
            message = f"`{key}` is `{found}`, but {what} for ports of {hwsku.lanes} lanes of this model in SONiC"
            hint, fix = f"leave `{key}` out: it follows from `model`", None
            if isinstance(value, str):
                hint, fix = f"write `{value}`, or leave `{key}` out: it follows from `model`", value
            yield Problem("HW513", CLUSTER, (*path, key), message, hint, fix=fix)
    ports = [port.lanes for port in device.ports.values()][: len(options.lanes)]
    if options.lanes and list(options.lanes) != ports:
        index = next(
            (index for index, (ours, theirs) in enumerate(zip(options.lanes, ports, strict=False)) if ours != theirs), len(ports)
        )
        right = f"`{ports[index]}`" if index < len(ports) else f"no port {index + 1}"
        message = f"port {index + 1} has the lanes `{options.lanes[index]}`, but {right} in SONiC's {hwsku.name}"
        yield Problem("HW513", CLUSTER, (*path, "lanes"), message, "leave `lanes` out: they follow from `model`")


def _check_ports(
    path: Path, options_at: Path, options: SonicOptions, device: SonicDevice, switch: SwitchPlan, cluster: ClusterPlan
) -> Iterator[Problem]:
    """Check that the device has the planned ports at their speed, and that no kept port is one of them."""
    missing = next((port for port in switch.ports if port.name not in device.ports or port.name in device.outside), None)
    model = model_of(switch, cluster)
    if missing is not None and model not in hardware() and (near := nearest(model, hardware())) is not None:
        # Its ports are not counted by the model: the name is the mistake.
        message = f"headway has no SONiC device of the model `{model}`: its HwSKU, ports and buffers are unknown"
        yield Problem("HW513", CLUSTER, (*path, "model"), message, f"did you mean `{near}`?", fix=near)
        return
    if missing is not None:
        count = len(device.ports) - len(device.outside)
        message = f"`{switch.name}` needs a port `{missing.name}`, but {device.hwsku.name} has {count} ports for the fabric"
        yield Problem("HW526", CLUSTER, (*path, "ports"), message, f"use {count} `ports` or fewer")
    known = hardware().get(model_of(switch, cluster))
    for lanes, gbps in sorted({(port.lanes, port.gbps) for port in switch.ports}):
        speeds = _speeds(known, lanes)
        if speeds and gbps not in speeds:
            message = f"ports of {lanes} lanes of the {known.model if known else 'switch'} have no {gbps}Gb/s in SONiC"
            yield Problem("HW526", CLUSTER, (*path, "speed"), message, f"use {joined_or([f'{each}Gb/s' for each in speeds])}")
    planned, there = {port.name for port in switch.ports}, (options.base_of(switch.name) or {}).get("PORT", {})
    yield from check_kept_ports((*options_at, "keep_ports"), options.keep_ports, switch, planned, there)


def _speeds(known: Hardware | None, lanes: int) -> tuple[int, ...]:
    return known.speeds(lanes) if known is not None else ()


# --- the base ---------------------------------------------------------------------------------------------------------


def _check_base(
    os: Path, options: SonicOptions, device: SonicDevice | None, switch: SwitchPlan, cluster: ClusterPlan
) -> Iterator[Problem]:
    path = (*os, "options", "base")
    base = options.base_of(switch.name)
    if options.base is None and device is not None:
        message = (
            "config_db.json has headway's tables only: a switch that reloads it loses its management address, users and features"
        )
        yield Problem("HW513", CLUSTER, (*os, "kind"), message, "set `base` to the site's own config_db.json", Severity.WARNING)
    elif base is not None:
        known = hardware().get(model_of(switch, cluster))
        found = _platform(base)
        peers = [each for each in cluster.switches if each.fabric == switch.fabric]
        if known is not None and found not in (None, known.platform):
            # Switches with the same mistake have one problem, at the first.
            same = (each for each in peers if _platform(options.base_of(each.name) or {}) == found)
            if next(same) is switch:
                others = f" and {more} more" if (more := sum(1 for _ in same)) else ""
                message = f"the base of `{switch.name}`{others} is of the platform `{found}`, but the {known.model} is `{known.platform}`"
                yield Problem("HW513", CLUSTER, path, message, "use the base of this model, or another `model`")
        if "{switch}" not in (options.base or "") and len(peers) > 1 and (own := _of_one(base)):
            message = f"several switches have one base with {own}, which only one of them can have"
            yield Problem("HW513", CLUSTER, path, message, "remove it from the base, or have one for each `{switch}`")


def _platform(base: Tables) -> Any:
    return base.get("DEVICE_METADATA", {}).get("localhost", {}).get("platform")


def _of_one(base: Tables) -> str | None:
    """Return what in the base can be true of one switch only."""
    if "mac" in base.get("DEVICE_METADATA", {}).get("localhost", {}):
        return "a MAC address"
    return "a management address" if any("|" in key for key in base.get("MGMT_INTERFACE", {})) else None


# --- lossless traffic -------------------------------------------------------------------------------------------------


def _check_classes(path: Path, fabric: FabricPlan) -> Iterator[Problem]:
    """Check the classes. SONiC's PFC watchdog looks at the queue of the priority's number (sonic-swss, pfcwdorch.cpp),
    whatever the maps are."""
    lossless = [index for index, each in enumerate(fabric.qos.classes if fabric.qos else ()) if each.lossless]
    for index, each in enumerate(fabric.qos.classes if fabric.qos else ()):
        if each.lossless and each.queue != each.priority:
            message = f"SONiC's PFC watchdog would watch queue {each.priority}, but `{each.name}` is paused in queue {each.queue}"
            hint = f"write `queue: {each.priority}`, the number of its priority, or leave `queue` out"
            yield Problem("HW513", CLUSTER, (*path, index, "queue"), message, hint, fix=str(each.priority))
    if len(lossless) > _MOST_LOSSLESS:
        message = f"{len(lossless)} classes are lossless, but SONiC's platforms have buffers for {_MOST_LOSSLESS}"
        yield Problem("HW513", CLUSTER, (*path, lossless[_MOST_LOSSLESS], "lossless"), message, "make the others lossy")


def _check_lossless(at: Path, hwsku: HwSku, fabric: FabricPlan, switch: SwitchPlan, cluster: ClusterPlan) -> Iterator[Problem]:
    """Check that the HwSKU has headroom for a lossless class at these speeds and lengths."""
    if fabric.qos is None or not fabric.qos.lossless_priorities or hwsku.is_dynamic:
        return
    if hwsku.buffers == "sai":
        for index, each in enumerate(fabric.qos.classes):
            if each.lossless and each.priority not in _LOSSLESS_OF_SAI:
                message = f"the buffers of {hwsku.name} are in the ASIC's file, with headroom for priorities 3 and 4, not {each.priority}"
                yield Problem("HW513", CLUSTER, (*at, "classes", index, "priority"), message, "use priority 3 or 4")
        return
    cables = {(_setting_of(port, switch, cluster), port.gbps, port.metres) for port in switch.ports}
    for key in ("node_cable", "spine_cable", "core_cable"):
        for gbps, metres in sorted((gbps, metres) for setting, gbps, metres in cables if setting == key):
            lengths = hwsku.headroom.get(gbps, {})
            if lengths and metres not in lengths:
                known = joined_or([str(each) for each in lengths])
                message = f"{hwsku.name} has headroom at {gbps}Gb/s for cables of {known} metres, not for {metres}"
                longer = min((each for each in lengths if each > metres), default=None)
                hint = (
                    f"set {longer}m" if longer else "use a shorter cable, or add the length to the HwSKU's pg_profile_lookup.ini"
                )
                yield Problem("HW513", CLUSTER, (*at, "switches", key), message, hint, Severity.WARNING)


def _setting_of(port: PortPlan, switch: SwitchPlan, cluster: ClusterPlan) -> str:
    """Return the setting of `switches` that has the length of the cable in a port."""
    if port.role == "node":
        return "node_cable"
    return "core_cable" if "core" in (switch.role, cluster.switch_roles[port.peer]) else "spine_cable"
