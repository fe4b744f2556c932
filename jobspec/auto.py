"""Finds the values of a document that are left to headway (`auto`), and writes decided values in their place."""

import copy
import json
from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import Struct
from msgspec.structs import replace
from pydantic import BaseModel

from headway.jobspec.document import LINE_BREAK, Document, Path
from headway.jobspec.flow import flow
from headway.jobspec.spec.fields import field_of
from headway.jobspec.spec.written import AUTO, OrAuto


class Decision(Struct, frozen=True):
    """A value in the place of an `auto`, as a document has it, and why it is that one, in a line."""

    value: Any
    reason: str


Decisions = Mapping[Path, Decision]


def find_auto(document: Document, model: type[BaseModel]) -> dict[Path, Any]:
    """Return the paths of the values that are `auto` where the model's fields allow it, each with a stand-in until it
    is decided."""
    marks = {path: _mark(path, model) for path in _paths(AUTO, (), document.data)}
    return {path: mark.stand_in for path, mark in marks.items() if mark is not None}


def with_values(document: Document, values: Mapping[Path, Any]) -> Document:
    """Return the document with these values; a problem with one of them points to the text that it replaces."""
    data = copy.deepcopy(document.data) if values else document.data
    for path, value in values.items():
        owner = data
        for segment in path[:-1]:
            owner = owner[segment]
        owner[path[-1]] = value
    return replace(document, data=data)


def rewritten(document: Document, values: Mapping[Path, Any]) -> str:
    """Return the text with values in the place of scalars of this very text, each in one line; every other character
    stays.

    A value is written like the scalar: in double quotes, as in JSON, else as YAML.
    """
    text, starts = document.text, [0, *(found.end() for found in LINE_BREAK.finditer(document.text))]
    for path in sorted(values, key=lambda path: document.values[path], reverse=True):
        span = document.values[path]
        start, end = starts[span.line] + span.column, starts[span.end_line] + span.end_column
        write = json.dumps if text[start] == '"' else flow
        text = text[:start] + write(values[path]) + text[end:]
    return text


def _paths(value: str, path: Path, data: Any) -> Iterator[Path]:
    """Return the paths of that very value."""
    if data == value:
        yield path
    elif isinstance(data, dict):
        for key, item in data.items():
            yield from _paths(value, (*path, key), item)
    elif isinstance(data, list):
        for index, item in enumerate(data):
            yield from _paths(value, (*path, index), item)


def _mark(path: Path, model: type[BaseModel]) -> OrAuto | None:
    """Return whether the field at the path may be `auto`; an item of a list is no field."""
    info = field_of(model, path) if path and isinstance(path[-1], str) else None
    return None if info is None else next((mark for mark in info.metadata if isinstance(mark, OrAuto)), None)
