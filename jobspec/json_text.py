"""Writes a plan as JSON that reads well in a diff: sorted keys, and one line for whatever fits."""

import dataclasses
import json
from functools import cache
from json.encoder import encode_basestring_ascii
from typing import Any

_WIDTH = 120
# A union of types takes three times as long to compare with.
_NUMBERS, _LISTS = (int, float), (list, tuple)


def json_text(value: Any) -> str:
    """`value` as JSON text with a line break at the end; a dataclass is an object with its fields. The same value gives the same
    bytes."""
    return _text(value, 0) + "\n"


def _text(value: Any, indent: int) -> str:
    """Return the value in one line if it fits there at this indentation. What does not fit does not in what contains it either."""
    if isinstance(value, str):
        return encode_basestring_ascii(value)
    if type(value) is int:
        return str(value)
    if value is None or isinstance(value, _NUMBERS):
        return json.dumps(value, allow_nan=False)
    if isinstance(value, _LISTS):
        return _joined([_text(item, indent + 2) for item in value], indent, "[", "]")
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        items = [f"{key}{_text(getattr(value, name), indent + 2)}" for name, key in _fields(type(value))]
        return _joined(items, indent, "{", "}")
    if isinstance(value, dict):
        items = [f"{encode_basestring_ascii(key)}: {_text(value[key], indent + 2)}" for key in sorted(value)]
        return _joined(items, indent, "{", "}")
    return json.dumps(value, allow_nan=False)


def _joined(items: list[str], indent: int, begin: str, end: str) -> str:
    if not items:
        return begin + end
    line = ", ".join(items) if len(items) <= _WIDTH // 2 else ""
    if line and len(line) + 2 + indent <= _WIDTH and "\n" not in line:
        return f"{begin}{line}{end}"
    pad = " " * (indent + 2)
    return f"{begin}\n{pad}" + f",\n{pad}".join(items) + f"\n{' ' * indent}{end}"


@cache
def _fields(kind: type[Any]) -> tuple[tuple[str, str], ...]:
    """Return the names of a dataclass's fields, sorted, each with its text as a key."""
    return tuple(
        (name, f"{encode_basestring_ascii(name)}: ") for name in sorted(field.name for field in dataclasses.fields(kind))
    )
