"""Looks rows up in the tables of a `config_db.json` whose parts may be missing or malformed."""

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

Row = Mapping[str, Any]
Tables = Mapping[str, Mapping[str, Row]]


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


def by_port(tables: Tables, table: str) -> dict[str, dict[int, Row]]:
    """Return port -> number of its queue or group -> row. Fields of several rows are merged, those of the shorter range last."""
    found: dict[str, dict[int, Row]] = {}
    for key, row in sorted(tables.get(table, {}).items(), key=lambda each: -len(_key_numbers(each[0]))):
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
