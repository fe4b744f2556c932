"""Parses an open choice of a spec, `{kind, options}`, with the options model of the folder that owns the kind."""

import json
from collections.abc import Mapping
from typing import Any, Protocol

from pydantic import BaseModel, Field, ValidationError

from headway.jobspec.document import Document, Path
from headway.jobspec.invalid import describe
from headway.jobspec.problem import Problem
from headway.jobspec.spec.section import Section
from headway.jobspec.unknown import alias_or_nearest


class Choice(Section):
    """A kind, and its options. The kind validates the options."""

    kind: str = Field(examples=["slurm"])
    """Name of the kind."""
    options: dict[str, Any] = Field(default_factory=dict, examples=[{"partition": "main"}])
    """Options of this kind."""


class Kind(Protocol):
    """The part of a table of kinds that this file needs."""

    @property
    def options(self) -> type[BaseModel]: ...


def choose(
    document: Document, path: Path, table: Mapping[str, Kind], default: str | None = None
) -> tuple[BaseModel | None, list[Problem]]:
    """Return the options of the choice at `path`, defaults filled in, or its problems. A choice of the wrong shape
    gives neither.

    `default` is the kind when the document does not choose. Only a trainer that reads no data has a table without
    kinds.
    """
    choice = document.value(path) if path in document.values else {"kind": default}
    kind, options = (choice.get("kind"), choice.get("options")) if isinstance(choice, dict) else (None, None)
    if not isinstance(kind, str) or not isinstance(options, dict | None):
        return None, []
    field = next(key for key in reversed(path) if isinstance(key, str))
    if not table:
        message, hint = f"the job's trainer takes no `{field}`: it reads its data itself", f"leave `{field}` out"
        return None, [Problem("HW208", document.name, path, message, hint, at_key=True)]
    if kind not in table:
        near = alias_or_nearest(kind, table, "kinds")
        message = f"`{kind}` is not a kind of `{field}`"
        return None, [Problem("HW208", document.name, (*path, "kind"), message, near.text, fix=near.fix)]
    beside = {key: value for key, value in choice.items() if key not in ("kind", "options")}
    found, problems = validate(table[kind].options, {**beside, **(options or {})}, document, (*path, "options"))
    # What is next to `options` has a problem already, and is not missing in it.
    return (None, [each for each in problems if each.path in document.values or not beside]) if beside else (found, problems)


def validate(
    model: type[BaseModel], data: Mapping[str, Any], document: Document, path: Path
) -> tuple[BaseModel | None, list[Problem]]:
    """Return `data`, found at `path` of the document, as a `model`, or its problems."""
    try:
        return model.model_validate_json(json.dumps(data)), []
    except ValidationError as error:
        return None, describe(error, model, document, path)
