"""Parses an open choice of a spec, `{kind, options}`, with the options model of the folder that owns the kind."""

import json
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from pydantic import BaseModel, Field, ValidationError

from headway.jobspec.document import Document, Path
from headway.jobspec.problem import Problem
from headway.jobspec.spec.fields import field_names
from headway.jobspec.spec.section import Section
from headway.jobspec.suggest import Hint

if TYPE_CHECKING:
    from headway.jobspec.unknown import OtherKinds


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
        from headway.jobspec.unknown import alias_or_nearest  # noqa: PLC0415 (most documents are valid)

        near = _only_kind(kind, choice, table) or alias_or_nearest(
            kind, table, "kinds", _likely(document, (*path, "kind"), table) or _with_options(choice, table)
        )
        message = f"`{kind}` is not a kind of `{field}`"
        return None, [Problem("HW208", document.name, (*path, "kind"), message, near.text, fix=near.fix)]
    beside = {key: value for key, value in choice.items() if key not in ("kind", "options")}
    others = partial(_other_kinds, kind, table)
    found, problems = validate(table[kind].options, {**beside, **(options or {})}, document, (*path, "options"), others)
    # What is next to `options` has a problem already, and is not missing in it.
    return (None, [each for each in problems if each.path in document.values or not beside]) if beside else (found, problems)


def _likely(document: Document, path: Path, table: Mapping[str, Kind]) -> str | None:
    """Return the operating system that the model of the switches has, where the document names one."""
    from headway.jobspec.example import example_in  # noqa: PLC0415 (most documents are valid)

    found = example_in(document, path) if "os" in path else None
    return None if found is None or found.value not in table else str(found.value)


def _with_options(choice: Mapping[str, Any], table: Mapping[str, Kind]) -> str | None:
    """Return the only kind that has all the options that are set."""
    options = choice.get("options")
    if not isinstance(options, dict) or not options:
        return None
    found = [name for name, each in table.items() if options.keys() <= field_names(each.options).keys()]
    return found[0] if len(found) == 1 else None


def _only_kind(kind: str, choice: Mapping[str, Any], table: Mapping[str, Kind]) -> Hint | None:
    """Return the choice that the name of a data set is meant to be, of a trainer that reads one kind of them: `kind: c4`."""
    from headway.jobspec import aliases  # noqa: PLC0415 (most documents are valid)
    from headway.jobspec.fitting import accepts  # noqa: PLC0415
    from headway.jobspec.flow import flow  # noqa: PLC0415

    if len(table) != 1 or aliases.values(kind, table):
        return None
    ((name, only),) = table.items()
    required = [key for key, info in field_names(only.options).items() if info.is_required()]
    if len(required) == 1 and not choice.get("options") and accepts(field_names(only.options)[required[0]], kind):
        return Hint(f"write `kind: {name}` and `options: {{{required[0]}: {flow(kind)}}}`")
    return Hint(f"write `{name}`, the only kind here", name)


def _other_kinds(kind: str, table: Mapping[str, Kind], option: str) -> list[str]:
    """Return the kinds but this one that have an option of this name."""
    return [name for name, each in table.items() if name != kind and option in field_names(each.options)]


def validate(
    model: type[BaseModel], data: Mapping[str, Any], document: Document, path: Path, others: "OtherKinds"
) -> tuple[BaseModel | None, list[Problem]]:
    """Return `data`, found at `path` of the document, as a `model`, or its problems."""
    try:
        return model.model_validate_json(json.dumps(data)), []
    except ValidationError as error:
        from headway.jobspec.invalid import describe  # noqa: PLC0415 (most documents are valid)

        return None, describe(error, model, document, path, others)
