"""Renders a switch's plan as `config_db.json`, by the names of SONiC's YANG models, and the `frr.conf` that its FRR reads."""

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import groupby
from json.encoder import encode_basestring_ascii
from pathlib import PurePosixPath
from typing import Any, NamedTuple

from headway.jobspec.plan import ClusterPlan, EcnPlan, PortPlan, QosPlan, SwitchPlan
from headway.templates.kind import Files
from headway.templates.natural import natural
from headway.templates.switches.frr.render import MAX_PATHS, frr_conf
from headway.templates.switches.sonic.base import merged
from headway.templates.switches.sonic.device import SonicDevice, device_of, model_of
from headway.templates.switches.sonic.hardware import HwSku, SwitchPort
from headway.templates.switches.sonic.options import SonicOptions

__all__ = ["FILE", "FRR_FILE", "MAX_PATHS", "render"]

FILE = "config_db.json"
# Below /etc/sonic, which FRR's container has as /etc/frr.
FRR_FILE = "frr/frr.conf"

# The name of every map in SONiC's own templates (qos_config.j2, buffers_config.j2), which its tools expect.
MAP = "AZURE"

_MTU = 9216
_FEC_FROM_GBPS = 100
# Ethernet with its checksum, IPv4, UDP, BTH, RETH and ICRC around the payload of a RoCE v2 packet.
_ROCE_HEADERS = 18 + 20 + 8 + 12 + 16 + 4
# Queues of unicast that SONiC's templates give a buffer.
_QUEUES = 7
# sonic-utilities pfcwd/main.py: DEFAULT_DETECTION_TIME and DEFAULT_POLL_INTERVAL for every 32 ports.
_PERIOD_MS, _PORTS_OF_A_PERIOD, _LONGEST_POLL_MS = 200, 32, 1000
# SONiC's loopback, whose address names the switch.
_LOOPBACK = "Loopback0"
# In the place of a description.
_MARK = "DESCRIPTION"
_LINK_LOCAL = {"ipv6_use_link_local_only": "enable"}

# SONiC's roles: a switch with hosts, and those above it. The platform's buffer templates choose by them.
_TYPES = {"leaf": "ToRRouter", "spine": "LeafRouter", "core": "SpineRouter"}

Row = dict[str, Any]
Table = dict[str, Row]
Tables = dict[str, Table]


def render(options: SonicOptions, switch: SwitchPlan, cluster: ClusterPlan) -> Files:
    """Return `config_db.json` and the `frr/frr.conf` next to it, as they are in /etc/sonic on the switch.

    With a base, config_db.json is complete; without one it has headway's tables only. Raises ValueError for a device that neither
    SONiC's device tree nor a base describes; `check` reports it.
    """
    device = device_of(options, switch, cluster)
    if device is None:
        raise ValueError(f"SONiC's device tree has no {model_of(switch, cluster)} with such ports, for `{switch.name}`")
    tables = _tables(options, switch, cluster, device)
    base = options.base_of(switch.name)
    if base is not None:
        tables = {name: _rows(rows) for name, rows in merged(base, tables, options.keep_ports).items()}
    routing = frr_conf(options, switch, cluster, on_sonic=True)
    return {PurePosixPath(FILE): _text(tables), PurePosixPath(FRR_FILE): routing}


def _tables(options: SonicOptions, switch: SwitchPlan, cluster: ClusterPlan, device: SonicDevice) -> Tables:
    qos = cluster.fabric(switch.fabric).qos
    tables: Tables = {
        "DEVICE_METADATA": {"localhost": _device(switch, device)},
        "PORT": _ports(switch, device, options.keep_ports),
        "SWITCH_HASH": {"GLOBAL": {"ecmp_hash": ["SRC_IP", "DST_IP", "IP_PROTOCOL", "L4_SRC_PORT", "L4_DST_PORT"]}},
        **_addresses(switch),
        **_neighbors(switch, cluster),
    }
    if device.breakout:
        tables["BREAKOUT_CFG"] = {name: {"brkout_mode": mode} for name, mode in device.breakout.items()}
    if qos is not None:
        tables |= _class_tables(options, switch, device, qos)
    return tables


def _class_tables(options: SonicOptions, switch: SwitchPlan, device: SonicDevice, qos: QosPlan) -> Tables:
    """Return the tables of the classes. They are one object for all switches of a role with the same device, ports and cables."""
    ports = tuple((port.name, port.metres) for port in switch.ports)
    key = (id(device), qos, switch.role, options.roce_mtu, options.small_packet_percent, ports)
    if key not in _shared:
        tables = _classes(qos) | _queues(qos, switch.ports) | _port_maps(device.hwsku, qos, switch.ports)
        if qos.lossless_priorities:
            tables |= _watchdog(device, switch.ports) | _cables(switch.ports)
        tables |= _buffers(options, device.hwsku, qos, switch)
        if len(_shared) >= _MOST_SHARED:
            _shared.clear()
        _shared[key] = (device, {name: _SharedTable(rows) for name, rows in tables.items()})
    return _shared[key][1]


# The tables by what they depend on, with the device, so that no other gets its id.
_shared: dict[Any, tuple[SonicDevice, Tables]] = {}
_MOST_SHARED = 64


def _device(switch: SwitchPlan, device: SonicDevice) -> Row:
    return {
        "hostname": switch.name,
        "platform": device.platform,
        "hwsku": device.hwsku.name,
        "type": _TYPES[switch.role],
        "bgp_asn": str(switch.asn),
        "buffer_model": "dynamic" if device.hwsku.is_dynamic else "traditional",
        # FRR reads /etc/sonic/frr/frr.conf, and nothing writes another one (docker-fpm-frr, docker_init.sh).
        "docker_routing_config_mode": "split-unified",
        # bfdd runs in SONiC's container only with this one (supervisord.conf.common.j2), and bgpcfgd, which would add route maps, does not.
        "frr_mgmt_framework_config": "true",
    }


def _ports(switch: SwitchPlan, device: SonicDevice, keep: Collection[str]) -> Table:
    """Return every port of the device: those with a planned cable up, the others down."""
    planned = {port.name: port for port in switch.ports}
    speeds = {port.lanes: port.gbps for port in reversed(switch.ports)}
    usual = next((port.gbps for port in switch.ports), None)
    rows = _WrittenTable()
    for name, port in device.ports.items():
        if name in keep:
            continue
        cable = planned.get(name)
        if cable is None:
            row, before, _ = _port(port, port.gbps or speeds.get(port.lanes.count(",") + 1, usual) or 0, is_up=False)
            rows.add(name, row, before)
        else:
            row, before, after = _port(port, cable.gbps, is_up=True)
            description = f"{cable.peer} {cable.peer_port}"
            rows.add(name, {**row, "description": description}, before + encode_basestring_ascii(description) + after)
    return rows


class _PortRow(NamedTuple):
    """A row of a port, and its text before and after the description."""

    row: Row
    before: str
    after: str


@lru_cache(16384)
def _port(port: SwitchPort, gbps: int, *, is_up: bool) -> _PortRow:
    """Return the row without a description, in which alone the switches of a fabric differ."""
    row = {
        "alias": port.alias,
        "index": str(port.index),
        "lanes": port.lanes,
        "speed": str(gbps * 1000),
        # without it a module of a broken-out cage brings up its first part only (sonic-buildimage #18499)
        "subport": str(port.subport),
        "mtu": str(_MTU),
        "admin_status": "up" if is_up else "down",
    }
    if gbps >= _FEC_FROM_GBPS:
        row["fec"] = "rs"
    if not is_up:
        return _PortRow(row, _row_text(row), "")
    before, _, after = _row_text({**row, "description": _MARK}).partition(encode_basestring_ascii(_MARK))
    return _PortRow(row, before, after)


class _WrittenTable(dict[str, Row]):
    """A table with the text of each row: most ports of a fabric have the same, but for a name or two."""

    def __init__(self) -> None:
        super().__init__()
        self._texts: dict[str, str] = {}

    def add(self, name: str, row: Row, text: str) -> None:
        """Add a row with its text, which is what `_row_text` returns."""
        self[name], self._texts[name] = row, text

    def text(self, name: str) -> str:
        """Return it as `_table_text` does."""
        return _with_rows(name, self, self._texts)


def _addresses(switch: SwitchPlan) -> Tables:
    """Return addresses of links to nodes; those between switches use IPv6 with link-local addresses (RFC 5549)."""
    interfaces, local_text = _WrittenTable(), _row_text(_LINK_LOCAL)
    for port in switch.ports:
        if port.role == "fabric":
            interfaces.add(port.name, _LINK_LOCAL, local_text)
        if port.address:
            interfaces.add(port.name, {}, "{}")
            interfaces.add(f"{port.name}|{port.address}", {}, "{}")
    return {"INTERFACE": interfaces, "LOOPBACK_INTERFACE": {_LOOPBACK: {}, f"{_LOOPBACK}|{switch.router_id}/32": {}}}


def _neighbors(switch: SwitchPlan, cluster: ClusterPlan) -> Tables:
    """Return what is at the other ends. SONiC's templates take ports with a neighbor for those in use, and `show` compares LLDP's."""
    roles = cluster.switch_roles
    kinds = {port.peer: "Server" if port.role == "node" else _TYPES[roles[port.peer]] for port in switch.ports}
    if not kinds:
        return {}
    neighbors, metadata = _WrittenTable(), _WrittenTable()
    for port in switch.ports:
        name, peer_port = encode_basestring_ascii(port.peer), encode_basestring_ascii(port.peer_port)
        text = f'{{\n            "name": {name},\n            "port": {peer_port}\n        }}'
        neighbors.add(port.name, {"name": port.peer, "port": port.peer_port}, text)
    rows = {kind: {"type": kind} for kind in kinds.values()}
    texts = {kind: _row_text(row) for kind, row in rows.items()}
    for name, kind in kinds.items():
        metadata.add(name, rows[kind], texts[kind])
    return {"DEVICE_NEIGHBOR": neighbors, "DEVICE_NEIGHBOR_METADATA": metadata}


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


def _port_maps(hwsku: HwSku, qos: QosPlan, ports: Sequence[PortPlan]) -> Tables:
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
    if qos.lossless_priorities and hwsku.is_dynamic:
        groups = {str(each.priority): str(each.priority_group) for each in qos.classes if each.lossless}
        tables["PFC_PRIORITY_TO_PRIORITY_GROUP_MAP"] = {MAP: groups}
        row["pfc_to_pg_map"] = MAP
    tables["PORT_QOS_MAP"] = {"global": {"dscp_to_tc_map": MAP}, **{port.name: row for port in ports}}
    return tables


def _numbers(values: Iterable[int]) -> str:
    return ",".join(map(str, values))


def _watchdog(device: SonicDevice, ports: Sequence[PortPlan]) -> Tables:
    """Return the watchdog: a port that is paused for too long drops its queue before the pause spreads through the fabric.

    The times are those of `pfcwd start_default`, which grow with the ports that are polled (sonic-utilities, pfcwd/main.py); all of the
    device's count, so that they do not change with the nodes.
    """
    periods = -(-(len(device.ports) - len(device.outside)) // _PORTS_OF_A_PERIOD)
    wait = str(_PERIOD_MS * periods)
    row = {"action": "drop", "detection_time": wait, "restoration_time": wait}
    poll = str(min(_PERIOD_MS * periods, _LONGEST_POLL_MS))
    return {"PFC_WD": {"GLOBAL": {"POLL_INTERVAL": poll}, **{port.name: row for port in ports}}}


def _cables(ports: Sequence[PortPlan]) -> Tables:
    """Return the cables: headroom is for data still on the cable when the pause arrives."""
    return {"CABLE_LENGTH": {MAP: {port.name: f"{port.metres}m" for port in ports}}}


def _buffers(options: SonicOptions, hwsku: HwSku, qos: QosPlan, switch: SwitchPlan) -> Tables:
    """Return pools and profiles as the HwSKU's templates define them, and what each group and queue of the classes is given."""
    if hwsku.buffers == "sai":
        return {}
    if hwsku.is_dynamic:
        return _dynamic(options, hwsku, qos, switch.ports)
    groups = {"0": "ingress_lossy_profile"}
    # buffermgrd makes the lossless group's profile from the HwSKU's headroom for this speed and cable.
    return {
        "BUFFER_POOL": _rows(hwsku.pools[switch.role]),
        "BUFFER_PROFILE": _rows(hwsku.profiles[switch.role]),
        "BUFFER_PG": _of_ports(switch.ports, groups),
        "BUFFER_QUEUE": _of_ports(switch.ports, _queue_profiles(qos, "egress_lossy_profile")),
    }


def _dynamic(options: SonicOptions, hwsku: HwSku, qos: QosPlan, ports: Sequence[PortPlan]) -> Tables:
    """Return the tables of NVIDIA's dynamic model (buffers_defaults_objects.j2).

    A lossless group's profile is NULL: buffermgrd makes it from the port's speed, MTU and cable.
    """
    two = hwsku.buffers == "dynamic-two-pools"
    groups = {"0": "ingress_lossy_profile", **{str(each.priority_group): "NULL" for each in qos.classes if each.lossless}}
    pools: Table = {
        "ingress_lossless_pool": {"type": "ingress", "mode": "dynamic"},
        "egress_lossless_pool": {"type": "egress", "mode": "dynamic", "size": str(hwsku.egress_pool_bytes)},
        "egress_lossy_pool": {"type": "egress", "mode": "dynamic"},
    }
    if two:
        pools["ingress_lossy_pool"] = {"type": "ingress", "mode": "dynamic"}
    pattern = {"mtu": str(options.roce_mtu + _ROCE_HEADERS), "small_packet_percentage": str(options.small_packet_percent)}
    ingress = "ingress_lossless_profile,ingress_lossy_profile" if two else "ingress_lossless_profile"
    return {
        "BUFFER_POOL": pools,
        "BUFFER_PROFILE": {
            "ingress_lossless_profile": _profile("ingress_lossless_pool", 0, 7),
            "ingress_lossy_profile": _profile("ingress_lossy_pool" if two else "ingress_lossless_pool", 0, 3),
            "egress_lossless_profile": _profile("egress_lossless_pool", 0, 7),
            "egress_lossy_profile": _profile("egress_lossy_pool", _MTU, 7),
            "q_lossy_profile": _profile("egress_lossy_pool", 0, 3),
        },
        "BUFFER_PG": _of_ports(ports, groups),
        "BUFFER_QUEUE": _of_ports(ports, _queue_profiles(qos, "q_lossy_profile")),
        "BUFFER_PORT_INGRESS_PROFILE_LIST": {port.name: {"profile_list": ingress} for port in ports},
        "BUFFER_PORT_EGRESS_PROFILE_LIST": {
            port.name: {"profile_list": "egress_lossless_profile,egress_lossy_profile"} for port in ports
        },
        "DEFAULT_LOSSLESS_BUFFER_PARAMETER": {MAP: {"default_dynamic_th": "0"}},
        "LOSSLESS_TRAFFIC_PATTERN": {MAP: pattern},
    }


def _queue_profiles(qos: QosPlan, lossy: str) -> Mapping[str, str]:
    """Return the profile of every queue, neighbouring ones as SONiC's ranges: `0-2`."""
    lossless = {each.queue for each in qos.classes if each.lossless}
    queues = sorted({*range(_QUEUES), *(each.queue for each in qos.classes)})
    found: dict[str, str] = {}
    for is_lossless, numbers in groupby(queues, lambda queue: queue in lossless):
        first, *rest = numbers
        found[f"{first}-{rest[-1]}" if rest else str(first)] = "egress_lossless_profile" if is_lossless else lossy
    return found


def _of_ports(ports: Sequence[PortPlan], profiles: Mapping[str, str]) -> Table:
    return {f"{port.name}|{number}": {"profile": name} for port in ports for number, name in profiles.items()}


def _rows(rows: Mapping[str, Mapping[str, Any]]) -> Table:
    return {name: dict(row) for name, row in rows.items()}


def _profile(pool: str, size: int, threshold: int) -> Row:
    return {"pool": pool, "size": str(size), "dynamic_th": str(threshold)}


def _text(tables: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the tables as SONiC writes them, in natural order: Ethernet8 before Ethernet16.

    json's own writer takes twice as long, which counts with a thousand switches.
    """
    texts = [_shared_text(name, tables[name]) for name in sorted(tables, key=natural)]
    return "{\n" + ",\n".join(texts) + "\n}\n"


def _shared_text(name: str, rows: Mapping[str, Any]) -> str:
    return rows.text(name) if isinstance(rows, (_SharedTable, _WrittenTable)) else _table_text(name, rows)


class _SharedTable(dict[str, Row]):
    """A table that many switches have, which is written once."""

    _text: str | None = None

    def text(self, name: str) -> str:
        """Return it as `_table_text` does."""
        if self._text is None:
            self._text = _table_text(name, self)
        return self._text


def _table_text(name: str, rows: Mapping[str, Any]) -> str:
    return _with_rows(name, rows, {key: _row_text(row) for key, row in rows.items()})


def _with_rows(name: str, rows: Iterable[str], texts: Mapping[str, str]) -> str:
    """Return the table of this name, given the text of each row."""
    items = [f"        {before}{texts[key]}" for key, before in _in_natural_order(tuple(rows))]
    inside = "{\n" + ",\n".join(items) + "\n    }" if items else "{}"
    return f"    {encode_basestring_ascii(name)}: {inside}"


@lru_cache(512)
def _in_natural_order(keys: tuple[str, ...]) -> list[tuple[str, str]]:
    """Return the keys in their order, each with its text: the switches of a tier have the same ports."""
    return [(key, f"{encode_basestring_ascii(key)}: ") for key in sorted(keys, key=natural)]


def _row_text(row: Any) -> str:
    if row == {}:
        return "{}"
    if not isinstance(row, dict):
        return _nested_text(row, 2)
    items = [before + _nested_text(row[key], 3) for key, before in _fields(tuple(row))]
    return "{\n" + ",\n".join(items) + "\n        }"


@lru_cache(4096)
def _fields(keys: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    """Return a row's keys in their order, each with the text before its value: the rows of a table have few sets of keys."""
    return tuple((key, f"            {encode_basestring_ascii(key)}: ") for key in sorted(keys, key=natural))


def _nested_text(value: Any, depth: int) -> str:
    if isinstance(value, str):
        return encode_basestring_ascii(value)
    return json.dumps(_in_order(value), indent=4).replace("\n", "\n" + " " * 4 * depth)


def _in_order(value: Any) -> Any:
    """Return the value with all keys in natural order: Ethernet8 before Ethernet16."""
    if not isinstance(value, Mapping):
        return value
    return {key: _in_order(value[key]) for key in sorted(value, key=natural)}
