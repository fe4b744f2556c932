"""Pydantic's errors as problems: what was found, what was expected, where, what to do."""

import types
import typing
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from headway.jobspec.document import Document, Path
from headway.jobspec.problem import Problem
from headway.jobspec.suggest import did_you_mean, listed, nearest

_TYPES: Mapping[str, str] = {
    "int_type": "an integer",
    "int_from_float": "an integer",
    "float_type": "a number",
    "string_type": "text",
    "bool_type": "`true` or `false`",
    "tuple_type": "a list",
    "list_type": "a list",
    "dict_type": "a mapping",
    "model_type": "a mapping",
    "model_attributes_type": "a mapping",
}

_BOUNDS: Mapping[str, Callable[[dict[str, Any]], str]] = {
    "greater_than": lambda bound: f"be more than {bound['gt']:g}",
    "greater_than_equal": lambda bound: f"be at least {bound['ge']}",
    "less_than": lambda bound: f"be less than {bound['lt']:g}",
    "less_than_equal": lambda bound: f"be at most {bound['le']}",
    "string_too_short": lambda bound: f"have at least {bound['min_length']} characters",
    "string_pattern_mismatch": lambda bound: f"have the form `{bound['pattern']}`",
    "too_short": lambda bound: f"have {bound['min_length']} or more items",
    "too_long": lambda bound: f"have {bound['max_length']} item{'s' if bound['max_length'] > 1 else ''} at most",
}


def describe(error: ValidationError, model: type[BaseModel], document: Document, prefix: Path = ()) -> list[Problem]:
    """One problem an error. `prefix` leads to where the model's data stands in the document."""
    found = error.errors(include_url=False)
    meant = {(*loc[:-1], _meant(loc, model)) for loc in unknown_keys(error)}
    return [_problem(details, model, document, prefix) for details in found if not _echo(details, document, prefix, meant)]


def _echo(details: ErrorDetails, document: Document, prefix: Path, meant: set[tuple[str | int | None, ...]]) -> bool:
    """Whether another error says it already: a field is missing because it is misspelt, a list too short because of its items."""
    if details["type"] == "too_short":
        return bool(document.value((*prefix, *details["loc"])))
    return details["type"] == "missing" and details["loc"] in meant


def _meant(loc: Path, model: type[BaseModel]) -> str | None:
    return nearest(str(loc[-1]), field_names(_owner(model, loc[:-1]) or model))


def unknown_keys(error: ValidationError) -> list[Path]:
    """Paths of the fields that the model does not have."""
    return [details["loc"] for details in error.errors() if details["type"] == "extra_forbidden"]


def field_names(model: type[BaseModel]) -> dict[str, FieldInfo]:
    """The model's fields by the name that they have in a document."""
    return {info.alias or name: info for name, info in model.model_fields.items()}


def _problem(details: ErrorDetails, model: type[BaseModel], document: Document, prefix: Path) -> Problem:
    if details["type"] == "extra_forbidden":
        return _unknown(details["loc"], model, document, prefix)
    if details["type"] == "missing":
        return _missing(details["loc"], model, document, prefix)
    return _wrong_value(details, model, document, prefix)


def _unknown(loc: Path, model: type[BaseModel], document: Document, prefix: Path) -> Problem:
    owner, key, path = _owner(model, loc[:-1]) or model, str(loc[-1]), (*prefix, *loc)
    near = nearest(key, field_names(owner))
    elsewhere = list(_homes(key, model)) if near is None else []
    hint = f"`{key}` belongs in `{elsewhere[0]}`" if elsewhere else did_you_mean(key, field_names(owner), "fields")
    return Problem("HW201", document.name, path, f"`{key}` is not a field of {_place(path[:-1], owner)}", hint, at_key=True)


def _homes(key: str, model: type[BaseModel]) -> Iterator[str]:
    """Names of the sections right below `model` that have a field `key`."""
    for name, info in field_names(model).items():
        section = _model_of(info.annotation)
        if section is not None and key in field_names(section):
            yield name


def _missing(loc: Path, model: type[BaseModel], document: Document, prefix: Path) -> Problem:
    owner, key, path = _owner(model, loc[:-1]) or model, str(loc[-1]), (*prefix, *loc)
    hint = _about(key, field_names(owner).get(key))
    return Problem("HW202", document.name, path[:-1], f"{_place(path[:-1], owner)} lacks `{key}`", hint, at_key=True)


def _wrong_value(details: ErrorDetails, model: type[BaseModel], document: Document, prefix: Path) -> Problem:
    loc, kind, context = details["loc"], details["type"], details.get("ctx", {})
    path = (*prefix, *loc)
    name = f"`{_dotted(path)}`"
    info = _field(model, loc)
    found = _found(document, path)
    if kind in _TYPES:
        return Problem("HW203", document.name, path, f"{name} must be {_TYPES[kind]}, found {found}", _about(loc[-1], info))
    if kind == "literal_error":
        allowed = _literals(info)
        hint = did_you_mean(str(details["input"]), allowed, "allowed values")
        return Problem("HW205", document.name, path, f"{name} must be one of {listed(allowed)}, found {found}", hint)
    if kind in _BOUNDS:
        message = f"{name} must {_BOUNDS[kind](context)}, found {found}"
    else:
        message = f"{name}: {details['msg']}, found {found}"
    return Problem("HW204", document.name, path, message, _about(loc[-1], info))


def _found(document: Document, path: Path) -> str:
    if document.value(path) is None and path not in document.scalars:
        return "nothing"
    source = document.source(path)
    if source == "":
        return "nothing"
    return f"`{source}`" if path in document.scalars else source


def _about(key: str | int, info: FieldInfo | None) -> str | None:
    if info is None or info.description is None:
        return None
    description = _as_clause(" ".join(info.description.split()))
    return f"{description}, for example `{key}: {_example(info)}`" if isinstance(key, str) and info.examples else description


def _as_clause(sentence: str) -> str:
    """Without its full stop and capital; `CPU cores` keeps its own."""
    first = sentence[:1] if sentence[1:2].isupper() else sentence[:1].lower()
    return first + sentence[1:].rstrip(".")


def _example(info: FieldInfo) -> str:
    """The field's first example in YAML's flow style."""
    return _flow((info.examples or [None])[0])


def _flow(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_flow(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(_flow(item) for item in value) + "]"
    if isinstance(value, bool):
        return str(value).lower()
    return str(value)


def _place(path: Path, owner: type[BaseModel]) -> str:
    return f"`{_dotted(path)}`" if path else f"a {owner.__name__}"


def _dotted(path: Path) -> str:
    return "".join(f"[{segment}]" if isinstance(segment, int) else f".{segment}" for segment in path).lstrip(".")


def _field(model: type[BaseModel], loc: Path) -> FieldInfo | None:
    """The field that holds the value at `loc`: for an item of a list, the list's."""
    names = [segment for segment in loc if isinstance(segment, str)]
    if not names:
        return None
    owner = _owner(model, tuple(names[:-1]))
    return None if owner is None else field_names(owner).get(names[-1])


def _owner(model: type[BaseModel], loc: Path) -> type[BaseModel] | None:
    """The model of the mapping at `loc`."""
    owner: type[BaseModel] | None = model
    for segment in loc:
        if isinstance(segment, str) and owner is not None:
            info = field_names(owner).get(segment)
            owner = None if info is None else _model_of(info.annotation)
    return owner


def _model_of(annotation: Any) -> type[BaseModel] | None:
    """The model inside `X`, `X | None` or `tuple[X, ...]`."""
    if isinstance(annotation, type) and not isinstance(annotation, types.GenericAlias) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for found in map(_model_of, typing.get_args(annotation)) if found is not None), None)


def _literals(info: FieldInfo | None) -> list[str]:
    """What the field's `Literal` allows, also inside a tuple or beside None."""
    return [] if info is None else list(_literal_values(info.annotation))


def _literal_values(annotation: Any) -> Iterator[str]:
    if typing.get_origin(annotation) is typing.Literal:
        yield from map(str, typing.get_args(annotation))
    else:
        for inner in typing.get_args(annotation):
            yield from _literal_values(inner)
