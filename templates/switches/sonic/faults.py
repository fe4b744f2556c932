"""Finds what harms a training run in one `config_db.json`, by SONiC's own references between tables, whatever the other files are."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping
from functools import lru_cache
from itertools import pairwise
from typing import Any

from headway.templates.reading import Fault
from headway.templates.switches.sonic.filters import filter_faults
from headway.templates.switches.sonic.hardware import Hardware, HwSku, hardware
from headway.templates.switches.sonic.headroom import headroom_faults
from headway.templates.switches.sonic.tables import Alike, Row, Tables, by_port, number, numbers_of, referred, row_of
from headway.templates.switches.sonic.view import cable_metres

_QUEUES = range(8)
# A profile's name or pool with this in it drops what does not fit.
_LOSSY = "lossy"
# 200GBASE-R per lane (IEEE 802.3dj), the fastest that any module has.
_MOST_GBPS_OF_A_LANE = 200
_SPEEDS_GBPS = frozenset({1, 10, 25, 40, 50, 100, 200, 400, 800, 1600})
_FAST_GBPS = 200
# sonic-buffer-profile.yang
_DYNAMIC_TH = range(-8, 8)
# An egress queue of less than the pool's half is full before the ingress group pauses; SONiC's templates have 7 (qos and buffers_defaults).
_LEAST_EGRESS_TH = 0
_LOW_EGRESS_TH = 3

# Table, field of its rows, and the table that it names a row of.
_REFERENCES = (
    ("PORT_QOS_MAP", "dscp_to_tc_map", "DSCP_TO_TC_MAP"),
    ("PORT_QOS_MAP", "tc_to_queue_map", "TC_TO_QUEUE_MAP"),
    ("PORT_QOS_MAP", "tc_to_pg_map", "TC_TO_PRIORITY_GROUP_MAP"),
    ("PORT_QOS_MAP", "pfc_to_queue_map", "MAP_PFC_PRIORITY_TO_QUEUE"),
    ("PORT_QOS_MAP", "pfc_to_pg_map", "PFC_PRIORITY_TO_PRIORITY_GROUP_MAP"),
    ("PORT_QOS_MAP", "scheduler", "SCHEDULER"),
    ("QUEUE", "scheduler", "SCHEDULER"),
    ("QUEUE", "wred_profile", "WRED_PROFILE"),
    ("BUFFER_PG", "profile", "BUFFER_PROFILE"),
    ("BUFFER_QUEUE", "profile", "BUFFER_PROFILE"),
    ("BUFFER_PROFILE", "pool", "BUFFER_POOL"),
)
# Tables whose keys begin with a port.
_OF_PORTS = ("QUEUE", "BUFFER_PG", "BUFFER_QUEUE", "PORT_QOS_MAP", "PFC_WD", "INTERFACE", "DEVICE_NEIGHBOR")
# Names of other interfaces that these tables may have.
_NO_PORTS = ("global", "GLOBAL", "CPU", "PortChannel", "Vlan", "Loopback", "eth", "Po", "usb", "mgmt")


@lru_cache(128)
def faults(same: Alike) -> tuple[Fault, ...]:
    """Return the faults of the file. They do not depend on the switch's names, addresses and numbers."""
    return tuple(_faults(same.tables))


def _faults(tables: Tables) -> Iterator[Fault]:
    yield from _dangling(tables)
    yield from _hardware(tables)
    yield from _ports(tables)
    lossless = _lossless(tables)
    yield from _chains(tables, lossless)
    yield from _buffers(tables, lossless)
    yield from _cables(tables, lossless)
    yield from _watchdog(tables, lossless)
    yield from _schedulers(tables, lossless)
    yield from headroom_faults(tables, lossless)
    yield from filter_faults(tables)


def _lossless(tables: Tables) -> Mapping[str, tuple[int, ...]]:
    """Return port -> the priorities that PFC is on for."""
    found = {}
    for key, row in tables.get("PORT_QOS_MAP", {}).items():
        enabled = row.get("pfc_enable")
        if isinstance(enabled, str):
            priorities = tuple(value for word in enabled.split(",") if (value := number(word)) is not None and value in _QUEUES)
            found.update(dict.fromkeys(key.split(","), priorities))
    return found


# --- references and hardware ------------------------------------------------------------------------------------------


def _dangling(tables: Tables) -> Iterator[Fault]:
    for table, field, target in _REFERENCES:
        if target not in tables:
            continue
        missing: dict[str, str] = {}
        for key, row in tables.get(table, {}).items():
            name = referred(row.get(field))
            if name and name != "NULL" and name not in tables[target]:
                missing.setdefault(name, f"{table}|{key}|{field}")
        for name, key in missing.items():
            message = f"`{target}` has no row `{name}`; SONiC skips what refers to it, and ports keep the default instead"
            yield Fault("HW845", key, message, f"add `{target}|{name}`, or correct the name")
    ports = tables.get("PORT", {})
    for table in _OF_PORTS if ports else ():
        for key in tables.get(table, {}):
            for port in (key.partition("|")[0] if key.count("|") < 2 else "").split(","):
                if port and port not in ports and not port.startswith(_NO_PORTS):
                    message = f"there is no port `{port}`; SONiC drops the row, and the port that was meant keeps its default"
                    yield Fault("HW845", f"{table}|{key}", message, "correct the name, or add the port to `PORT`")


def _hardware(tables: Tables) -> Iterator[Fault]:
    device = row_of(tables, "DEVICE_METADATA", "localhost")
    name, platform, key = device.get("hwsku"), device.get("platform"), "DEVICE_METADATA|localhost"
    owner = next((each for each in hardware().values() if name in each.hwskus), None)
    by_platform = next((each for each in hardware().values() if each.platform == platform), None)
    if owner is not None and platform is not None and owner.platform != platform:
        message = (
            f"the HwSKU {name} is of the platform {owner.platform}, not of {platform}; SONiC finds no port and buffer files, "
            "and no port comes up"
        )
        yield Fault("HW846", f"{key}|hwsku", message, "set the HwSKU that `show platform summary` prints")
        return
    if by_platform is not None and isinstance(name, str) and owner is None:
        message = f"the platform {platform} has no HwSKU {name} in SONiC that headway knows; without its files no port comes up"
        hint = f"use {' or '.join(by_platform.hwskus)}, or check that the site's image has it"
        yield Fault("HW846", f"{key}|hwsku", message, hint, doubtful=True)
    is_dynamic = device.get("buffer_model") == "dynamic"
    sizeless = [pool for pool, row in tables.get("BUFFER_POOL", {}).items() if "size" not in row]
    if sizeless and not is_dynamic and "buffer_model" in device:
        message = (
            f"the pool {sizeless[0]} has no size, which only the dynamic buffer model computes; without pools every lossless "
            "queue drops"
        )
        yield Fault("HW846", f"{key}|buffer_model", message, "set `buffer_model` to `dynamic`, or give the pools their sizes")
    if owner is not None:
        yield from _model(tables, owner, owner.hwskus[str(name)], device)


def _model(tables: Tables, model: Hardware, hwsku: HwSku, device: Row) -> Iterator[Fault]:
    """Compare with what SONiC's device tree has for this HwSKU."""
    own = "dynamic" if hwsku.is_dynamic else "traditional"
    if device.get("buffer_model", own) != own:
        message = (
            f"the buffer model of {hwsku.name} is {own}; with the other one SONiC computes no headroom, and a paused queue drops"
        )
        yield Fault("HW846", "DEVICE_METADATA|localhost|buffer_model", message, f"set `buffer_model` to `{own}`")
    sizes = {row.get("size") for name, row in tables.get("BUFFER_POOL", {}).items() if name == "egress_lossless_pool"}
    size = number(next(iter(sizes), None))
    if size is not None and hwsku.egress_pool_bytes is not None and size < hwsku.egress_pool_bytes // 2:
        message = (
            f"the egress pool has {size} bytes, and {hwsku.egress_pool_bytes} in SONiC's {hwsku.name}; lossless queues drop "
            "when it is full"
        )
        yield Fault("HW814", "BUFFER_POOL|egress_lossless_pool|size", message, f"set {hwsku.egress_pool_bytes}")
    outside = {port.name for port in model.extra}
    for port, row in tables.get("PORT", {}).items():
        digits = number(port.removeprefix("Ethernet"))
        if port in outside or digits is None or digits // model.cage_lanes >= len(model.cages):
            continue
        cage, lane = divmod(digits, model.cage_lanes)
        first = str(row.get("lanes", "")).split(",")[0].strip()
        if first and first != str(model.cages[cage] + lane):
            message = (
                f"its first lane is {first}, but {model.cages[cage] + lane} on this switch; another cage comes up, and the "
                "cable's link stays down"
            )
            yield Fault("HW824", f"PORT|{port}|lanes", message, f"take the lanes from port_config.ini of {hwsku.name}")
        if number(row.get("index")) not in (None, cage + 1):
            message = (
                f"its index is {row['index']}, but {cage + 1} on this switch; SONiC reads another module, and the link may "
                "stay down"
            )
            yield Fault("HW824", f"PORT|{port}|index", message, f"set {cage + 1}")


# --- ports ------------------------------------------------------------------------------------------------------------


def _ports(tables: Tables) -> Iterator[Fault]:
    owners: dict[str, str] = {}
    aliases: dict[str, str] = {}
    for port, row in tables.get("PORT", {}).items():
        lanes = [lane.strip() for lane in str(row.get("lanes", "")).split(",") if lane.strip()]
        shared = next((lane for lane in lanes if owners.get(lane, port) != port), None)
        if shared is not None:
            message = f"it has lane {shared}, which {owners[shared]} has too; SONiC creates neither, and both links stay down"
            yield Fault("HW824", f"PORT|{port}|lanes", message, "give each port lanes of its own, as in port_config.ini")
        owners.update({lane: port for lane in lanes if lane not in owners})
        alias = row.get("alias")
        if isinstance(alias, str) and aliases.setdefault(alias, port) != port:
            message = f"its alias {alias} is {aliases[alias]}'s too; LLDP and cabling checks take one for the other"
            yield Fault("HW824", f"PORT|{port}|alias", message, "use the alias of port_config.ini")
        yield from _speed(port, row, len(lanes))
        if row.get("pfc_asym") == "on":
            message = (
                "asymmetric PFC is on; the port obeys a pause of any priority, so a faulty adapter stops ordinary traffic too"
            )
            yield Fault("HW812", f"PORT|{port}|pfc_asym", message, "set `pfc_asym` to `off`", doubtful=True)
    yield from _shut(tables)
    yield from _type(tables)
    yield from _breakouts(tables)
    yield from _members(tables)
    yield from _instances(tables)
    yield from _containers(tables)


def _shut(tables: Tables) -> Iterator[Fault]:
    """Find ports in use that SONiC leaves down, since their row does not say `up` as others do."""
    rows = tables.get("PORT", {})
    used = {key.partition("|")[0] for key in tables.get("INTERFACE", {})} & rows.keys()
    if any("admin_status" in rows[port] for port in used):
        for port in sorted(port for port in used if "lanes" not in rows[port]):
            message = f"{port} has no `lanes`; SONiC does not create it, and a rail or a path of the collectives is missing"
            yield Fault("HW824", f"PORT|{port}", message, "take the lanes from port_config.ini of the HwSKU")
        for port in sorted(port for port in used if "admin_status" not in rows[port]):
            message = f"{port} has no `admin_status`, which is `down` then; a rail or a path of the collectives is missing"
            yield Fault("HW823", f"PORT|{port}", message, "set `up`")


def _type(tables: Tables) -> Iterator[Fault]:
    found = row_of(tables, "DEVICE_METADATA", "localhost").get("type")
    if isinstance(found, str) and not found.endswith(
        ("Router", "RouterLeaf", "RouterSpine", "Chassis", "Switch", "Server", "Tor", "Device")
    ):
        message = f"SONiC has no type `{found}` of a switch; it refuses the file, or chooses the buffers of another tier"
        yield Fault(
            "HW846", "DEVICE_METADATA|localhost|type", message, "set `ToRRouter`, `LeafRouter` or `SpineRouter`", doubtful=True
        )


def _members(tables: Tables) -> Iterator[Fault]:
    """Find routed ports that are members of a VLAN or a LAG (sonic-vlan.yang, sonic-portchannel.yang)."""
    routed = {key.partition("|")[0] for key in tables.get("INTERFACE", {})}
    for table in ("VLAN_MEMBER", "PORTCHANNEL_MEMBER"):
        for key in tables.get(table, {}):
            group, _, port = key.partition("|")
            if port in routed:
                message = (
                    f"{port} is a member of {group}, and `INTERFACE` routes it; SONiC makes one of both, and the link carries no "
                    "routed packet"
                )
                yield Fault("HW838", f"{table}|{key}", message, f"remove it from {group}, or from `INTERFACE`")


def _instances(tables: Tables) -> Iterator[Fault]:
    """Find ports in a VRF that the file does not have, or that some only are in (sonic-interface.yang)."""
    instances = {
        port: str(row["vrf_name"]) for port, row in tables.get("INTERFACE", {}).items() if row.get("vrf_name") not in (None, "")
    }
    routed = {key for key in tables.get("INTERFACE", {}) if "|" not in key}
    for port, name in instances.items():
        key = f"INTERFACE|{port}|vrf_name"
        if name and name not in tables.get("VRF", {}) and name not in ("default", "mgmt"):
            message = f"there is no VRF {name}; SONiC does not route on {port}, and its host reaches no other"
            yield Fault("HW845", key, message, f"add `VRF|{name}`, or remove `vrf_name`")
        elif len(instances) < len(routed):
            message = f"{port} is in the VRF {name}, and other ports are not; their hosts do not reach each other"
            yield Fault("HW838", key, message, "put all ports of the fabric into one VRF", doubtful=True)
            return


def _containers(tables: Tables) -> Iterator[Fault]:
    device = row_of(tables, "DEVICE_METADATA", "localhost")
    if device.get("default_bgp_status") == "down":
        message = "BGP's sessions are shut unless a row of each says otherwise; one that is added carries nothing"
        yield Fault("HW833", "DEVICE_METADATA|localhost|default_bgp_status", message, "set `up`", doubtful=True)
    if device.get("docker_routing_config_mode") == "split-unified" and device.get("frr_mgmt_framework_config") == "true":
        row = next((row for row in tables.get("STATIC_ROUTE", {}) if not row.startswith("mgmt")), None)
        if row is not None:
            message = f"FRR reads frr.conf alone in this mode, and the route {row} has no effect; what it leads to is not reached"
            yield Fault("HW846", f"STATIC_ROUTE|{row}", message, "remove the row, or write it into frr.conf", doubtful=True)
    for name, effect in (
        ("bgp", "the switch exchanges no route"),
        ("swss", "no port comes up"),
        ("syncd", "no port comes up"),
        ("pmon", "no module is brought up"),
    ):
        if row_of(tables, "FEATURE", name).get("state") == "disabled":
            yield Fault(
                "HW833", f"FEATURE|{name}|state", f"the container {name} is disabled; {effect}", "enable it", name == "bgp"
            )


def _speed(port: str, row: Row, lanes: int) -> Iterator[Fault]:
    mbps = number(row.get("speed"))
    if mbps is None:
        return
    if mbps % 1000 or mbps // 1000 not in _SPEEDS_GBPS:
        message = f"no Ethernet has {mbps} Mb/s; SONiC refuses it, and the link stays down"
        yield Fault("HW821", f"PORT|{port}|speed", message, "set the speed of the cable's module, in Mb/s: 400000")
    elif lanes and mbps // 1000 / lanes > _MOST_GBPS_OF_A_LANE:
        message = f"{mbps // 1000} Gb/s do not fit {lanes} lanes; the link stays down"
        yield Fault("HW824", f"PORT|{port}|lanes", message, "give the port more lanes, or a lower speed")
    elif lanes in {3, 5, 6, 7}:
        message = f"it has {lanes} lanes, and no Ethernet uses as many; the link stays down"
        yield Fault("HW824", f"PORT|{port}|lanes", message, "use 1, 2, 4 or 8 lanes")


def _breakouts(tables: Tables) -> Iterator[Fault]:
    """Compare each breakout mode with the ports that there are."""
    cages = sorted((value, name) for name in tables.get("BREAKOUT_CFG", {}) if (value := _place(name)) is not None)
    rows = tables.get("PORT", {})
    starts = sorted(
        ((value, name, row) for name, row in rows.items() if (value := _place(name)) is not None), key=lambda each: each[0]
    )
    places = [value for value, _, _ in starts]
    firsts = [value for value, _ in cages]
    owners = {cages[bisect_right(firsts, value) - 1][0] for value in places if firsts and value >= firsts[0]}
    if len(cages) > 1 and len(owners) == len(cages):
        spacing = min(after - before for before, after in pairwise(firsts))
        for value, name, row in starts:
            start = cages[max(0, bisect_right(firsts, value) - 1)][0]
            if row.get("admin_status") == "up" and not start <= value < start + spacing:
                message = (
                    f"`BREAKOUT_CFG` has the cages of other ports, and none of {name}; SONiC does not know its lanes when it changes a "
                    "mode"
                )
                yield Fault("HW824", f"PORT|{name}", message, "add the cage with its mode", doubtful=True)
    for index, (first, cage) in enumerate(cages):
        end = cages[index + 1][0] if index + 1 < len(cages) else first + 8
        inside = [(name, row) for _, name, row in starts[bisect_left(places, first) : bisect_left(places, end)]]
        mode = str(tables["BREAKOUT_CFG"][cage].get("brkout_mode", ""))
        count, _, speeds = mode.partition("x")
        gbps = {number(word) for word in speeds.replace("[", ",").replace("]", "").replace("G", "").split(",")}
        key = f"BREAKOUT_CFG|{cage}|brkout_mode"
        if not count.isdecimal() or not inside or "+" in mode:
            continue
        if int(count) != len(inside):
            message = (
                f"{mode} makes {count} ports of the cage, and `PORT` has {len(inside)}; the others have no lanes, and stay down"
            )
            yield Fault("HW824", key, message, "set the mode of the ports that there are")
        yield from _subports(inside)
        widths = {len(str(row.get("lanes", "")).split(",")) for _, row in inside if row.get("lanes")}
        # A mode such as `1x400G(4)` states its own lanes, and a management port has fewer lanes than the others.
        if (
            "(" not in mode
            and max((each for each in gbps if each), default=0) >= _FAST_GBPS
            and len(widths) == 1
            and index + 1 < len(cages)
            and widths != {(end - first) // int(count)}
        ):
            wanted, (width,) = (end - first) // int(count), widths
            message = (
                f"{mode} gives each port of the cage {wanted} lanes, and {inside[0][0]} has {width}; lanes stay dark, and the other end "
                "does not come up"
            )
            yield Fault("HW824", f"PORT|{inside[0][0]}|lanes", message, "take the lanes from port_config.ini of the HwSKU")
        for name, row in inside:
            mbps = number(row.get("speed"))
            if mbps is not None and mbps % 1000 == 0 and mbps // 1000 not in gbps:
                message = f"{mode} has no {mbps // 1000} Gb/s, which {name} is to have; its link stays down"
                yield Fault("HW824", key, message, "set a mode with this speed")


def _subports(inside: list[tuple[str, Row]]) -> Iterator[Fault]:
    """Compare the parts of a cage with their order: `subport` is 0 of a whole cage, and counts from 1 otherwise (sonic-port.yang)."""
    for place, (name, row) in enumerate(inside, 1):
        allowed = {0, 1} if len(inside) == 1 else {place}
        found = number(row.get("subport"))
        if found is not None and found not in allowed:
            message = (
                f"it is part {found} of its module, and should be {max(allowed) if len(inside) > 1 else 0}; SONiC brings up other lanes of "
                "the module, and the link stays down"
            )
            yield Fault("HW824", f"PORT|{name}|subport", message, f"set {max(allowed) if len(inside) > 1 else 0}")


def _place(name: str) -> int | None:
    return number(name.removeprefix("Ethernet")) if name.startswith("Ethernet") else None


# --- the chain from DSCP to buffers -----------------------------------------------------------------------------------


def _chains(tables: Tables, lossless: Mapping[str, tuple[int, ...]]) -> Iterator[Fault]:
    """Follow each PFC priority to its queue and group, and compare both with where the packets go. Ports with equal rows count once."""
    seen: set[tuple[Any, ...]] = set()
    for port, priorities in lossless.items():
        maps = {**row_of(tables, "PORT_QOS_MAP", "global"), **_row_of_port(tables, port)}
        identity = (priorities, *(referred(maps.get(name)) for name in _MAPS))
        if port == "global" or identity in seen:
            continue
        seen.add(identity)
        yield from _chain(tables, _key_of_port(tables, port), maps, priorities)


_MAPS = ("dscp_to_tc_map", "tc_to_queue_map", "tc_to_pg_map", "pfc_to_queue_map", "pfc_to_pg_map")


def _row_of_port(tables: Tables, port: str) -> Row:
    return row_of(tables, "PORT_QOS_MAP", _key_of_port(tables, port))


def _key_of_port(tables: Tables, port: str) -> str:
    rows = tables.get("PORT_QOS_MAP", {})
    return port if port in rows else next((key for key in rows if port in key.split(",")), port)


def _chain(tables: Tables, key: str, maps: Row, priorities: tuple[int, ...]) -> Iterator[Fault]:
    place = f"PORT_QOS_MAP|{key}"
    classes = numbers_of(tables, "DSCP_TO_TC_MAP", maps.get("dscp_to_tc_map"))
    queues, groups = (
        numbers_of(tables, table, maps.get(name))
        for table, name in (("TC_TO_QUEUE_MAP", "tc_to_queue_map"), ("TC_TO_PRIORITY_GROUP_MAP", "tc_to_pg_map"))
    )
    paused = numbers_of(tables, "MAP_PFC_PRIORITY_TO_QUEUE", maps.get("pfc_to_queue_map"))
    pausing = numbers_of(tables, "PFC_PRIORITY_TO_PRIORITY_GROUP_MAP", maps.get("pfc_to_pg_map"))
    if priorities and "dscp_to_tc_map" not in maps and "dot1p_to_tc_map" not in maps:
        message = "the port has no map from DSCP; it puts every packet into class 0, and none into the queue that PFC pauses"
        yield Fault("HW816", place, message, "set `dscp_to_tc_map`, as on the other ports")
    for priority in priorities:
        queue, group = paused.get(priority), pausing.get(priority, priority)
        if queue is None:
            message = (
                f"PFC is on for priority {priority}, and no queue is mapped to it; a pause frame stops nothing, and packets "
                "are dropped"
            )
            yield Fault("HW806", f"{place}|pfc_enable", message, "add the priority to `MAP_PFC_PRIORITY_TO_QUEUE`")
            continue
        if pausing and priority not in pausing:
            message = (
                f"PFC is on for priority {priority}, and no priority group is mapped to it; no pause is sent for its packets"
            )
            yield Fault("HW806", f"{place}|pfc_enable", message, "add the priority to `PFC_PRIORITY_TO_PRIORITY_GROUP_MAP`")
        for dscp, traffic_class in classes.items():
            in_queue, in_group = queues.get(traffic_class) == queue, groups.get(traffic_class, traffic_class) == group
            if in_queue != in_group:
                held = f"queue {queue}" if in_queue else f"priority group {group}"
                other = f"priority group {groups.get(traffic_class)}" if in_queue else f"queue {queues.get(traffic_class)}"
                message = (
                    f"DSCP {dscp} is in {held} of PFC priority {priority} but in {other}; "
                    "the pause reaches other packets than those that fill the buffer, and these are dropped"
                )
                yield Fault("HW806", f"DSCP_TO_TC_MAP|{referred(maps.get('dscp_to_tc_map'))}|{dscp}", message, _SAME)
                break
        if classes and not any(queues.get(each) == queue for each in classes.values()):
            message = (
                f"PFC is on for priority {priority}, and no DSCP leads to its queue {queue}; the packets that it should "
                "protect are dropped elsewhere"
            )
            yield Fault("HW812", f"{place}|pfc_enable", message, "enable PFC for the priority of the RDMA traffic", doubtful=True)
        # CS6 is BGP's (RFC 4594) and the notifications' (mlx5's default).
        if queues.get(classes.get(48, -1)) == queue and queues.get(classes.get(0, -1)) != queue:
            message = (
                f"PFC pauses queue {queue}, which has DSCP 48 in it: BGP and congestion notifications; a pause then ends sessions"
            )
            yield Fault("HW812", f"{place}|pfc_enable", message, "leave this priority out of `pfc_enable`")
        if queues.get(classes.get(0, -1)) == queue:
            message = (
                f"PFC pauses queue {queue}, which has all unmarked traffic in it; storage and TCP stop collectives, and the "
                "other way round"
            )
            yield Fault("HW812", f"{place}|pfc_enable", message, "give RDMA a class of its own", doubtful=True)


_SAME = "map its class to the queue and the group of one priority"


def _buffers(tables: Tables, lossless: Mapping[str, tuple[int, ...]]) -> Iterator[Fault]:
    groups, queues = by_port(tables, "BUFFER_PG"), by_port(tables, "BUFFER_QUEUE")
    is_dynamic = row_of(tables, "DEVICE_METADATA", "localhost").get("buffer_model") == "dynamic"
    seen: set[tuple[Any, ...]] = set()
    for port, priorities in lossless.items():
        maps = {**row_of(tables, "PORT_QOS_MAP", "global"), **_row_of_port(tables, port)}
        paused = numbers_of(tables, "MAP_PFC_PRIORITY_TO_QUEUE", maps.get("pfc_to_queue_map"))
        pausing = numbers_of(tables, "PFC_PRIORITY_TO_PRIORITY_GROUP_MAP", maps.get("pfc_to_pg_map"))
        for priority in priorities:
            group, queue = pausing.get(priority, priority), paused.get(priority, priority)
            own, way_out = groups.get(port, {}).get(group, {}), queues.get(port, {}).get(queue, {})
            for fault in (
                *_of_group(tables, port, group, own, bool(groups) and is_dynamic),
                *_of_queue(tables, port, queue, way_out, bool(queues)),
            ):
                if (fault.code, fault.message) not in seen:
                    seen.add((fault.code, fault.message))
                    yield fault
        given = {pausing.get(priority, priority) for priority in priorities}
        extra = sorted(group for group, row in groups.get(port, {}).items() if group not in given and _holds(tables, row))
        if extra and groups and ("extra", tuple(extra)) not in seen:
            seen.add(("extra", tuple(extra)))
            message = (
                f"group {extra[0]} has headroom on {port}, and PFC is off for its priority; this memory is missing to the "
                "lossless traffic"
            )
            yield Fault("HW814", f"BUFFER_PG|{port}", message, "remove the group's row, or enable PFC for it", doubtful=True)
    for name, row in tables.get("BUFFER_PROFILE", {}).items():
        threshold = str(row.get("dynamic_th", "0"))
        if not threshold.lstrip("-").isdecimal() or int(threshold) not in _DYNAMIC_TH:
            message = (
                f"the dynamic threshold is {threshold}, and SONiC accepts -8 to 7; the profile is not made, and its queues drop"
            )
            yield Fault("HW813", f"BUFFER_PROFILE|{name}|dynamic_th", message, "set 7 for lossless traffic")


def _of_group(tables: Tables, port: str, group: int, row: Row, must_have: bool) -> Iterator[Fault]:
    profile = referred(row.get("profile"))
    if row and profile and not _holds(tables, row):
        message = (
            f"group {group} is lossless by PFC, and its buffer profile {profile} has no headroom; what arrives after the "
            "pause is dropped"
        )
        yield Fault("HW807", f"BUFFER_PG|{port}|{group}", message, "give it `NULL` (computed) or a profile with `xoff`")
    elif must_have and not row:
        message = (
            f"PFC is on for group {group}, and `BUFFER_PG` has no row for it; it has no headroom, and drops what arrives "
            "after the pause"
        )
        yield Fault(
            "HW808", f"PORT_QOS_MAP|{port}|pfc_enable", message, f"add `BUFFER_PG|{port}|{group}` with the profile `NULL`"
        )


def _of_queue(tables: Tables, port: str, queue: int, row: Row, must_have: bool) -> Iterator[Fault]:
    name = referred(row.get("profile"))
    profile = row_of(tables, "BUFFER_PROFILE", name)
    if name and (_is_lossy(name) or _is_lossy(referred(profile.get("pool")))):
        message = (
            f"queue {queue} is lossless by PFC, and its buffer profile {name} is for lossy traffic; it drops RDMA packets "
            "when it is full"
        )
        yield Fault("HW807", f"BUFFER_QUEUE|{port}|{queue}", message, "give it the egress profile of lossless traffic")
        return
    if must_have and not row:
        message = (
            f"queue {queue} is lossless by PFC, and `BUFFER_QUEUE` has no row for it; it has the default, which drops when it "
            "is full"
        )
        yield Fault("HW807", f"PORT_QOS_MAP|{port}|pfc_enable", message, "give it the egress profile of lossless traffic")
    threshold = str(profile.get("dynamic_th", "7"))
    if threshold.lstrip("-").isdecimal() and int(threshold) in _DYNAMIC_TH and int(threshold) < _LOW_EGRESS_TH:
        message = (
            f"lossless queues have the dynamic threshold {threshold}; they drop at the way out before the group at the way in "
            "pauses"
        )
        doubtful = int(threshold) >= _LEAST_EGRESS_TH
        yield Fault("HW813", f"BUFFER_PROFILE|{name}|dynamic_th", message, "set 7, as SONiC's own templates do", doubtful)


def _is_lossy(name: str) -> bool:
    return _LOSSY in name and "lossless" not in name


def _holds(tables: Tables, row: Row) -> bool:
    """Return whether the group's row asks for headroom."""
    name = referred(row.get("profile"))
    profile = row_of(tables, "BUFFER_PROFILE", name)
    return name == "NULL" or name.startswith("pg_lossless") or "xoff" in profile or profile.get("headroom_type") == "dynamic"


def _computes_headroom(tables: Tables) -> bool:
    is_dynamic = row_of(tables, "DEVICE_METADATA", "localhost").get("buffer_model") == "dynamic"
    return is_dynamic and any(row.get("profile") == "NULL" for row in tables.get("BUFFER_PG", {}).values())


def _cables(tables: Tables, lossless: Mapping[str, tuple[int, ...]]) -> Iterator[Fault]:
    cables = cable_metres(tables)
    if not cables and any(lossless.values()) and _computes_headroom(tables):
        message = (
            "`CABLE_LENGTH` has no cable, and groups have the profile `NULL`; SONiC computes no headroom, and what arrives after "
            "a pause is dropped"
        )
        yield Fault("HW808", "BUFFER_PG", message, "add the lengths of the cables to `CABLE_LENGTH`")
    for port, priorities in lossless.items():
        if not priorities or port == "global" or not cables:
            continue
        key, metres = cables.get(port, ("CABLE_LENGTH", -1))
        if metres == -1:
            message = (
                f"PFC is on for {port}, and `CABLE_LENGTH` has no length of its cable; SONiC computes no headroom, and what "
                "arrives after the pause is dropped"
            )
            yield Fault("HW808", f"PORT_QOS_MAP|{port}|pfc_enable", message, "add the length of its cable to `CABLE_LENGTH`")
        elif not metres:
            message = (
                f"the cable of {port} has the length `{'0m' if metres == 0 else 'of no number'}`; SONiC gives the port no "
                "lossless headroom, and what arrives after the pause is dropped"
            )
            yield Fault("HW808", key, message, "set the length in metres: `5m`")


def _watchdog(tables: Tables, lossless: Mapping[str, tuple[int, ...]]) -> Iterator[Fault]:
    rows = tables.get("PFC_WD", {})
    if not any(port != "GLOBAL" for port in rows):
        return
    poll = number(row_of(tables, "PFC_WD", "GLOBAL").get("POLL_INTERVAL"))
    for port, row in rows.items():
        if port == "GLOBAL":
            continue
        for field in ("detection_time", "restoration_time"):
            value = number(row.get(field))
            if value is not None and poll is not None and value < poll:
                message = (
                    f"the watchdog's {field} is {value} ms, shorter than its poll interval of {poll} ms; SONiC refuses it, "
                    "and a pause storm stops the fabric"
                )
                yield Fault("HW811", f"PFC_WD|{port}|{field}", message, f"set {poll} or more")
        if row.get("action") in ("forward", "alert"):
            message = (
                f"the watchdog's action is {row['action']}; the queue of a port that is paused for ever is not emptied, and "
                "the pause spreads"
            )
            yield Fault("HW811", f"PFC_WD|{port}|action", message, "set `drop`", doubtful=True)
    for port, priorities in lossless.items():
        if not priorities or port == "global":
            continue
        own = _row_of_port(tables, port)
        watched = own.get("pfcwd_sw_enable")
        if port not in rows:
            message = (
                f"PFC is on for {port}, and the watchdog of the other ports is not on there; a pause storm from this port "
                "stops the fabric"
            )
            yield Fault("HW811", f"PORT_QOS_MAP|{port}|pfc_enable", message, f"add `PFC_WD|{port}`")
        elif isinstance(watched, str) and not set(map(str, priorities)) <= {word.strip() for word in watched.split(",")}:
            message = (
                f"the watchdog watches priorities {watched or 'none'} of {port}, and PFC is on for "
                f"{','.join(map(str, priorities))}; a pause storm of the others stops the fabric"
            )
            yield Fault("HW811", f"PORT_QOS_MAP|{port}|pfcwd_sw_enable", message, "set the priorities of `pfc_enable`")


def _schedulers(tables: Tables, lossless: Mapping[str, tuple[int, ...]]) -> Iterator[Fault]:
    """Find limits and tiny shares of lossless queues."""
    seen = set()
    for port, rows in by_port(tables, "QUEUE").items():
        schedulers = {queue: row_of(tables, "SCHEDULER", referred(row.get("scheduler"))) for queue, row in rows.items()}
        weights = {
            queue: number(row.get("weight")) or 1 for queue, row in schedulers.items() if row and row.get("type") != "STRICT"
        }
        for priority in lossless.get(port, ()):
            name = referred(rows.get(priority, {}).get("scheduler"))
            if name in seen or priority not in schedulers:
                continue
            seen.add(name)
            row = schedulers[priority]
            if number(row.get("pir")):
                message = (
                    f"the scheduler {name} limits the lossless queue to {row['pir']} bytes a second; all traffic behind it is "
                    "paused"
                )
                yield Fault("HW815", f"SCHEDULER|{name}|pir", message, "remove `pir`", doubtful=True)
            share = 100 * weights.get(priority, 0) // max(1, sum(weights.values()))
            if priority in weights and len(weights) > 1 and share < _LEAST_SHARE:
                message = (
                    f"the lossless queue gets {share} % of a full link; other traffic makes it pause the senders of all "
                    "collectives"
                )
                yield Fault("HW815", f"SCHEDULER|{name}|weight", message, "give it the larger share", doubtful=True)
            if row.get("type") == "STRICT":
                message = (
                    "the lossless queue is strict; while collectives run, the queues of the rest, TCP and storage, get nothing"
                )
                yield Fault("HW815", f"SCHEDULER|{name}|type", message, "use `DWRR` with a weight", doubtful=True)


# SONiC's own weights, 14 and 15, give each of seven queues a seventh.
_LEAST_SHARE = 10
