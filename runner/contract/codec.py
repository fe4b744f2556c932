"""Reads and writes records as JSON, by the types of their dataclasses."""

import dataclasses
import functools
import json
import types
import typing
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

T = TypeVar("T")


class RecordError(ValueError):
    """A record does not have the fields and types of its schema."""


def to_json(record: Any, indent: int | None = None) -> str:
    """Return the record as JSON with sorted keys: the same record gives the same bytes."""
    return json.dumps(record, default=vars, sort_keys=True, indent=indent, allow_nan=False)


def from_json(kind: type[T], text: str) -> T:
    """Return the record in `text`. Raises RecordError for another schema, an unknown or missing field, or a wrong type, by name."""
    try:
        data = json.loads(text)
    except ValueError as error:
        raise RecordError(f"not JSON: {error}") from None
    return typing.cast("T", _decode(kind, data, kind.__name__))


def decode(kind: type[T], data: Any) -> T:
    """Return the record that `data` (parsed JSON) is, without the fields that this version does not know. Raises RecordError, by name."""
    return typing.cast("T", _decode(kind, data, kind.__name__, strict=False))


def _decode(kind: Any, value: Any, where: str, *, strict: bool = True) -> Any:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any:
        return value
    if origin in (typing.Union, types.UnionType):
        return _decode_optional(arguments, value, where, strict=strict)
    if dataclasses.is_dataclass(kind):
        return _decode_record(kind, value, where, strict=strict)
    if origin is tuple:
        if Ellipsis not in arguments and len(_expect(list, value, where)) != len(arguments):
            raise RecordError(f"{where}: expected {len(arguments)} items, found {len(value)}")
        items = enumerate(_expect(list, value, where))
        return tuple(_decode(arguments[0], item, f"{where}[{i}]", strict=strict) for i, item in items)
    if origin is not None and issubclass(origin, Mapping):
        items = _expect(dict, value, where).items()
        return {key: _decode(arguments[1], item, f"{where}.{key}", strict=strict) for key, item in items}
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    return _expect(kind, value, where)


def _decode_optional(arguments: tuple[Any, ...], value: Any, where: str, *, strict: bool) -> Any:
    if value is None and type(None) in arguments:
        return None
    (kind,) = (a for a in arguments if a is not type(None))
    return _decode(kind, value, where, strict=strict)


def _decode_record(kind: Any, value: Any, where: str, *, strict: bool) -> Any:
    data = _expect(dict, value, where)
    hints, fields = _fields(kind)
    expected = fields["schema"].default if "schema" in fields else None
    if expected is not None and data.get("schema") != expected:
        raise RecordError(f"{where}: unknown schema {data.get('schema')!r}; expected {expected!r}")
    data = data if strict else {name: item for name, item in data.items() if name in fields}
    for problem in _shape_problems(data, fields):
        raise RecordError(f"{where}: {problem}")
    return kind(**{name: _decode(hints[name], item, f"{where}.{name}", strict=strict) for name, item in data.items()})


@functools.cache
def _fields(kind: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return types and fields of a record by name, cached: a part has a hundred thousand records of one kind."""
    return typing.get_type_hints(kind), {f.name: f for f in dataclasses.fields(kind)}


def _shape_problems(data: Mapping[str, Any], fields: Mapping[str, Any]) -> Iterator[str]:
    for name in data.keys() - fields.keys():
        yield f"unknown field {name!r}"
    for name, f in fields.items():
        if name not in data and f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING:
            yield f"field {name!r} is missing"


def _expect(kind: Any, value: Any, where: str) -> Any:
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise RecordError(f"{where}: expected {kind.__name__}, found {type(value).__name__}")
    return value
