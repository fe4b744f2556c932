"""Merges headway's tables into the site's config_db.json: what headway decides is replaced as a whole, so that no preset row is left."""

import json
import re
from collections.abc import Collection, Mapping
from typing import Any

from headway.jobspec.problem import Severity
from headway.templates.switches.sonic.options import Tables

Row = Mapping[str, Any]
Table = Mapping[str, Row]

# Tables of which headway decides every row. Rows of a preset that stayed would keep headroom for priorities that are not paused, or
# configure neighbours next to those of frr.conf.
_OWN = frozenset(
    {
        "PORT",
        "BREAKOUT_CFG",
        "INTERFACE",
        "DEVICE_NEIGHBOR",
        "DEVICE_NEIGHBOR_METADATA",
        "SWITCH_HASH",
        "DSCP_TO_TC_MAP",
        "DOT1P_TO_TC_MAP",
        "TC_TO_QUEUE_MAP",
        "TC_TO_PRIORITY_GROUP_MAP",
        "MAP_PFC_PRIORITY_TO_QUEUE",
        "PFC_PRIORITY_TO_PRIORITY_GROUP_MAP",
        "PORT_QOS_MAP",
        "SCHEDULER",
        "QUEUE",
        "WRED_PROFILE",
        "PFC_WD",
        "CABLE_LENGTH",
        "BUFFER_PG",
        "BUFFER_POOL",
        "BUFFER_PROFILE",
        "BUFFER_QUEUE",
        "BUFFER_PORT_INGRESS_PROFILE_LIST",
        "BUFFER_PORT_EGRESS_PROFILE_LIST",
        "DEFAULT_LOSSLESS_BUFFER_PARAMETER",
        "LOSSLESS_TRAFFIC_PATTERN",
    }
)
# Routing is in frr.conf; the tables of both daemons that could write another one are left out.
_ROUTING = ("BGP_", "ROUTE_MAP", "ROUTE_REDISTRIBUTE", "PREFIX", "COMMUNITY_SET", "AS_PATH_SET", "NEIGHBOR_SET")
# A port in one of these is switched, or bundled, and takes no address.
_MEMBERSHIPS = ("VLAN_MEMBER", "PORTCHANNEL_MEMBER", "VLAN_SUB_INTERFACE")
# Rows of a port that the site keeps, in tables of headway's.
_OF_PORTS = ("PORT", "BREAKOUT_CFG", "INTERFACE", "CABLE_LENGTH")

# Tables of the management plane, by their beginnings, and columns of DEVICE_METADATA that no fabric depends on.
_OF_SITE = (
    *(
        "AAA",
        "AUTO_TECHSUPPORT",
        "BANNER",
        "CONSOLE",
        "COPP_",
        "CRM",
        "DNS_",
        "FIPS",
        "FLEX_COUNTER",
        "GNMI",
        "HEARTBEAT",
        "KDUMP",
    ),
    *(
        "KUBERNETES",
        "LDAP",
        "LOGGER",
        "MEMORY_STATISTICS",
        "MGMT_",
        "NTP",
        "PASSW_",
        "RADIUS",
        "RESTAPI",
        "SERIAL",
        "SFLOW",
        "SNMP",
    ),
    *("SSH_", "SYSLOG", "TACPLUS", "TELEMETRY", "USER", "VERSIONS", "XCVRD"),
)
_COLUMNS_OF_SITE = frozenset({"timezone", "region", "cloudtype", "deployment_id", "rack_mgmt_map", "cluster", "description"})
# Programs that carry the fabric's traffic.
_FEATURES = frozenset({"bgp", "swss", "syncd"})

_PORT = re.compile(r"Ethernet[0-9]+")
_LOOPBACK = "Loopback0"


def read_base(text: str) -> Tables:
    """Return the tables of a config_db.json; ValueError, with what is wrong, for other text."""
    try:
        document = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"line {error.lineno} is not JSON: {error.msg}") from error
    except RecursionError as error:
        raise ValueError(str(error)) from error
    if not isinstance(document, dict):
        raise ValueError("it is not a JSON object")
    for name, rows in document.items():
        if not isinstance(rows, dict) or not all(isinstance(row, dict) for row in rows.values()):
            raise ValueError(f"`{name}` is not a table of rows")
    return document


def merged(base: Tables, own: Tables, keep: Collection[str]) -> dict[str, dict[str, Row]]:
    """Return the base with headway's tables; ports in `keep` stay as they are in the base."""
    found = {name: dict(rows) for name, rows in own.items()}
    ports = {*own.get("PORT", {}), *keep}
    for name, rows in base.items():
        if name.startswith(_ROUTING):
            continue
        if name in _OWN:
            if name in _OF_PORTS:
                found[name] = {**found.get(name, {}), **_of_kept(name, rows, keep)}
        else:
            stays = {key: _with_ports(row, ports) for key, row in rows.items() if _stays(name, key, ports, keep)}
            found[name] = {key: {**row, **found.get(name, {}).get(key, {})} for key, row in stays.items()} | {
                key: row for key, row in found.get(name, {}).items() if key not in stays
            }
    return {name: rows for name, rows in found.items() if rows}


def judge(key: str) -> Severity | None:
    """Return how much a setting matters that is not as the plan has it, by its path: None where the site decides it."""
    table, _, rest = key.partition("|")
    row, _, column = rest.rpartition("|")
    if column == "description" or (table == "DEVICE_METADATA" and column in _COLUMNS_OF_SITE) or table.startswith(_OF_SITE):
        return None
    if table == "FEATURE":
        return Severity.ERROR if row in _FEATURES and column == "state" else None
    is_own = table in _OWN or table.startswith(_ROUTING) or table in _MEMBERSHIPS
    is_own |= table in {"DEVICE_METADATA", "LOOPBACK_INTERFACE"} and ":" not in rest
    return Severity.ERROR if is_own else Severity.WARNING


def _of_kept(name: str, rows: Table, keep: Collection[str]) -> Table:
    """Return the rows of kept ports; a map has one row for all ports."""
    if name == "CABLE_LENGTH":
        return {}
    return {key: row for key, row in rows.items() if key.partition("|")[0] in keep}


def _stays(name: str, key: str, ports: Collection[str], keep: Collection[str]) -> bool:
    """Return whether a row of the site's is still about something that exists, and whether headway leaves its port to it."""
    if name == "LOOPBACK_INTERFACE":
        return key.partition("|")[0] != _LOOPBACK
    named = _PORT.findall(key)
    return all(port in (keep if name in _MEMBERSHIPS else ports) for port in named)


def _with_ports(row: Row, ports: Collection[str]) -> Row:
    """Return the row without ports that do not exist any more, as in an ACL's list of them."""
    bound = row.get("ports")
    if isinstance(bound, list):
        return {**row, "ports": [port for port in bound if not _PORT.fullmatch(str(port)) or port in ports]}
    return row
