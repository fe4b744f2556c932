"""Writes a plan as JSON that reads well in a diff: sorted keys, and one line for whatever fits."""

import dataclasses
import json
from functools import cache
from json.encoder import encode_basestring_ascii
from typing import Annotated, Any, TypeVar

from msgspec import Struct, structs

_WIDTH = 120
# A union of types takes three times as long to compare with.
_NUMBERS, _LISTS = (int, float), (list, tuple)

_T = TypeVar("_T")
_OMITTED = object()
# A field of a record that is omitted if it has its default, None or False, so that texts without it stay unchanged.
Omitted = Annotated[_T, _OMITTED]
_NEVER = object()


def json_text(value: Any) -> str:
    """`value` as JSON text with a line break at the end; a record is an object with its fields. The same value gives the same
    bytes."""
    return _text(value, 0) + "\n"


def _text(value: Any, indent: int) -> str:
    """Return the value in one line if it fits there at this indentation; otherwise no value that contains it fits either."""
    if isinstance(value, str):
        return encode_basestring_ascii(value)
    if type(value) is int:
        return str(value)
    if value is None or isinstance(value, _NUMBERS):
        return json.dumps(value, allow_nan=False)
    if isinstance(value, _LISTS):
        return _joined([_text(item, indent + 2) for item in value], indent, "[", "]")
    if isinstance(value, Struct) or (dataclasses.is_dataclass(value) and not isinstance(value, type)):
        fields = ((key, getattr(value, name), omitted) for name, key, omitted in _fields(type(value)))
        items = [f"{key}{_text(found, indent + 2)}" for key, found, omitted in fields if found is not omitted]
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
def _fields(kind: type[Any]) -> tuple[tuple[str, str, Any], ...]:
    """Return the names of a record's fields, sorted, each with its text as a key and the value that it is left out with, if any."""
    if issubclass(kind, Struct):
        found = {each.name: each.default if _is_omitted(each.type) else _NEVER for each in structs.fields(kind)}
    else:
        found = {each.name: _NEVER for each in dataclasses.fields(kind)}
    return tuple((name, f"{encode_basestring_ascii(name)}: ", found[name]) for name in sorted(found))


def _is_omitted(annotation: Any) -> bool:
    return _OMITTED in getattr(annotation, "__metadata__", ())
