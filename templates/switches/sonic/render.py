"""Renders a switch's plan as `config_db.json`: tables of rows of text, by the names of SONiC's YANG models."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

from headway.jobspec.plan import ClusterPlan, EcnPlan, PortPlan, QosPlan, SwitchPlan
from headway.templates.kind import Files
from headway.templates.switches.sonic.options import SonicOptions

FILE = "config_db.json"

# sonic-bgp-global.yang, max_ebgp_paths.
MAX_PATHS = 256

# The name of every map in SONiC's own templates (qos_config.j2, buffers_config.j2), which its tools expect.
MAP = "AZURE"
# Peer group, and route map for both ways.
GROUP = "FABRIC"

_MTU = 9216
_FEC_FROM_GBPS = 100
# The value of `pfcwd start_default` for a switch of 64 ports.
_WATCHDOG_MS = 400
# SONiC's loopback, whose address names the switch.
_LOOPBACK = "Loopback0"

# SONiC's roles: a switch with hosts, and one above it. The platform's buffer templates choose by them.
_TYPES = {"leaf": "ToRRouter", "spine": "LeafRouter"}

Row = dict[str, Any]
Table = dict[str, Row]
Tables = dict[str, Table]


def render(options: SonicOptions, switch: SwitchPlan, cluster: ClusterPlan) -> Files:
    """Return one file for `config load`: headway's decisions. Other rows on the switch stay unchanged."""
    qos = cluster.fabric(switch.fabric).qos
    tables: Tables = {
        "DEVICE_METADATA": {"localhost": _device(options, switch)},
        "PORT": {port.name: _port(options, port) for port in switch.ports},
        "SWITCH_HASH": {"GLOBAL": {"ecmp_hash": ["SRC_IP", "DST_IP", "IP_PROTOCOL", "L4_SRC_PORT", "L4_DST_PORT"]}},
        **_addresses(switch),
        **_bgp(options, switch),
    }
    if qos is not None:
        tables |= _classes(qos) | _queues(qos, switch.ports) | _port_maps(options, qos, switch.ports)
        if qos.lossless_priorities:
            tables |= _watchdog(switch.ports) | _cables(switch.ports)
        if options.buffer_model == "dynamic":
            tables |= _buffers(options, qos, switch.ports)
    return {PurePosixPath(FILE): json.dumps(_in_order(tables), indent=4) + "\n"}


def _device(options: SonicOptions, switch: SwitchPlan) -> Row:
    return {
        "hostname": switch.name,
        "platform": options.platform,
        "hwsku": options.hwsku,
        "type": _TYPES[switch.role],
        "bgp_asn": str(switch.asn),
        "buffer_model": options.buffer_model,
        # frrcfgd writes FRR's configuration; bgpcfgd, the default, knew no BGP on interfaces before sonic-buildimage #27370
        "frr_mgmt_framework_config": "true",
        "docker_routing_config_mode": "unified",
        # with nexthop objects a group keeps losing a member that was down once (FRRouting/frr #15505, #14481)
        "zebra_nexthop": "disabled",
    }


def _port(options: SonicOptions, port: PortPlan) -> Row:
    first = port.index * port.lanes
    lanes = options.lanes[port.index] if options.lanes else ",".join(map(str, range(first, first + port.lanes)))
    return {
        "alias": f"etp{port.index + 1}",
        "index": str(port.index + 1),
        "lanes": lanes,
        "speed": str(port.gbps * 1000),
        "mtu": str(_MTU),
        "admin_status": "up",
        "description": f"{port.peer} {port.peer_port}",
        **({"fec": "rs"} if port.gbps >= _FEC_FROM_GBPS else {}),
    }


def _addresses(switch: SwitchPlan) -> Tables:
    """Return addresses of links to nodes; those between switches use IPv6 with link-local addresses (RFC 5549)."""
    interfaces: Table = {port.name: {"ipv6_use_link_local_only": "enable"} for port in switch.uplinks}
    for port in switch.ports:
        if port.address:
            interfaces |= {port.name: {}, f"{port.name}|{port.address}": {}}
    return {"INTERFACE": interfaces, "LOOPBACK_INTERFACE": {_LOOPBACK: {}, f"{_LOOPBACK}|{switch.router_id}/32": {}}}


def _bgp(options: SonicOptions, switch: SwitchPlan) -> Tables:
    """Return BGP as frrcfgd reads it.

    FRR drops what eBGP brings unless a route map lets it in and out, and frrcfgd cannot switch that off before
    sonic-buildimage #28543.
    """
    networks = [f"{switch.router_id}/32", *(port.address for port in switch.ports if port.address)]
    peers = {
        "peer_type": "external",
        "capability_ext_nexthop": "true",
        "bfd": "true" if options.bfd else "false",
        "keepalive": str(options.hold_s // 3),
        "holdtime": str(options.hold_s),
        "conn_retry": "1",
        "min_adv_interval": "0",
        "admin_status": "up",
    }
    return {
        "BGP_GLOBALS": {
            "default": {
                "local_asn": str(switch.asn),
                "router_id": switch.router_id,
                "load_balance_mp_relax": "true",
                "log_nbr_state_changes": "true",
                # a network below is announced while its link is up
                "network_import_check": "true",
            }
        },
        "BGP_GLOBALS_AF": {"default|ipv4_unicast": {"max_ebgp_paths": str(min(len(switch.uplinks), MAX_PATHS) or 1)}},
        "BGP_GLOBALS_AF_NETWORK": {f"default|ipv4_unicast|{network}": {} for network in networks},
        "BGP_PEER_GROUP": {f"default|{GROUP}": peers},
        "BGP_PEER_GROUP_AF": {
            f"default|{GROUP}|ipv4_unicast": {"admin_status": "up", "route_map_in": [GROUP], "route_map_out": [GROUP]}
        },
        "BGP_NEIGHBOR": {f"default|{port.name}": {"peer_group_name": GROUP, "name": port.peer} for port in switch.uplinks},
        "ROUTE_MAP_SET": {GROUP: {}},
        "ROUTE_MAP": {f"{GROUP}|10": {"route_operation": "permit"}},
    }


def _classes(qos: QosPlan) -> Tables:
    """Return the places of each DSCP; everything that is in no class is traffic class, queue and group 0."""
    of_dscp = {each.dscp: each.traffic_class for each in qos.classes}
    return {
        "DSCP_TO_TC_MAP": {MAP: {str(dscp): str(of_dscp.get(dscp, 0)) for dscp in range(64)}},
        "TC_TO_QUEUE_MAP": {MAP: {"0": "0", **{str(each.traffic_class): str(each.queue) for each in qos.classes}}},
        "TC_TO_PRIORITY_GROUP_MAP": {
            MAP: {"0": "0", **{str(each.traffic_class): str(each.priority_group) for each in qos.classes}}
        },
        "MAP_PFC_PRIORITY_TO_QUEUE": {MAP: {"0": "0", **{str(each.priority): str(each.queue) for each in qos.classes}}},
    }


def _queues(qos: QosPlan, ports: Sequence[PortPlan]) -> Tables:
    """Return every queue's share of its port, and the length from which it marks."""
    names: dict[int, Row] = {0: {"scheduler": _queue_name(0)}}
    schedulers: Table = {_queue_name(0): _scheduler(qos.rest_percent)}
    for each in qos.classes:
        name = _queue_name(each.queue)
        names[each.queue] = {"scheduler": name, **({"wred_profile": name} if each.ecn else {})}
        schedulers[name] = _scheduler(each.bandwidth_percent)
    marking = {_queue_name(each.queue): _wred(each.ecn) for each in qos.classes if each.ecn}
    return {
        "SCHEDULER": schedulers,
        "QUEUE": {f"{port.name}|{queue}": row for port in ports for queue, row in names.items()},
        **({"WRED_PROFILE": marking} if marking else {}),
    }


def _queue_name(queue: int) -> str:
    return f"queue{queue}"


def _scheduler(percent: int | None) -> Row:
    return {"type": "STRICT"} if percent is None else {"type": "DWRR", "weight": str(percent)}


def _wred(ecn: EcnPlan) -> Row:
    """Return ECN as SONiC configures it: WRED that marks. Without `wred_green_enable` nothing is marked
    (sonic-buildimage #4545)."""
    row: Row = {"ecn": "ecn_all"}
    for colour in ("green", "yellow", "red"):
        row[f"wred_{colour}_enable"] = "true"
        row[f"{colour}_min_threshold"] = str(ecn.min_bytes)
        row[f"{colour}_max_threshold"] = str(ecn.max_bytes)
        row[f"{colour}_drop_probability"] = str(ecn.percent)
    return row


def _port_maps(options: SonicOptions, qos: QosPlan, ports: Sequence[PortPlan]) -> Tables:
    lossless = _numbers(qos.lossless_priorities)
    row = {
        "dscp_to_tc_map": MAP,
        "tc_to_queue_map": MAP,
        "tc_to_pg_map": MAP,
        "pfc_to_queue_map": MAP,
        "pfc_enable": lossless,
        "pfcwd_sw_enable": lossless,
    }
    tables: Tables = {}
    # qos_config.j2 has this map for the ASICs of Mellanox and Barefoot only
    if qos.lossless_priorities and options.buffer_model == "dynamic":
        groups = {str(each.priority): str(each.priority_group) for each in qos.classes if each.lossless}
        tables["PFC_PRIORITY_TO_PRIORITY_GROUP_MAP"] = {MAP: groups}
        row["pfc_to_pg_map"] = MAP
    tables["PORT_QOS_MAP"] = {"global": {"dscp_to_tc_map": MAP}, **{port.name: row for port in ports}}
    return tables


def _numbers(values: Iterable[int]) -> str:
    return ",".join(map(str, values))


def _watchdog(ports: Sequence[PortPlan]) -> Tables:
    """Return the watchdog: a port that is paused for too long drops its queue before the pause spreads through the fabric."""
    row = {"action": "drop", "detection_time": str(_WATCHDOG_MS), "restoration_time": str(_WATCHDOG_MS)}
    return {"PFC_WD": {"GLOBAL": {"POLL_INTERVAL": str(_WATCHDOG_MS)}, **{port.name: row for port in ports}}}


def _cables(ports: Sequence[PortPlan]) -> Tables:
    """Return the cables: headroom is for data still on the cable when the pause arrives."""
    return {"CABLE_LENGTH": {MAP: {port.name: f"{port.metres}m" for port in ports}}}


def _buffers(options: SonicOptions, qos: QosPlan, ports: Sequence[PortPlan]) -> Tables:
    """Return pools and profiles of the dynamic model, as on NVIDIA's platforms (buffers_defaults_objects.j2).

    A lossless group's profile is NULL: buffermgrd makes it from the port's speed, MTU and cable.
    """
    groups = {0: "ingress_lossy_profile", **{each.priority_group: "NULL" for each in qos.classes if each.lossless}}
    queues = {0: "q_lossy_profile"}
    queues |= {each.queue: "egress_lossless_profile" if each.lossless else "q_lossy_profile" for each in qos.classes}
    return {
        "BUFFER_POOL": {
            "ingress_lossless_pool": {"type": "ingress", "mode": "dynamic"},
            "egress_lossless_pool": {"type": "egress", "mode": "dynamic", "size": str(options.egress_pool_bytes)},
            "egress_lossy_pool": {"type": "egress", "mode": "dynamic"},
        },
        "BUFFER_PROFILE": {
            "ingress_lossless_profile": _profile("ingress_lossless_pool", 0, 7),
            "ingress_lossy_profile": _profile("ingress_lossless_pool", 0, 3),
            "egress_lossless_profile": _profile("egress_lossless_pool", 0, 7),
            "egress_lossy_profile": _profile("egress_lossy_pool", _MTU, 7),
            "q_lossy_profile": _profile("egress_lossy_pool", 0, 3),
        },
        "BUFFER_PG": {f"{port.name}|{group}": {"profile": name} for port in ports for group, name in groups.items()},
        "BUFFER_QUEUE": {f"{port.name}|{queue}": {"profile": name} for port in ports for queue, name in queues.items()},
        "BUFFER_PORT_INGRESS_PROFILE_LIST": {port.name: {"profile_list": "ingress_lossless_profile"} for port in ports},
        "BUFFER_PORT_EGRESS_PROFILE_LIST": {
            port.name: {"profile_list": "egress_lossless_profile,egress_lossy_profile"} for port in ports
        },
        "DEFAULT_LOSSLESS_BUFFER_PARAMETER": {MAP: {"default_dynamic_th": "0"}},
        "LOSSLESS_TRAFFIC_PATTERN": {MAP: {"mtu": "1024", "small_packet_percentage": "50"}},
    }


def _profile(pool: str, size: int, threshold: int) -> Row:
    return {"pool": pool, "size": str(size), "dynamic_th": str(threshold)}


def _in_order(value: Any) -> Any:
    """Return the value with all keys in natural order: Ethernet8 before Ethernet16."""
    if not isinstance(value, Mapping):
        return value
    return {key: _in_order(value[key]) for key in sorted(value, key=_natural)}


def _natural(key: str) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdecimal() else (0, part) for part in re.split(r"(\d+)", key)]
