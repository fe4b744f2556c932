"""Renders a switch's plan as EOS's `startup-config`.

`structured` puts the settings together by the names of AVD's schema (aristanetworks/avd, eos_cli_config_gen), by which pyavd validates
and renders them in a test; the template prints them, since pyavd takes 0.2 s for each switch.
"""

import types
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any

from headway.jobspec.catalog.switches import switches as models
from headway.jobspec.plan import ClassPlan, ClusterPlan, PortPlan, QosPlan, SwitchPlan
from headway.templates.kind import Files
from headway.templates.natural import natural
from headway.templates.ports import PortPlace, cage_lanes, named, place_of
from headway.templates.shell import comment
from headway.templates.switches.eos.blocks import of_site
from headway.templates.switches.eos.options import EosOptions
from headway.templates.switches.words import word
from headway.templates.template import fill

FILE = "startup-config"
_TEMPLATE = Path(__file__).parent / f"{FILE}.j2"

# What Tomahawk's tables hold without another profile.
MOST_PATHS = 128

# `speed`, by Gb/s and lanes of a port (AVD's schema, ethernet_interfaces.speed).
SPEEDS: Mapping[tuple[int, int], str] = types.MappingProxyType(
    {
        (gbps, lanes): f"{gbps}g-{lanes}"
        for gbps, every in {50: (1, 2), 100: (1, 2, 4), 200: (1, 2, 4), 400: (2, 4, 8), 800: (4, 8)}.items()
        for lanes in every
    }
)

# The largest that a routed port takes.
_MTU = 9214
_FEC_FROM_GBPS = 100
_GROUP = "FABRIC"
_PROFILE = "ROCE"
# Seconds; a poll may take half of the other two at most (EOS User Manual, DCBX and Flow Control). 0.4 is SONiC's for 64 ports.
_WATCHDOG = {"action": "drop", "timeout": "0.40", "recovery_time": "0.40", "polling_interval": "0.200"}
# Of the class, the queue and the group of everything that is in no class.
_REST = 0

Settings = dict[str, Any]


def port_name(place: PortPlace) -> str:
    """Return `Ethernet33/5`: the cage, and the first lane of the port."""
    return f"Ethernet{place.cage}/{place.lane + 1}"


def render(options: EosOptions, switch: SwitchPlan, cluster: ClusterPlan) -> Files:
    """Return `startup-config`; with a base it is complete. Raises ValueError when a name of the plan would leave its line."""
    site = list(of_site(options.base_of(switch.name) or (), options.keep_ports))
    values = {"switch": switch, "cluster": cluster, "site": site, **structured(options, switch, cluster)}
    return {PurePosixPath(FILE): fill(_TEMPLATE, word, comment, values)}


def structured(options: EosOptions, switch: SwitchPlan, cluster: ClusterPlan) -> Settings:
    """Return the settings as AVD's schema has them; None where a switch has none of a kind."""
    fabric = cluster.fabric(switch.fabric)
    own = named(switch, cluster, port_name)
    qos = fabric.qos
    has_lossless = qos is not None and bool(qos.lossless_priorities)
    ports = [_port(port, None if qos is None else _PROFILE) for port in own.ports]
    ports += [{**_NOTHING, "name": name, "shutdown": True} for name in _unused(options, own, switch, cluster)]
    return {
        "hostname": switch.name,
        "service_routing_protocols_model": "multi-agent",
        "ethernet_interfaces": sorted(ports, key=lambda port: natural(port["name"])),
        "loopback_interfaces": [{"name": "Loopback0", "ip_address": f"{switch.router_id}/32"}],
        # IPv4 routes over links without IPv4 addresses (RFC 5549).
        "ip_routing_ipv6_interfaces": True,
        "ipv6_unicast_routing": True,
        "ip_hardware": {"fib": {"load_balance_distribution": {"dynamic": {"enabled": True}}}}
        if fabric.balancing == "dlb"
        else None,
        "qos": None if qos is None else {"map": _maps(qos)},
        "qos_profiles": [] if qos is None else [_profile(qos, options.guaranteed_percent)],
        "priority_flow_control": {"watchdog": _WATCHDOG} if has_lossless else None,
        "router_bgp": _bgp(options, own, cluster),
    }


# --- ports ------------------------------------------------------------------------------------------------------------


# A port without a planned cable: only that it is shut.
_NOTHING = dict.fromkeys(
    (
        "description",
        "mtu",
        "speed",
        "error_correction_encoding",
        "switchport",
        "ip_address",
        "ipv6_enable",
        "service_profile",
        "qos",
    )
)


def _port(port: PortPlan, profile: str | None) -> Settings:
    return {
        "name": port.name,
        "description": f"{port.peer} {port.peer_port}",
        "shutdown": False,
        "mtu": _MTU,
        "speed": SPEEDS[port.gbps, port.lanes],
        "error_correction_encoding": {"reed_solomon": True} if port.gbps >= _FEC_FROM_GBPS else None,
        "switchport": {"enabled": False},
        "ip_address": port.address,
        "ipv6_enable": None if port.address else True,
        "service_profile": profile,
        "qos": None if profile is None else {"trust": "dscp"},
    }


def _unused(options: EosOptions, own: SwitchPlan, switch: SwitchPlan, cluster: ClusterPlan) -> Iterator[str]:
    """Yield the model's other ports, which EOS would have up in its first VLAN: the parts of each cage that is split, or the cage."""
    model = models().get(cluster.fabric(switch.fabric).switch_model or "")
    of_cage = cage_lanes(cluster, switch.fabric)
    parts = {place.cage: place.parts for port in switch.ports for place in [place_of(port.name, port.lanes, of_cage)]}
    there = {port.name for port in own.ports} | {*options.keep_ports}
    for cage in range(1, (model.ports if model else 0) + 1):
        count = parts.get(cage, 1)
        for part in range(count):
            name = port_name(PortPlace(cage, part, count, part * of_cage // count))
            if name not in there and f"Ethernet{cage}" not in there:
                yield name


# --- BGP --------------------------------------------------------------------------------------------------------------


def _bgp(options: EosOptions, switch: SwitchPlan, cluster: ClusterPlan) -> Settings:
    """Return unnumbered sessions on all links between switches, and the networks that the switch announces."""
    asns = cluster.switch_asns
    networks = [f"{switch.router_id}/32", *(port.address for port in switch.ports if port.address)]
    times = None
    if options.bfd_ms is not None:
        times = {"interval": options.bfd_ms, "min_rx": options.bfd_ms, "multiplier": options.bfd_multiplier}
    group = {
        "name": _GROUP,
        "bfd": times is not None,
        "bfd_timers": times,
        "timers": f"{options.hold_s // 3} {options.hold_s}",
    }
    return {
        "as": str(switch.asn),
        "router_id": switch.router_id,
        "bgp": {"default": {"ipv4_unicast": False}},
        "maximum_paths": {"paths": MOST_PATHS, "ecmp": MOST_PATHS},
        "peer_groups": [group],
        "aggregate_addresses": [{"prefix": switch.block, "summary_only": True}] if switch.block else [],
        "neighbor_interfaces": [
            {"name": port.name, "peer_group": _GROUP, "remote_as": str(asns[port.peer])} for port in switch.uplinks
        ],
        "address_family_ipv4": {
            "peer_groups": [
                {"name": _GROUP, "activate": True, "next_hop": {"address_family_ipv6": {"enabled": True, "originate": True}}}
            ],
            "networks": [{"prefix": prefix} for prefix in networks],
        },
    }


# --- classes ----------------------------------------------------------------------------------------------------------


@cache
def _maps(qos: QosPlan) -> Settings:
    """Return the traffic class of every DSCP, since EOS has its own by eights, and the queues that have another number than their class."""
    of_dscp = {each.dscp: each.priority for each in qos.classes}
    rest = " ".join(str(dscp) for dscp in range(64) if dscp not in of_dscp)
    dscps = [f"{rest} to traffic-class {_REST}", *(f"{dscp} to traffic-class {number}" for dscp, number in of_dscp.items())]
    moved = {each.priority: each.queue for each in qos.classes if each.priority != each.queue}
    return {"dscp": dscps, "traffic_class": [f"{number} to tx-queue {queue}" for number, queue in moved.items()]}


@cache
def _profile(qos: QosPlan, guaranteed: int | None) -> Settings:
    """Return the profile of all ports. Priorities of PFC are EOS's traffic classes."""
    priorities = [{"priority": priority, "no_drop": True} for priority in qos.lossless_priorities]
    rest = {"id": _REST, **_scheduler(qos.rest_percent), "bandwidth_guaranteed_percent": None, "random_detect": None}
    queues = [rest, *(_queue(each, guaranteed) for each in sorted(qos.classes, key=lambda each: each.queue))]
    return {
        "name": _PROFILE,
        "trust": "dscp",
        "priority_flow_control": {"enabled": True, "priorities": priorities, "watchdog": {"enabled": True}}
        if priorities
        else None,
        "uc_tx_queues": queues,
    }


def _queue(traffic: ClassPlan, guaranteed: int | None) -> Settings:
    marking = None
    if traffic.ecn is not None:
        ecn = {"min": traffic.ecn.min_bytes, "max": traffic.ecn.max_bytes, "max_probability": traffic.ecn.percent}
        # The length of the queue at this moment, not an average.
        marking = {"ecn": {"threshold": {"units": "bytes", **ecn, "weight": 0}}}
    return {
        "id": traffic.queue,
        **_scheduler(traffic.bandwidth_percent),
        "bandwidth_guaranteed_percent": guaranteed if traffic.lossless else None,
        "random_detect": marking,
    }


def _scheduler(percent: int | None) -> Settings:
    return {"priority": "priority strict" if percent is None else "no priority", "bandwidth_percent": percent}
