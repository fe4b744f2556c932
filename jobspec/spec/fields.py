"""Finds fields of models, by their names in a document and by the places of their values."""

import types
from collections.abc import Iterator
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from headway.jobspec.document import Path


def field_names(model: type[BaseModel]) -> dict[str, FieldInfo]:
    """Return the model's fields by the name that they have in a document."""
    return {info.alias or name: info for name, info in model.model_fields.items()}


def field_of(model: type[BaseModel], loc: Path) -> FieldInfo | None:
    """Return the field that holds the value at `loc`, below a `model`: for an item of a list, the list's."""
    owner, name = holder_of(model, loc)
    return None if owner is None else field_names(owner).get(name)


def holder_of(model: type[BaseModel], loc: Path) -> tuple[type[BaseModel] | None, str]:
    """Return the model and the name of the field that holds the value at `loc`: for an item of a list, the list's."""
    names = [segment for segment in loc if isinstance(segment, str)]
    return (owner_of(model, tuple(names[:-1])), names[-1]) if names else (None, "")


def owner_of(model: type[BaseModel], loc: Path) -> type[BaseModel] | None:
    """Return the model of the mapping at `loc`."""
    owner: type[BaseModel] | None = model
    for segment in loc:
        if isinstance(segment, str) and owner is not None:
            info = field_names(owner).get(segment)
            owner = None if info is None else model_of(info.annotation)
    return owner


def model_of(annotation: Any) -> type[BaseModel] | None:
    """Return the model inside `X`, `X | None` or `tuple[X, ...]`."""
    if isinstance(annotation, type) and not isinstance(annotation, types.GenericAlias) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for found in map(model_of, get_args(annotation)) if found is not None), None)


def literals_of(info: FieldInfo | None) -> list[str]:
    """Return what the field's `Literal` allows, also inside a tuple or with None."""
    return [] if info is None else list(_literal_values(info.annotation))


def _literal_values(annotation: Any) -> Iterator[str]:
    if get_origin(annotation) is Literal:
        yield from map(str, get_args(annotation))
    else:
        for inner in get_args(annotation):
            yield from _literal_values(inner)
