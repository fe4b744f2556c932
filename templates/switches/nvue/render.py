"""Renders a switch's plan as NVUE's `startup.yaml`: ports, BGP, and the classes over what `qos roce` sets.

Words and defaults: docs.nvidia.com cumulus-linux-516, which has those of 5.15: `state` where earlier releases have `enable`, `ipv4`
where they have `ip`, and profiles of BFD.
"""

import re
from collections.abc import Collection, Iterator, Mapping
from functools import cache
from pathlib import PurePosixPath
from typing import Any

from headway.jobspec.plan import ClusterPlan, EcnPlan, PortPlan, QosPlan, SwitchPlan
from headway.jobspec.problem import Severity
from headway.templates.kind import Files
from headway.templates.ports import PortPlace, cage_lanes, named, place_of
from headway.templates.switches.nvue import roce
from headway.templates.switches.nvue.options import NvueOptions
from headway.templates.switches.nvue.tree import Tree, joined, members, tree_text

FILE = "startup.yaml"

# NVUE, `multipaths ebgp`.
MOST_PATHS = 128

_MTU = 9216
# Model and speed of transceivers that do not negotiate (Switch Port Attributes): 400G in QSFP-DD.
_FORCED = ("SN4700", 400)
_ON = "enabled"
_PROFILE = "default-global"
_GROUP = "FABRIC"
_FRONT = re.compile(r"swp\d+(s\d+)?")
# Of which headway decides everything.
_OWN = (("qos",), ("router", "bgp"), ("router", "bfd"), ("router", "adaptive-routing"), ("vrf", "default", "router", "bgp"))


# The management plane.
_OF_SITE = (
    ("service",),
    ("system",),
    ("maintenance",),
    ("platform",),
    ("vrf", "mgmt"),
    ("interface", "eth0"),
    ("interface", "eth1"),
)
_FORWARDING = (("system", "hostname"), ("system", "forwarding"))
# What a port that nothing uses may have.
_IDLE = (("type", "swp"), ("link", "state", "down"))


def judge(key: str) -> Severity | None:
    """Return how much an attribute matters that is not as the plan has it, by its path: None where the site decides it."""
    path = tuple(key.split("|"))
    is_port = path[0] == "interface" and len(path) > 1 and _FRONT.fullmatch(path[1]) is not None
    if "description" in path[2:] or (any(path[: len(each)] == each for each in _OF_SITE) and path[:2] not in _FORWARDING):
        return None
    if is_port or path[:2] in _FORWARDING or any(path[: len(each)] == each for each in _OWN):
        return Severity.WARNING if path[2:] in _IDLE else Severity.ERROR
    return Severity.ERROR if path[:2] == ("interface", "lo") and ":" not in key else Severity.WARNING


def port_name(place: PortPlace) -> str:
    """Return `swp33`, or `swp33s1` for a part of a cage that is split."""
    return f"swp{place.cage}s{place.part}" if place.parts > 1 else f"swp{place.cage}"


def render(options: NvueOptions, switch: SwitchPlan, cluster: ClusterPlan) -> Files:
    """Return `startup.yaml`, as it is in /etc/nvue.d of the switch; with a base it is complete."""
    tree = _tree(options, switch, cluster)
    base = options.base_of(switch.name)
    if base is not None:
        tree = joined(_of_site(base, options.keep_ports), tree)
    comments = (
        f"{switch.name}, a {switch.role} of {switch.fabric} on {cluster.name}.",
        "Rendered by headway; edit the cluster's spec, not this file.",
    )
    return {PurePosixPath(FILE): tree_text(tree, comments)}


def front_ports(base: Mapping[str, Any]) -> Iterator[str]:
    """Yield the names of the front panel's ports that a base has something about."""
    for key in base.get("interface", {}):
        yield from (name for name in members(key) if _FRONT.fullmatch(name))


def _tree(options: NvueOptions, switch: SwitchPlan, cluster: ClusterPlan) -> Tree:
    fabric = cluster.fabric(switch.fabric)
    adapts = fabric.balancing == "adaptive"
    own = named(switch, cluster, port_name)
    has_lossless = fabric.qos is not None and bool(fabric.qos.lossless_priorities)
    tree: Tree = {
        "system": {"hostname": switch.name},
        "interface": {
            "lo": {"type": "loopback", "ipv4": {"address": {f"{switch.router_id}/32": {}}}},
            **_breakouts(switch, cluster),
            **{port.name: _port(port, fabric.switch_model, has_lossless, adapts) for port in own.ports},
        },
        "router": {"bgp": {"autonomous-system": switch.asn, "router-id": switch.router_id, "state": _ON}},
        "vrf": {"default": {"router": {"bgp": _bgp(options, own)}}},
    }
    if options.bfd_ms is not None:
        times = {
            "min-rx-interval": options.bfd_ms,
            "min-tx-interval": options.bfd_ms,
            "detect-multiplier": options.bfd_multiplier,
        }
        tree["router"]["bfd"] = {"state": _ON, "profile": {_GROUP: times}}
    if adapts:
        tree["router"]["adaptive-routing"] = {"state": _ON}
    if fabric.qos is not None:
        # One length for the headroom of all ports: that of the longest cable.
        metres = max((port.metres for port in switch.ports), default=1)
        tree["qos"] = _qos(fabric.qos, metres, options.lossless_percent)
    return tree


def _of_site(base: Mapping[str, Any], keep: Collection[str]) -> Tree:
    """Return the base without what headway decides: a port is in the plan, is kept, or is left out and so down."""
    found = dict(base)
    for path in _OWN:
        found = _without(found, path)
    interfaces = {
        name: value
        for key, value in found.get("interface", {}).items()
        for name in (members(key) if _FRONT.fullmatch(next(members(key))) else (key,))
        if not _FRONT.fullmatch(name) or name in keep
    }
    for family in ("ip", "ipv4"):
        interfaces = _without(interfaces, ("lo", family, "address"))
    return {**found, "interface": interfaces}


def _without(tree: Mapping[str, Any], path: tuple[str, ...]) -> Tree:
    first, *rest = path
    inner = tree.get(first)
    if not rest or not isinstance(inner, Mapping):
        return {key: value for key, value in tree.items() if key != first or rest}
    kept = _without(inner, tuple(rest))
    return {key: kept if key == first else value for key, value in tree.items() if key != first or kept}


# --- ports ------------------------------------------------------------------------------------------------------------


def _breakouts(switch: SwitchPlan, cluster: ClusterPlan) -> Tree:
    """Return the cages that are split; each part has an even share of the lanes."""
    of_cage = cage_lanes(cluster, switch.fabric)
    places = {place_of(port.name, port.lanes, of_cage) for port in switch.ports}
    split = {place.cage: place.parts for place in places if place.parts > 1}
    return {f"swp{cage}": {"type": "swp", "link": {"breakout": {f"{parts}x": {}}}} for cage, parts in split.items()}


def _port(port: PortPlan, model: str | None, has_lossless: bool, adapts: bool) -> Tree:
    """Return a port that is up. FEC stays automatic, which is the ASIC's own choice for the module (Switch Port Attributes)."""
    link: Tree = {"state": {"up": {}}, "mtu": _MTU, "speed": f"{port.gbps}G"}
    if (model, port.gbps) == _FORCED:
        link["auto-negotiate"] = "disabled"
    found: Tree = {"type": "swp", "description": f"{port.peer} {port.peer_port}", "link": link}
    if port.address:
        found["ipv4"] = {"address": {port.address: {}}}
    if has_lossless:
        found["qos"] = {"pfc-watchdog": {"state": _ON}}
    if adapts and port.role == "fabric":
        found["router"] = {"adaptive-routing": {"state": _ON}}
    return found


# --- BGP --------------------------------------------------------------------------------------------------------------


def _bgp(options: NvueOptions, switch: SwitchPlan) -> Tree:
    """Return unnumbered sessions on all links between switches, and the networks that the switch announces."""
    networks = [f"{switch.router_id}/32", *(port.address for port in switch.ports if port.address)]
    family: Tree = {"state": _ON, "network": {each: {} for each in networks}, "multipaths": {"ebgp": MOST_PATHS}}
    if switch.block:
        family["aggregate-route"] = {switch.block: {"summary-only": _ON}}
    group: Tree = {
        "remote-as": "external",
        "timers": {"keepalive": options.hold_s // 3, "hold": options.hold_s, "connection-retry": 1},
    }
    if options.bfd_ms is not None:
        group["bfd"] = {"profile": _GROUP}
    return {
        "state": _ON,
        "address-family": {"ipv4-unicast": family},
        "path-selection": {"multipath": {"aspath-ignore": _ON}},
        "peer-group": {_GROUP: group},
        "neighbor": {port.name: {"type": "unnumbered", "peer-group": _GROUP} for port in switch.uplinks},
    }


# --- classes ----------------------------------------------------------------------------------------------------------


@cache
def _qos(qos: QosPlan, metres: int, lossless_percent: int | None) -> Tree:
    """Return the classes as exceptions from `qos roce`, which also makes the buffers. Traffic of no class has switch priority 0."""
    has_lossless = bool(qos.lossless_priorities)
    of_priority = {each.priority: each.queue for each in qos.classes}
    strict = {each.queue for each in qos.classes if each.bandwidth_percent is None}
    shares = {0: qos.rest_percent, **{each.queue: each.bandwidth_percent for each in qos.classes}}
    marks = {**dict.fromkeys(roce.MARKED), **{each.queue: each.ecn for each in qos.classes}}
    tree: Tree = {
        "roce": {"state": _ON, "mode": "lossless" if has_lossless else "lossy"},
        "mapping": {_PROFILE: {"trust": "both", "dscp": _dscps(qos)}},
        "egress-queue-mapping": {
            _PROFILE: {"switch-priority": {str(each): {"traffic-class": of_priority.get(each, 0)} for each in range(8)}}
        },
        "egress-scheduler": {
            _PROFILE: {
                "traffic-class": {
                    str(queue): {"mode": "strict"} if queue in strict else {"mode": "dwrr", "bw-percent": share}
                    for queue, share in shares.items()
                }
            }
        },
        "congestion-control": {_PROFILE: {"traffic-class": {str(queue): _marking(ecn) for queue, ecn in marks.items()}}},
    }
    if has_lossless:
        priorities: Tree = {str(priority): {} for priority in qos.lossless_priorities}
        tree["pfc"] = {_PROFILE: {"switch-priority": priorities, "tx": "enable", "rx": "enable", "cable-length": metres}}
        if lossless_percent is not None:
            tree["traffic-pool"] = {
                "default-lossy": {"memory-percent": 100 - lossless_percent},
                "roce-lossless": {"memory-percent": lossless_percent},
            }
    return tree


def _dscps(qos: QosPlan) -> Tree:
    """Return the classes' DSCPs, and those that would share their switch priority: eight in a row have one."""
    used = {each.priority for each in qos.classes}
    found = {dscp: 0 for dscp in range(64) if dscp >> 3 in used}
    found |= {each.dscp: each.priority for each in qos.classes}
    return {str(dscp): {"switch-priority": priority} for dscp, priority in found.items()}


def _marking(ecn: EcnPlan | None) -> Tree:
    if ecn is None:
        return {"ecn": "disable"}
    return {"ecn": "enable", "min-threshold": ecn.min_bytes, "max-threshold": ecn.max_bytes, "probability": ecn.percent}
