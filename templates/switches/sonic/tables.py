"""Looks rows up in the tables of a `config_db.json` whose parts may be missing or malformed.

The switches of a fabric have equal tables, except for names and addresses. Each is one object here, and what follows from it is computed
once: for 448 switches that is most of the work.
"""

import marshal
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any
from weakref import WeakValueDictionary

from msgspec import Struct

Row = Mapping[str, Any]


class SharedTable(dict[str, Row]):
    """Key -> row. Tables of equal content from `table_of` are one object, and caches find it by its identity. It must not be changed."""

    __hash__ = object.__hash__  # type: ignore[assignment]


Tables = Mapping[str, Mapping[str, Row]]

_EMPTY = SharedTable()

# Content -> the table that has it, while anything refers to that.
_KNOWN: WeakValueDictionary[bytes, SharedTable] = WeakValueDictionary()

# Fields that a switch shares with no other.
_OWN = {"PORT": frozenset({"description"}), "DEVICE_METADATA": frozenset({"hostname", "mac", "bgp_asn", "bgp_router_id"})}
# Tables of which only the names of ports are alike: `INTERFACE|Ethernet0|10.0.0.0/31`.
_NAMING = ("INTERFACE", "DEVICE_NEIGHBOR")
# The only field of `INTERFACE` that does not name another device.
_INSTANCE = "vrf_name"
_ADDRESSED = ("LOOPBACK_INTERFACE", "DEVICE_NEIGHBOR_METADATA", "MGMT_INTERFACE", "BGP_NEIGHBOR")


class Alike(Struct, frozen=True):
    """The tables of a switch without its own names, addresses and numbers: equal for all switches of a tier, and hashable."""

    items: tuple[tuple[str, SharedTable], ...]

    @property
    def tables(self) -> Tables:
        """The tables by name."""
        return dict(self.items)


def table_of(rows: Mapping[str, Row]) -> SharedTable:
    """Return the table with these rows, the same object for equal ones."""
    content = marshal.dumps(dict(rows), 2)
    found = _KNOWN.get(content)
    if found is None:
        found = _KNOWN[content] = SharedTable(rows)
    return found


def alike(tables: Mapping[str, SharedTable]) -> Alike:
    """Return what the switch usually shares with others. Rules on a switch by itself need no more."""
    found = {name: table for name, table in tables.items() if name not in _ADDRESSED}
    for name in _NAMING:
        if name in found:
            ports: dict[str, Row] = {}
            for key, row in found[name].items():
                port = key.partition("|")[0]
                values = _blank(tuple(row))
                if _INSTANCE in row:
                    values = {**values, _INSTANCE: row[_INSTANCE]}
                ports[port] = {**ports[port], **values} if port in ports else values
            found[name] = table_of(ports)
    for name, fields in _OWN.items():
        if name in found:
            found[name] = table_of(
                {key: {each: row[each] for each in row if each not in fields} for key, row in found[name].items()}
            )
    return Alike(tuple(found.items()))


@lru_cache(1024)
def _blank(fields: tuple[str, ...]) -> Row:
    """Return a row with these fields, whose values are a switch's own. It must not be changed."""
    return dict.fromkeys(fields, "")


def row_of(tables: Tables, table: str, key: str) -> Row:
    """Return the row; an empty one where it is missing."""
    return tables.get(table, {}).get(key, {})


def referred(value: Any) -> str:
    """Return the name in a reference, which releases before 202111 wrote with its table: `[WRED_PROFILE|AZURE_LOSSLESS]`."""
    return value.strip("[]").rpartition("|")[2] if isinstance(value, str) else ""


def numbers_of(tables: Tables, table: str, reference: Any) -> dict[int, int]:
    """Return the map of this name as numbers."""
    pairs = ((number(key), number(value)) for key, value in row_of(tables, table, referred(reference)).items())
    return {key: value for key, value in pairs if key is not None and value is not None}


def number(value: Any) -> int | None:
    """Return the number that the text is; None for other texts."""
    return _parsed(value) if isinstance(value, str) else None


@lru_cache(8192)
def _parsed(text: str) -> int | None:
    return int(text) if re.fullmatch(r"[0-9]{1,18}", text.strip()) else None


def by_port(tables: Tables, table: str) -> Mapping[str, Mapping[int, Row]]:
    """Return port -> number of its queue or group -> row. Fields of several rows are merged, those of the shorter range last."""
    rows = tables.get(table, _EMPTY)
    return _by_port(rows if isinstance(rows, SharedTable) else table_of(rows))


@lru_cache(64)
def _by_port(table: SharedTable) -> Mapping[str, Mapping[int, Row]]:
    found: dict[str, dict[int, Row]] = {}
    for key, row in sorted(table.items(), key=lambda each: -len(_key_numbers(each[0]))):
        for port in _key_ports(key):
            rows = found.setdefault(port, {})
            rows.update({each: {**rows.get(each, {}), **row} for each in _key_numbers(key)})
    return found


@lru_cache(65536)
def _key_ports(key: str) -> list[str]:
    """Parse `Ethernet0`, several ports separated by commas in old releases, or `host|asic|Ethernet0` in a chassis."""
    return key.rpartition("|")[0].rpartition("|")[2].split(",")


@lru_cache(65536)
def _key_numbers(key: str) -> range:
    """Parse `3` or `3-4`; empty for other texts."""
    found = re.fullmatch(r"([0-9]{1,2})(?:-([0-9]{1,2}))?", key.rpartition("|")[2])
    return range(int(found[1]), int(found[2] or found[1]) + 1) if found else range(0)
