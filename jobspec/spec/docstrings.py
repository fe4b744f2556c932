"""Reads the attribute docstrings of sections from their sources on demand: reading all of them takes as long as a check."""

import ast
import importlib
import inspect
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import pairwise, takewhile

from pydantic import BaseModel


@cache
def field_descriptions(section: type[BaseModel]) -> Mapping[str, str]:
    """Return the docstring of each field of the section, or of a section that it inherits from, by the field's name in
    a document."""
    sections = takewhile(lambda each: each is not BaseModel, section.__mro__)
    found = {name: text for each in reversed(list(sections)) for name, text in _of_class(each).items()}
    return {info.alias or name: found[name] for name, info in section.model_fields.items() if name in found}


def _of_class(section: type) -> Mapping[str, str]:
    return _of_module(section.__module__).get(section.__qualname__, {})


@cache
def _of_module(name: str) -> Mapping[str, Mapping[str, str]]:
    """Return docstrings by the qualified name of the class, then by the field; empty if the module comes without its source."""
    try:
        source = inspect.getsource(importlib.import_module(name))
    except OSError:
        return {}
    return dict(_classes(ast.parse(source).body, ""))


def _classes(body: Sequence[ast.stmt], prefix: str) -> Iterator[tuple[str, Mapping[str, str]]]:
    for statement in body:
        if isinstance(statement, ast.ClassDef):
            name = prefix + statement.name
            yield name, dict(_docstrings(statement.body))
            yield from _classes(statement.body, f"{name}.")
        elif isinstance(statement, ast.FunctionDef):
            yield from _classes(statement.body, f"{prefix}{statement.name}.<locals>.")


def _docstrings(body: Sequence[ast.stmt]) -> Iterator[tuple[str, str]]:
    """Yield each field with the text that follows it, in one line."""
    for pair in pairwise(body):
        match pair:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                yield name, " ".join(text.split())
