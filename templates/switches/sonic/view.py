"""Reads the switch as a whole from the tables of a `config_db.json`: ports, addresses, BGP, marking, hashing, watchdog."""

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache

from msgspec.structs import replace

from headway.templates.reading import BgpView, DeviceView, EcnView, MarkingView, NeighborView, PortView, Traits
from headway.templates.switches.sonic.tables import Alike, Row, Tables, number, referred, row_of

_COLOURS = ("green", "yellow", "red")
# sonic-device_metadata.yang, `type`; BackEnd* and the like have the same endings.
_ROLES = {"ToRRouter": "leaf", "LeafRouter": "spine", "SpineRouter": "core"}
_HASHED = {"SRC_IP": "ip", "DST_IP": "ip", "L4_SRC_PORT": "port", "L4_DST_PORT": "port"}

# Tables whose rows describe one port each, or one queue or group of a port: `Ethernet0`, `Ethernet0|3`.
_BY_PORT = ("PORT_QOS_MAP", "PFC_WD", "BUFFER_PORT_INGRESS_PROFILE_LIST", "BUFFER_PORT_EGRESS_PROFILE_LIST")
_BY_QUEUE = ("QUEUE", "BUFFER_PG", "BUFFER_QUEUE")
_OF_PORT = ("speed", "fec", "mtu", "autoneg", "link_training", "pfc_asym", "tx_power")
_OF_DEVICE = (
    "DSCP_TO_TC_MAP",
    "TC_TO_QUEUE_MAP",
    "TC_TO_PRIORITY_GROUP_MAP",
    "MAP_PFC_PRIORITY_TO_QUEUE",
    "PFC_PRIORITY_TO_PRIORITY_GROUP_MAP",
    "SCHEDULER",
    "WRED_PROFILE",
    "BUFFER_POOL",
    "BUFFER_PROFILE",
    "DEFAULT_LOSSLESS_BUFFER_PARAMETER",
    "LOSSLESS_TRAFFIC_PATTERN",
    "SWITCH_HASH",
    "SWITCH_TRIMMING",
)
# Other rows of these tables are a device's own: its name, addresses, AS number.
_METADATA = ("hwsku", "platform", "buffer_model", "docker_routing_config_mode", "frr_mgmt_framework_config", "zebra_nexthop")


def device_view(tables: Tables, same: Alike) -> DeviceView:
    """Return the switch; fields that the tables do not have are None."""
    device, usual = row_of(tables, "DEVICE_METADATA", "localhost"), _alike_view(same)
    return replace(
        usual,
        name=_text(device.get("hostname")),
        mac=_text(device.get("mac")),
        ports=_ports(tables, usual.ports),
        bgp=_bgp(tables, device),
    )


@lru_cache(128)
def _alike_view(same: Alike) -> DeviceView:
    """Return the switch without its name, BGP, and its ports' addresses and peers."""
    tables = same.tables
    device = row_of(tables, "DEVICE_METADATA", "localhost")
    watched = [row for port, row in tables.get("PFC_WD", {}).items() if port != "GLOBAL"]
    times = [time for row in watched if (time := number(row.get("detection_time"))) is not None]
    cables = cable_metres(tables)
    return DeviceView(
        os="sonic",
        role=next((role for ending, role in _ROLES.items() if str(device.get("type")).endswith(ending)), None),
        ports={name: _port(name, row, cables) for name, row in tables.get("PORT", {}).items()},
        marking=dict(_marking(tables)),
        hashed=_hashed(tables),
        watches=bool(watched) or device.get("default_pfcwd_status") == "enable",
        watchdog_ms=max(times, default=None),
        keys={
            "name": "DEVICE_METADATA|localhost|hostname",
            "mac": "DEVICE_METADATA|localhost|mac",
            "role": "DEVICE_METADATA|localhost|type",
            "hashed": "SWITCH_HASH|GLOBAL|ecmp_hash",
        },
    )


@lru_cache(128)
def traits(same: Alike) -> Traits:
    """Return what a switch and each of its ports in use usually share with others. Ports with equal values share one mapping."""
    tables = same.tables
    device = {
        f"{table}|{key}|{name}": str(value)
        for table in _OF_DEVICE
        for key, row in tables.get(table, {}).items()
        for name, value in row.items()
    }
    metadata = row_of(tables, "DEVICE_METADATA", "localhost")
    device |= {f"DEVICE_METADATA|localhost|{name}": str(metadata[name]) for name in _METADATA if name in metadata}
    device |= {f"PFC_WD|GLOBAL|{name}": str(value) for name, value in row_of(tables, "PFC_WD", "GLOBAL").items()}
    ports: dict[str, dict[str, str]] = {
        port: {f"PORT|*|{name}": str(row[name]) for name in _OF_PORT if name in row}
        for port, row in tables.get("PORT", {}).items()
        if row.get("admin_status") == "up" and row_of(tables, "DEVICE_NEIGHBOR", port)
    }
    for table in _BY_PORT:
        for port, row in tables.get(table, {}).items():
            if port in ports:
                ports[port].update({f"{table}|*|{name}": str(value) for name, value in row.items()})
    for table in _BY_QUEUE:
        for key, row in tables.get(table, {}).items():
            port, _, queue = key.rpartition("|")
            if port in ports:
                ports[port].update({f"{table}|*|{queue}|{name}": str(value) for name, value in row.items()})
    made: dict[tuple[tuple[str, str], ...], dict[str, str]] = {}
    return Traits(device, {port: made.setdefault(tuple(own.items()), own) for port, own in ports.items()})


def cable_metres(tables: Tables) -> Mapping[str, tuple[str, int | None]]:
    """Return port -> the setting of its cable's length, and the metres; None for a text that is not a length."""
    found = {}
    for name, row in tables.get("CABLE_LENGTH", {}).items():
        for port, value in row.items():
            length = re.fullmatch(r"([0-9]{1,9})m", str(value))
            found[port] = (f"CABLE_LENGTH|{name}|{port}", int(length[1]) if length else None)
    return found


def _ports(tables: Tables, usual: Mapping[str, PortView]) -> dict[str, PortView]:
    """Return the ports with their addresses and peers."""
    addresses: dict[str, list[str]] = {}
    origins: dict[str, str] = {}
    for table in ("INTERFACE", "LOOPBACK_INTERFACE"):
        for key in tables.get(table, {}):
            name, _, address = key.partition("|")
            origins[name] = f"{table}|{name}"
            addresses.setdefault(name, []).extend([address] if address else [])
    neighbors, interfaces, rows = tables.get("DEVICE_NEIGHBOR", {}), tables.get("INTERFACE", {}), tables.get("PORT", {})
    found = dict(usual)
    for name in dict.fromkeys((*addresses, *neighbors)):
        view = usual.get(name)
        if view is None and name not in addresses:
            continue
        own, neighbor, interface = addresses.get(name, ()), neighbors.get(name), interfaces.get(name)
        keys = {"port": f"PORT|{name}"} if view is None else {**view.keys}
        view = view or _UNKNOWN_PORT
        if own:
            keys["addresses"] = f"{origins[name]}|{own[0]}"
        peer = None
        if neighbor:
            keys["peer"] = f"DEVICE_NEIGHBOR|{name}|name"
            device = _text(neighbor.get("name"))
            peer = (device, _text(neighbor.get("port")) or "") if device else None
        has_link_local = None
        if interface is not None:
            keys["has_link_local"] = f"INTERFACE|{name}"
        if view.has_link_local is not None:
            has_link_local = interface is not None and interface.get("ipv6_use_link_local_only") == "enable"
        row = rows.get(name)
        # One of a hundred thousand ports: `_replace` takes three times as long.
        found[name] = PortView(
            *view[:4],
            tuple(own),
            peer,
            view.pauses,
            has_link_local,
            view.metres,
            view.gateway,
            _text(row.get("description")) if row else None,
            keys,
        )
    return found


_UNKNOWN_PORT = PortView()


def _port(name: str, row: Row, cables: Mapping[str, tuple[str, int | None]]) -> PortView:
    """Return the port without what the switch shares with no other."""
    keys = {"port": f"PORT|{name}", **{field: f"PORT|{name}|{own}" for field, own in _PORT_KEYS.items() if own in row}}
    metres = None
    if name in cables:
        keys["metres"], metres = cables[name]
    return PortView(
        # sonic-port.yang: a port without `admin_status` is down.
        enabled=row.get("admin_status", "down") == "up" if row else None,
        mtu=number(row.get("mtu")),
        mbps=number(row.get("speed")),
        fec=_text(row.get("fec")),
        has_link_local=False if row else None,
        metres=metres,
        keys=keys,
    )


_PORT_KEYS = {"description": "description", "enabled": "admin_status", "mtu": "mtu", "mbps": "speed", "fec": "fec"}


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def _hashed(tables: Tables) -> frozenset[str] | None:
    fields = row_of(tables, "SWITCH_HASH", "GLOBAL").get("ecmp_hash")
    if isinstance(fields, str):
        fields = fields.split(",")
    return frozenset(_HASHED[field] for field in fields if field in _HASHED) if isinstance(fields, list) else None


def _marking(tables: Tables) -> Iterator[tuple[str, MarkingView]]:
    """Yield the profiles of WRED that a queue uses, by name and colour."""
    used = dict.fromkeys(referred(row.get("wred_profile")) for row in tables.get("QUEUE", {}).values())
    for name in used:
        row = row_of(tables, "WRED_PROFILE", name)
        for colour in _COLOURS:
            key = f"WRED_PROFILE|{name}|{colour}"
            if f"{colour}_min_threshold" in row or f"{colour}_max_threshold" in row:
                ecn = EcnView(
                    number(row.get(f"{colour}_min_threshold")),
                    number(row.get(f"{colour}_max_threshold")),
                    number(row.get(f"{colour}_drop_probability", "100")),
                )
                marks = row.get("ecn", "ecn_none") != "ecn_none" and row.get(f"wred_{colour}_enable") == "true"
                yield f"{name}, {colour}", MarkingView(f"{key}_min_threshold", ecn, marks)


def _bgp(tables: Tables, device: Row) -> BgpView | None:
    """Return BGP from the tables of the daemon that writes FRR's configuration; its numbers only where FRR has a file of its own."""
    keys = {"asn": "DEVICE_METADATA|localhost|bgp_asn"}
    asn = number(device.get("bgp_asn"))
    if str(device.get("docker_routing_config_mode")).startswith("split"):
        return BgpView(keys["asn"], asn=asn, keys=keys) if asn is not None else None
    if device.get("frr_mgmt_framework_config") == "true":
        return _of_frrcfgd(tables)
    rows = tables.get("BGP_NEIGHBOR")
    if asn is None or not rows:
        return None
    neighbors = {
        key: NeighborView(
            f"BGP_NEIGHBOR|{key}",
            remote_as=number(row.get("asn")),
            is_up=row.get("admin_status") not in ("down", "false"),
            hold_s=number(row.get("holdtime")),
        )
        for key, row in rows.items()
        if "|" not in key
    }
    # bgpcfgd's templates relax paths and permit all routes (docker-fpm-frr, bgpd.main.conf.j2).
    return BgpView(
        keys["asn"], asn=asn, router_id=_text(device.get("bgp_router_id")), neighbors=neighbors, relaxes=True, keys=keys
    )


def _of_frrcfgd(tables: Tables) -> BgpView | None:
    bgp = row_of(tables, "BGP_GLOBALS", "default")
    if not bgp:
        return None
    family = row_of(tables, "BGP_GLOBALS_AF", "default|ipv4_unicast")
    neighbors = {}
    for key, own in tables.get("BGP_NEIGHBOR", {}).items():
        if key.startswith("default|"):
            name = key.removeprefix("default|")
            row = {**row_of(tables, "BGP_PEER_GROUP", f"default|{own.get('peer_group_name')}"), **own}
            remote = number(row.get("asn")) or _text(row.get("peer_type"))
            neighbors[name] = NeighborView(
                f"BGP_NEIGHBOR|{key}",
                remote_as=remote,
                is_up=remote is not None and row.get("admin_status") not in ("down", "false"),
                hold_s=number(row.get("holdtime")),
                bfd=row.get("bfd") == "true" or row.get("bfd_profile") is not None,
            )
    return BgpView(
        "BGP_GLOBALS|default",
        asn=number(bgp.get("local_asn")),
        router_id=_text(bgp.get("router_id")),
        neighbors=neighbors,
        max_paths=number(family.get("max_ebgp_paths")),
        relaxes=bgp.get("load_balance_mp_relax") == "true",
        hold_s=number(bgp.get("holdtime")) or 180,
        keys={
            "asn": "BGP_GLOBALS|default|local_asn",
            "router_id": "BGP_GLOBALS|default|router_id",
            "max_paths": "BGP_GLOBALS_AF|default|ipv4_unicast|max_ebgp_paths",
            "relaxes": "BGP_GLOBALS|default",
        },
    )
