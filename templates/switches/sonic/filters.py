"""Finds filters and limits of a `config_db.json` that stop RDMA packets: ACLs, policers, storm control, static routes that drop.

sonic-acl.yang, sonic-policer.yang, sonic-storm-control.yang, sonic-static-route.yang.
"""

from collections.abc import Iterator

from headway.templates.reading import Fault
from headway.templates.switches.sonic.tables import Row, Tables, number

# RoCE v2's port (IANA).
_ROCE = 4791
_IPV4 = 0x0800
_LEAST_KBPS = 1000
_HINT = "remove it from the ports of the fabric"


def filter_faults(tables: Tables) -> Iterator[Fault]:
    """Yield the faults; a rule that names RoCE's port is an error, one that may mean its packets a doubt."""
    bound = {
        name: row for name, row in tables.get("ACL_TABLE", {}).items() if row.get("ports") and row.get("type") != "CTRLPLANE"
    }
    for key, row in tables.get("ACL_RULE", {}).items():
        table, action = key.partition("|")[0], str(row.get("PACKET_ACTION", row.get("packet_action", "")))
        if table in bound and action.upper().startswith(("DROP", "REDIRECT", "DENY")) and _is_of_rdma(row):
            what = "drops" if not action.upper().startswith("REDIRECT") else "redirects"
            message = f"the rule {key.partition('|')[2]} {what} packets of RDMA; connections of the ports of {table} time out"
            yield Fault("HW817", f"ACL_RULE|{key}", message, _HINT, doubtful=not _names_roce(row))
    used = {str(row[name]) for row in tables.get("ACL_RULE", {}).values() for name in row if name.lower() == "policer"}
    used |= {
        str(value) for row in tables.get("PORT_STORM_CONTROL", {}).values() for name, value in row.items() if name == "policer"
    }
    for name, row in tables.get("POLICER", {}).items():
        if row.get("red_packet_action") == "drop" and name in used:
            limit = row.get("cir", "its limit")
            message = f"the policer {name} drops what is faster than {limit}; RDMA sends lost packets again by whole windows"
            yield Fault("HW817", f"POLICER|{name}", message, _HINT, doubtful=True)
    for key, row in tables.get("PORT_STORM_CONTROL", {}).items():
        port, _, kind = key.partition("|")
        if (
            port in tables.get("INTERFACE", {})
            and kind == "broadcast"
            and (number(str(row.get("kbps", ""))) or _LEAST_KBPS) < _LEAST_KBPS
        ):
            message = (
                f"storm control leaves {row.get('kbps')} kbit/s of broadcasts on {port}; ARP is dropped, and rails reach no one"
            )
            yield Fault("HW817", f"PORT_STORM_CONTROL|{key}", message, _HINT, doubtful=True)
        if port in tables.get("INTERFACE", {}) and kind == "unknown-unicast":
            message = f"storm control limits unknown destinations on {port}; while a neighbor's entry is missing, RDMA packets are dropped"
            yield Fault("HW817", f"PORT_STORM_CONTROL|{key}", message, _HINT, doubtful=True)
    for key, row in tables.get("STATIC_ROUTE", {}).items():
        if "true" in str(row.get("blackhole", "")).lower().split(","):
            network = key.rpartition("|")[2]
            message = (
                f"the static route drops what goes to {network} and has no better route; hosts there may be unreachable from here"
            )
            hint = "remove it, unless it is a summary of the switch's networks"
            yield Fault("HW838", f"STATIC_ROUTE|{key}", message, hint, doubtful=True)


def _is_of_rdma(row: Row) -> bool:
    """Return whether UDP packets to RoCE's port, of any address and class, may match."""
    protocol, port, ports = row.get("IP_PROTOCOL"), row.get("L4_DST_PORT"), str(row.get("L4_DST_PORT_RANGE", ""))
    first, _, last = ports.partition("-")
    is_port = port in (None, str(_ROCE)) and (not ports or (number(first) or 0) <= _ROCE <= (number(last) or 0))
    is_udp = protocol in (None, "17", 17)
    # Rules on ARP, ICMP or TCP alone do not mean RDMA.
    is_other = any(name in row for name in ("ICMP_TYPE", "ICMP_CODE", "TCP_FLAGS", "L4_SRC_PORT"))
    kind = row.get("ETHER_TYPE")
    if kind is not None:
        # Of all IPv4 packets, or of those of another protocol, such as ARP.
        return number(str(kind)) == _IPV4 and is_udp and is_port and not is_other and not row.keys() & {"SRC_IP", "DST_IP"}
    return is_udp and is_port and not is_other and (protocol is not None or port is not None or "DSCP" in row)


def _names_roce(row: Row) -> bool:
    return row.get("L4_DST_PORT") == str(_ROCE)
