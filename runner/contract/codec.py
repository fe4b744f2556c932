"""Reads and writes records as JSON, by the types of their dataclasses."""

import dataclasses
import functools
import json
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

T = TypeVar("T")
Decoder = Callable[[Any], Any]


class RecordError(ValueError):
    """A record does not have the fields and types of its schema."""


class _MisfitError(Exception):
    """A value below a record does not fit its type. `place` leads to it from the value that is being decoded."""

    def __init__(self, problem: str) -> None:
        super().__init__(problem)
        self.place, self.problem = "", problem

    def below(self, step: str) -> "_MisfitError":
        """Return the error as one of the value around, from which `step` leads."""
        self.place = step + self.place
        return self


def to_json(record: Any, indent: int | None = None) -> str:
    """Return the record as JSON with sorted keys: the same record gives the same bytes."""
    return json.dumps(record, default=vars, sort_keys=True, indent=indent, allow_nan=False)


def from_json(kind: type[T], text: str) -> T:
    """Return the record in `text`. Raises RecordError for another schema, an unknown or missing field, or a wrong type, by name."""
    try:
        data = json.loads(text)
    except ValueError as error:
        raise RecordError(f"not JSON: {error}") from None
    return _decoded(kind, data, strict=True)


def decode(kind: type[T], data: Any) -> T:
    """Return the record that `data` (parsed JSON) is, without the fields that this version does not know. Raises RecordError, by name."""
    return _decoded(kind, data, strict=False)


def _decoded(kind: type[T], data: Any, *, strict: bool) -> T:
    try:
        hashable: Any = kind
        return typing.cast("T", _decoder(hashable, strict)(data))
    except _MisfitError as error:
        raise RecordError(f"{kind.__name__}{error.place}: {error.problem}") from None


@functools.cache
def _decoder(kind: Any, strict: bool) -> Decoder:
    """Return what decodes values of a type. Cached: a part of a checkpoint has a hundred thousand records of one kind."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any:
        return lambda value: value
    if origin in (typing.Union, types.UnionType):
        return _of_optional(arguments, strict)
    if dataclasses.is_dataclass(kind):
        return _of_record(kind, strict)
    if origin is tuple:
        return _of_tuple(_decoder(arguments[0], strict), None if Ellipsis in arguments else len(arguments))
    if origin is not None and issubclass(origin, Mapping):
        return _of_mapping(_decoder(arguments[1], strict))
    return _of_float if kind is float else functools.partial(_expect, kind)


def _of_optional(arguments: tuple[Any, ...], strict: bool) -> Decoder:
    (kind,) = (a for a in arguments if a is not type(None))
    inner = _decoder(kind, strict)
    if type(None) not in arguments:
        return inner
    return lambda value: None if value is None else inner(value)


def _of_tuple(item: Decoder, length: int | None) -> Decoder:
    def decode_tuple(value: Any) -> Any:
        items = _expect(list, value)
        if length is not None and len(items) != length:
            raise _MisfitError(f"expected {length} items, found {len(items)}")
        found: list[Any] = []
        try:
            for each in items:
                found.append(item(each))
        except _MisfitError as error:
            raise error.below(f"[{len(found)}]") from None
        return tuple(found)

    return decode_tuple


def _of_mapping(item: Decoder) -> Decoder:
    def decode_mapping(value: Any) -> Any:
        found = {}
        for key, each in _expect(dict, value).items():
            try:
                found[key] = item(each)
            except _MisfitError as error:
                raise error.below(f".{key}") from None
        return found

    return decode_mapping


def _of_record(kind: Any, strict: bool) -> Decoder:
    fields = {f.name: f for f in dataclasses.fields(kind)}
    schema = fields["schema"].default if "schema" in fields else None
    decoders: dict[str, Decoder] = {}

    def decode_record(value: Any) -> Any:
        data = _expect(dict, value)
        if schema is not None and data.get("schema") != schema:
            raise _MisfitError(f"unknown schema {data.get('schema')!r}; expected {schema!r}")
        if not decoders:
            # Not before: a record may have records of its kind in it.
            decoders.update(
                {name: _decoder(hint, strict) for name, hint in typing.get_type_hints(kind).items() if name in fields}
            )
        if not strict:
            data = {name: each for name, each in data.items() if name in fields}
        for problem in _shape_problems(data, fields):
            raise _MisfitError(problem)
        found = {}
        for name, each in data.items():
            try:
                found[name] = decoders[name](each)
            except _MisfitError as error:
                raise error.below(f".{name}") from None
        return kind(**found)

    return decode_record


def _shape_problems(data: Mapping[str, Any], fields: Mapping[str, Any]) -> Iterator[str]:
    if data.keys() == fields.keys():
        return
    for name in data.keys() - fields.keys():
        yield f"unknown field {name!r}"
    for name, f in fields.items():
        if name not in data and f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING:
            yield f"field {name!r} is missing"


def _of_float(value: Any) -> Any:
    return float(value) if type(value) is int else _expect(float, value)


def _expect(kind: Any, value: Any) -> Any:
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise _MisfitError(f"expected {kind.__name__}, found {type(value).__name__}")
    return value
