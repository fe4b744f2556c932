"""Reads what a `config_db.json` configures, including one written by hand, by following SONiC's references from port to number.

Unresolvable parts are absent from the views, never an error: missing maps, texts that are not numbers.
"""

import json
import re
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from functools import lru_cache, partial
from typing import Any

from headway.templates.reading import EcnView, LazySettings, QosView, Reading, RoutingView, Setting
from headway.templates.switches.sonic.faults import faults
from headway.templates.switches.sonic.tables import (
    Alike,
    Row,
    SharedTable,
    Tables,
    alike,
    by_port,
    number,
    numbers_of,
    referred,
    row_of,
    table_of,
)
from headway.templates.switches.sonic.view import device_view, traits

_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\],:]|[^\s{}\[\],:"]+')
_PRIORITIES = range(8)

# The tables that are read below; every SONiC file has at least one of them.
_TABLES = {
    "DEVICE_METADATA",
    "PORT",
    "PORT_QOS_MAP",
    "DSCP_TO_TC_MAP",
    "TC_TO_QUEUE_MAP",
    "TC_TO_PRIORITY_GROUP_MAP",
    "MAP_PFC_PRIORITY_TO_QUEUE",
    "QUEUE",
    "SCHEDULER",
    "WRED_PROFILE",
    "BUFFER_PG",
    "LOOPBACK_INTERFACE",
    "BGP_GLOBALS",
    "BGP_NEIGHBOR",
}

# Facts that a port must state if it is up, or has rows of its own.
_FACTS = frozenset(
    {
        "queue of DSCP",
        "priority group of DSCP",
        "PFC of priority",
        "queue that PFC pauses for priority",
        "marking of queue",
        "bandwidth of queue",
    }
)

# Packets that no policer has coloured are green.
_MARKS_GREEN = ("ecn_all", "ecn_green", "ecn_green_yellow", "ecn_green_red")

# Both spellings are frrcfgd's.
_UP, _DOWN = ("up", "true"), ("down", "false")


def read(text: str) -> Reading:
    """Return every field as a setting, a view for each port, and BGP of the default VRF; ValueError if the text is not
    a config_db.json."""
    try:
        return _read(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"line {error.lineno}: {error.msg}") from error
    except RecursionError as error:
        raise ValueError("line 1: nested too deep for a config_db.json") from error


def _read(text: str) -> Reading:
    tables = _tables(text)
    if not _TABLES & tables.keys():
        raise ValueError("line 1: no `PORT`, `QUEUE` or other table of SONiC in it, so this is not a config_db.json")
    same = alike(tables)
    return Reading(
        LazySettings(partial(_settings, text)),
        _views(same),
        _routing(tables),
        device_view(tables, same),
        partial(faults, same),
        partial(traits, same),
    )


@lru_cache(128)
def _views(same: Alike) -> Mapping[str, QosView]:
    tables = same.tables
    queues, groups = by_port(tables, "QUEUE"), by_port(tables, "BUFFER_PG")
    maps = _maps(tables)
    # Most ports of a switch have equal rows, and there are thousands of them.
    made: dict[str, QosView] = {}
    views = {}
    for port in dict.fromkeys((*tables.get("PORT", {}), *maps, *queues)):
        if port in {"global", "CPU"}:
            continue
        own = (maps.get(port, {}), queues.get(port, {}), groups.get(port, {}), row_of(tables, "PORT", port).get("admin_status"))
        rows = repr(own)
        if rows not in made:
            made[rows] = _view(tables, port, *own[:3])
        views[port] = made[rows]
    return views


def _parsed(text: str) -> Any:
    """SONiC's numbers are texts; one that is not stays as written, however long."""
    return json.loads(text, parse_int=str, parse_float=str)


def _tables(text: str) -> dict[str, SharedTable]:
    """Return the parts of the document that have the shape of a table.

    SONiC writes a table in lines of its own, and most switches of a fabric have the same ones. If every piece between them is a member of
    an object, so is the whole, and each needs to be parsed once only.
    """
    whole = text.strip()
    if whole.startswith("{\n") and whole.endswith("\n    }\n}"):
        pieces = [_members(f"{piece}\n    }}") for piece in whole[2:-8].split("\n    },\n")]
        if all(piece is not None for piece in pieces):
            return {name: table for piece in pieces if piece is not None for name, table in piece}
    return dict(_of_document(_parsed(text)))


@lru_cache(1024)
def _members(text: str) -> tuple[tuple[str, SharedTable], ...] | None:
    """Return the tables among an object's members; None for another text."""
    try:
        return tuple(_of_document(_parsed(f"{{{text}}}")))
    except (json.JSONDecodeError, RecursionError):
        return None


def _of_document(document: Any) -> Iterator[tuple[str, SharedTable]]:
    for name, rows in document.items() if isinstance(document, dict) else ():
        if isinstance(rows, dict):
            yield name, table_of({key: row for key, row in rows.items() if isinstance(row, dict)})


# --- settings and their lines -----------------------------------------------------------------------------------------


def _settings(text: str) -> dict[str, Setting]:
    """Return path in the tables -> value. A list is one value, its items separated by commas; an object without fields
    is the value ``."""
    ends = [match.start() for match in re.finditer("\n", text)]
    lines = {path: bisect_left(ends, position) + 1 for path, position in _places(text)}
    return {"|".join(path): Setting(value, lines[path]) for path, value in _leaves(_parsed(text), ())}


def _leaves(value: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], str]]:
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from _leaves(inner, (*path, key))
    elif path:
        yield path, _as_text(value)


def _as_text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return ",".join(map(_as_text, value))
    return "" if value == {} else json.dumps(value)


def _places(text: str) -> Iterator[tuple[tuple[str, ...], int]]:
    """Yield every key's path and line in the text, which is known to be JSON; items of a list have no path."""
    path: list[str] = []
    inside: list[str] = []
    previous: re.Match[str] | None = None
    for token in _TOKEN.finditer(text):
        if token[0] in "{[":
            inside.append(token[0])
        elif token[0] in "]}":
            inside.pop()
        elif token[0] == ":" and previous is not None and "[" not in inside:
            path[len(inside) - 1 :] = [json.loads(previous[0])]
            yield tuple(path), previous.start()
        previous = token


# --- what happens to packets ------------------------------------------------------------------------------------------


def _maps(tables: Tables) -> dict[str, Row]:
    """Return port -> its row of maps. Old releases wrote several ports separated by commas, as for QUEUE; those of
    fewer ports come last."""
    found: dict[str, Row] = {}
    for key, row in sorted(tables.get("PORT_QOS_MAP", {}).items(), key=lambda each: -each[0].count(",")):
        for port in key.split(","):
            found[port] = {**found.get(port, {}), **row}
    return found


def _view(tables: Tables, port: str, own: Row, rows: Mapping[int, Row], buffers: Mapping[int, Row]) -> QosView:
    """Return the port's view, given its rows of PORT_QOS_MAP, QUEUE and BUFFER_PG."""
    maps = {**row_of(tables, "PORT_QOS_MAP", "global"), **own}
    classes = numbers_of(tables, "DSCP_TO_TC_MAP", maps.get("dscp_to_tc_map"))
    queues = _through(classes, numbers_of(tables, "TC_TO_QUEUE_MAP", maps.get("tc_to_queue_map")))
    groups = _through(classes, numbers_of(tables, "TC_TO_PRIORITY_GROUP_MAP", maps.get("tc_to_pg_map")))
    paused = numbers_of(tables, "MAP_PFC_PRIORITY_TO_QUEUE", maps.get("pfc_to_queue_map"))
    pfc = _pfc(tables, maps, buffers)
    return QosView(
        priorities={dscp: found for dscp, queue in queues.items() if (found := _pausing(queue, paused, pfc)) is not None},
        queues=queues,
        groups=groups,
        pfc=pfc,
        paused_queues=paused,
        ecn={queue: _marking(tables, rows.get(queue, {})) for queue in sorted({*queues.values(), *rows})},
        weights=_weights(tables, rows),
        says=_FACTS if own or rows or row_of(tables, "PORT", port).get("admin_status") == "up" else frozenset(),
    )


def _through(first: Mapping[int, int], second: Mapping[int, int]) -> dict[int, int]:
    return {key: second[value] for key, value in first.items() if value in second}


def _pausing(queue: int, paused: Mapping[int, int], pfc: Mapping[int, bool]) -> int | None:
    """Return the priority that pauses the queue; of several, one that PFC is on for."""
    found = [priority for priority, its_queue in sorted(paused.items()) if its_queue == queue]
    return next((priority for priority in found if pfc.get(priority)), found[0] if found else None)


def _pfc(tables: Tables, maps: Row, buffers: Mapping[int, Row]) -> dict[int, bool]:
    """Return the priorities that PFC is on for and whose group has room for what still arrives after the pause."""
    enabled = maps.get("pfc_enable")
    if not isinstance(enabled, str):
        return {}
    on = {number(word) for word in enabled.split(",")}
    groups = numbers_of(tables, "PFC_PRIORITY_TO_PRIORITY_GROUP_MAP", maps.get("pfc_to_pg_map"))
    return {
        priority: priority in on and _has_headroom(tables, buffers.get(groups.get(priority, priority), {}))
        for priority in _PRIORITIES
    }


def _has_headroom(tables: Tables, buffer: Row) -> bool:
    """Return whether the group has headroom. In the traditional model buffermgrd gives it to what `pfc_enable` names;
    in the dynamic one the group's row must request it."""
    if row_of(tables, "DEVICE_METADATA", "localhost").get("buffer_model") != "dynamic" or buffer.get("profile") == "NULL":
        return True
    profile = row_of(tables, "BUFFER_PROFILE", referred(buffer.get("profile")))
    return "xoff" in profile or profile.get("headroom_type") == "dynamic"


def _marking(tables: Tables, queue: Row) -> EcnView | None:
    profile = row_of(tables, "WRED_PROFILE", referred(queue.get("wred_profile")))
    if profile.get("ecn") not in _MARKS_GREEN or profile.get("wred_green_enable") != "true":
        return None
    return EcnView(
        number(profile.get("green_min_threshold")),
        number(profile.get("green_max_threshold")),
        number(profile.get("green_drop_probability", "100")),
    )


def _weights(tables: Tables, rows: Mapping[int, Row]) -> dict[int, int | None]:
    """Return the percentage of what strict queues leave, over all queues with a scheduler."""
    schedulers = {queue: row_of(tables, "SCHEDULER", referred(row.get("scheduler"))) for queue, row in rows.items()}
    shares = {queue: _weight(scheduler) for queue, scheduler in schedulers.items() if scheduler}
    total = sum(share or 0 for share in shares.values())
    return {queue: None if share is None else round(100 * share / total) for queue, share in shares.items()}


def _weight(scheduler: Row) -> int | None:
    """Return the weight. None is strict priority. The models' own default is weight 1."""
    return None if scheduler.get("type") == "STRICT" else number(scheduler.get("weight")) or 1


# --- BGP --------------------------------------------------------------------------------------------------------------


def _routing(tables: Tables) -> RoutingView:
    """Return BGP from the tables of the daemon that writes FRR's configuration; it ignores those of the other one."""
    device = row_of(tables, "DEVICE_METADATA", "localhost")
    if str(device.get("docker_routing_config_mode")).startswith("split"):
        # Neighbors are in an frr.conf, whatever tables there are.
        return RoutingView(asn=number(device.get("bgp_asn")), router_id=_router_id(tables, device))
    return _of_frrcfgd(tables) if device.get("frr_mgmt_framework_config") == "true" else _of_bgpcfgd(tables, device)


def _of_frrcfgd(tables: Tables) -> RoutingView:
    bgp = row_of(tables, "BGP_GLOBALS", "default")
    names = (key.removeprefix("default|") for key in tables.get("BGP_NEIGHBOR", {}) if key.startswith("default|"))
    return RoutingView(
        asn=number(bgp.get("local_asn")),
        router_id=_address(bgp.get("router_id")),
        neighbors=frozenset(name for name in names if _exchanges_routes(tables, name)) if bgp else None,
        max_paths=number(row_of(tables, "BGP_GLOBALS_AF", "default|ipv4_unicast").get("max_ebgp_paths")),
    )


def _exchanges_routes(tables: Tables, name: str) -> bool:
    """Return whether the neighbor has an AS, is not shut down, and is active for IPv4, by its own rows or its group's."""
    own = row_of(tables, "BGP_NEIGHBOR", f"default|{name}")
    group = own.get("peer_group_name")
    peer = {**row_of(tables, "BGP_PEER_GROUP", f"default|{group}"), **own}
    family = {
        "admin_status": "up" if row_of(tables, "BGP_GLOBALS", "default").get("default_ipv4_unicast") == "true" else "down",
        **row_of(tables, "BGP_PEER_GROUP_AF", f"default|{group}|ipv4_unicast"),
        **row_of(tables, "BGP_NEIGHBOR_AF", f"default|{name}|ipv4_unicast"),
    }
    has_as = "asn" in peer or "peer_type" in peer
    return has_as and peer.get("admin_status") not in _DOWN and family["admin_status"] in _UP


def _of_bgpcfgd(tables: Tables, device: Row) -> RoutingView:
    """Return neighbors without a VRF in their keys; the daemon sets the number of paths."""
    rows = tables.get("BGP_NEIGHBOR")
    up = (key for key, row in (rows or {}).items() if "|" not in key and row.get("admin_status") not in _DOWN)
    neighbors = None if rows is None else frozenset(up)
    return RoutingView(asn=number(device.get("bgp_asn")), router_id=_router_id(tables, device), neighbors=neighbors)


def _router_id(tables: Tables, device: Row) -> str | None:
    return _address(device.get("bgp_router_id")) or _loopback(tables)


def _address(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _loopback(tables: Tables) -> str | None:
    """Return the loopback address, which bgpcfgd uses if there is no router ID."""
    addresses = (key.partition("|")[2] for key in tables.get("LOOPBACK_INTERFACE", {}) if key.startswith("Loopback0|"))
    return next((address.partition("/")[0] for address in addresses if ":" not in address), None)
