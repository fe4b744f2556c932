"""Looks up what other programs call the fields and values of a spec: the names of `catalog/aliases.yaml`."""

import re
from collections.abc import Collection
from functools import cache

from headway.jobspec.catalog.table import rows

Place = tuple[str, ...]

_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


def normal(name: str) -> str:
    """Return the name as the table writes it: `--numAttentionHeads` and `num-attention-heads` become `num_attention_heads`."""
    return re.sub(r"[\s-]+", "_", _HUMP.sub("_", name.strip()).lower()).strip("_")


def places(kind: str, name: str) -> tuple[Place, ...]:
    """Return the places of the fields of a document of this kind that other programs call `name`, in the table's order."""
    return _fields().get(kind, {}).get(normal(name), ())


def note(kind: str, name: str) -> str | None:
    """Return what to write in place of `name`, if no single field replaces it."""
    found = _table()["notes"].get(kind, {}).get(normal(name))
    return None if found is None else str(found)


def values(value: str, allowed: Collection[str]) -> list[str]:
    """Return which of the `allowed` values other programs call `value`."""
    name = normal(value)
    return [each for each in allowed if normal(each) == name or name in map(normal, _table()["values"].get(each, ()))]


@cache
def _table() -> dict[str, dict[str, dict[str, object]]]:
    return rows("aliases")


@cache
def _fields() -> dict[str, dict[str, tuple[Place, ...]]]:
    """Return the table by kind and name."""
    found: dict[str, dict[str, tuple[Place, ...]]] = {}
    for kind, fields in rows("aliases")["fields"].items():
        by_name = found.setdefault(kind, {})
        for place, names in fields.items():
            for name in names:
                by_name[name] = (*by_name.get(name, ()), tuple(place.split(".")))
    return found
