"""Looks up what other programs call the fields and values of a spec: the names of `catalog/aliases.yaml`."""

import re
from collections.abc import Collection
from functools import cache
from typing import Any

from headway.jobspec.catalog.table import rows

Place = tuple[str, ...]

# Endings that say no more than the name before them.
_STEM = r"_(?:names?|list|values?|config|spec|settings|options)$"
# What a note has in place of values (`unknown._with_value`), and what a value usually is.
_USUAL = {
    "VALUEMiB": "...",
    "VALUE": "...",
    "PART": "2000",
    "BETA1": "0.9",
    "BETA2": "0.95",
    "SHARE": "0.1",
    "RANGE": "{min: 2, max: 4}",
    "SAMPLES": "N",
    "MODULES": "NAME",
    "EVERY": "500 steps",
    "MEMORY": "1500Gi",
    "IMAGE": "...",
}
_PLACE = rf"\b(?:{'|'.join(_USUAL)})\b"
_HUMP = r"(?<=[a-z0-9])(?=[A-Z])"


def normal(name: str) -> str:
    """Return the name as the table writes it: `--numAttentionHeads` and `num-attention-heads` become `num_attention_heads`."""
    return re.sub(r"[\s-]+", "_", re.sub(_HUMP, "_", name.strip()).lower()).strip("_")


def squeezed(name: str) -> str:
    """Return the name without what separates its words, by which names are compared: `ProxyJump` and `proxy_jump` are the same."""
    return normal(name).replace("_", "")


def places(kind: str, name: str) -> tuple[Place, ...]:
    """Return the places of the fields of a document of this kind that other programs call `name`, in the table's order."""
    found = _fields().get(kind, {})
    # `queue_name` is a name of what `queue` is.
    stem = re.sub(_STEM, "", normal(name))
    exact, inside = found.get(squeezed(name), ()), found.get(squeezed(stem), ()) if stem else ()
    return (*exact, *(place for place in inside if place not in exact))


def note(kind: str, name: str) -> str | None:
    """Return what to write in place of `name`, if no single field replaces it."""
    return _notes().get(kind, {}).get(squeezed(name))


def plain_note(kind: str, name: str) -> str | None:
    """Return the note where the name has no value, with the usual ones in its places for values."""
    found = note(kind, name)
    return None if found is None else re.sub(_PLACE, lambda place: _USUAL[place[0]], found)


def values(value: str, allowed: Collection[str]) -> list[str]:
    """Return which of the `allowed` values other programs call `value`, else the one that is a word of it: `warmup_cosine`."""
    name = squeezed(value)
    return _called(name, allowed) or _words(value, allowed)


def _words(value: str, allowed: Collection[str]) -> list[str]:
    words = set(re.split(r"[^a-z0-9]+", normal(value).replace("_", " ")))
    found = [each for each in allowed if squeezed(each) in words]
    return found if len(found) == 1 and len(words) > 1 else []


def _called(name: str, allowed: Collection[str]) -> list[str]:
    return [each for each in allowed if squeezed(each) == name or name in map(squeezed, _table()["values"].get(each, ()))]


@cache
def _table() -> dict[str, dict[str, Any]]:
    return rows("aliases")


@cache
def _fields() -> dict[str, dict[str, tuple[Place, ...]]]:
    """Return the table by kind and name."""
    found: dict[str, dict[str, tuple[Place, ...]]] = {}
    for kind, fields in _table()["fields"].items():
        by_name = found.setdefault(kind, {})
        for place, names in fields.items():
            for name in dict.fromkeys(map(squeezed, names)):
                by_name[name] = (*by_name.get(name, ()), tuple(place.split(".")))
    return found


@cache
def _notes() -> dict[str, dict[str, str]]:
    """Return what to write, by section and name."""
    return {section: {squeezed(name): str(told) for name, told in names.items()} for section, names in _table()["notes"].items()}
