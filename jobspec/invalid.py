"""Turns Pydantic's errors into problems: what was found, what was expected, where, and what to do."""

import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel, ValidationError, WithJsonSchema
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from headway.jobspec.document import Document, Path, dotted
from headway.jobspec.flow import flow
from headway.jobspec.notation import Notation, notation_of
from headway.jobspec.problem import MAX_PROBLEMS, Problem, capped
from headway.jobspec.spec.docstrings import field_descriptions
from headway.jobspec.spec.nodes import AdapterName, Host
from headway.jobspec.spec.operation import Version
from headway.jobspec.spec.resilience import EnvName
from headway.jobspec.spec.section import Name
from headway.jobspec.spec.storage import StoreUrl
from headway.jobspec.spec.written import AUTO
from headway.jobspec.suggest import called_elsewhere, did_you_mean, listed, nearest
from headway.jobspec.units import MISSING_UNIT, NOT_A_QUANTITY

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
    "greater_than": lambda bound: f"be more than {bound['gt']}",
    "greater_than_equal": lambda bound: f"be at least {bound['ge']}",
    "less_than": lambda bound: f"be less than {bound['lt']}",
    "less_than_equal": lambda bound: f"be at most {bound['le']}",
    "string_too_short": lambda bound: f"have at least {_counted(bound['min_length'], 'character')}",
    "string_too_long": lambda bound: f"have at most {_counted(bound['max_length'], 'character')}",
    "string_pattern_mismatch": lambda bound: _form(bound["pattern"]),
    "too_short": lambda bound: f"have at least {bound['min_length']} items",
    "too_long": lambda bound: f"have at most {_counted(bound['max_length'], 'item')}",
}
_LIMITS = ("gt", "ge", "lt", "le")

# Forms of texts in words.
_WORDS: tuple[tuple[Any, str], ...] = (
    (Name, "DNS label: lower-case letters, digits and hyphens, 63 at most, with a letter or digit at both ends"),
    (StoreUrl, "URL of an object store: `s3://`, `gs://` or `az://`, then the bucket and a prefix"),
    (Version, "version: two to four numbers separated by dots"),
    (EnvName, "name of a variable: letters, digits and `_`, not starting with a digit"),
    (Host, "host name or IPv4 address, with `:PORT` unless it is 22"),
    (AdapterName, "name of an adapter: letters, digits, `-`, `_` and `.`, 63 at most, starting with a letter or digit"),
)
_FORMS: Mapping[str, str] = {"^/": "path that begins with `/`", **{get_args(text)[1].pattern: form for text, form in _WORDS}}

# The kind for `auto` where it is not supported, next to pydantic's kinds of errors.
_NOT_DECIDED = "auto"
# pydantic's suffix of a key that is not in its form, and the names of a choice's own fields (`choice.Choice`).
_KEY = "[key]"
_CHOICE = ("kind", "options")
# Names as unlike as `partition` and `options` are no slips of the pen.
_SLIP = 0.75


def describe(error: ValidationError, model: type[BaseModel], document: Document, prefix: Path = ()) -> list[Problem]:
    """Return one problem per error. `prefix` is the path of the model's data in the document."""
    found = error.errors(include_url=False)[:MAX_PROBLEMS]
    meant = {(*loc[:-1], _meant(loc, model)) for loc in _unknown_keys(found)}
    problems = [_problem(details, model, document, prefix) for details in found if not _echo(details, document, prefix, meant)]
    return capped(problems, document.name, error.error_count() - len(found))


def _echo(details: ErrorDetails, document: Document, prefix: Path, meant: set[tuple[str | int | None, ...]]) -> bool:
    """Return whether another error covers it already: a field is missing because it is misspelt, a list too short
    because of its items."""
    if details["type"] == "too_short":
        return bool(document.value((*prefix, *details["loc"])))
    return details["type"] == "missing" and details["loc"] in meant


def _meant(loc: Path, model: type[BaseModel]) -> str | None:
    return nearest(str(loc[-1]), field_names(_owner(model, loc[:-1]) or model))


def lacking(name: str, model: type[BaseModel], document: Document) -> Problem:
    """Return the problem of a missing field that its model makes optional, and that is required here."""
    return _missing((name,), model, document, ())


def unknown_keys(error: ValidationError) -> list[Path]:
    """Paths of the fields that the model does not have."""
    return _unknown_keys(error.errors(include_url=False))


def _unknown_keys(found: list[ErrorDetails]) -> list[Path]:
    return [details["loc"] for details in found if details["type"] == "extra_forbidden"]


def field_names(model: type[BaseModel]) -> dict[str, FieldInfo]:
    """Return the model's fields by the name that they have in a document."""
    return {info.alias or name: info for name, info in model.model_fields.items()}


def _problem(details: ErrorDetails, model: type[BaseModel], document: Document, prefix: Path) -> Problem:
    if details["type"] == "extra_forbidden":
        return _unknown(details["loc"], model, document, prefix)
    if details["type"] == "missing":
        return _missing(details["loc"], model, document, prefix)
    if details["loc"][-1:] == (_KEY,):
        return _wrong_key(details, document, (*prefix, *details["loc"][:-1]))
    return _wrong_value(details, model, document, prefix)


def _unknown(loc: Path, model: type[BaseModel], document: Document, prefix: Path) -> Problem:
    owner, key, path = _owner(model, loc[:-1]) or model, str(loc[-1]), (*prefix, *loc)
    hint = _where(key, owner, model)
    return Problem("HW201", document.name, path, f"`{key}` is not a field of {_place(path[:-1], owner)}", hint, at_key=True)


def _where(key: str, owner: type[BaseModel], model: type[BaseModel]) -> str:
    """Return the remedy for a field that `owner` does not have."""
    fields = field_names(owner)
    if tuple(fields) == _CHOICE and nearest(key, fields, _SLIP) is None:
        return f"`{key}` belongs under `options`"
    elsewhere = list(_homes(key, model)) if nearest(key, fields) is None else []
    known = called_elsewhere(owner.__name__, key) or (f"`{key}` belongs in `{elsewhere[0]}`" if elsewhere else None)
    return known or did_you_mean(key, fields, "fields")


def _homes(key: str, model: type[BaseModel]) -> Iterator[str]:
    """Yield names of the sections right below `model` that have a field `key`."""
    for name, info in field_names(model).items():
        section = _model_of(info.annotation)
        if section is not None and key in field_names(section):
            yield name


def _missing(loc: Path, model: type[BaseModel], document: Document, prefix: Path) -> Problem:
    owner, key, path = _owner(model, loc[:-1]) or model, str(loc[-1]), (*prefix, *loc)
    hint = _about(loc, model)
    return Problem("HW202", document.name, path[:-1], f"`{key}` is missing from {_place(path[:-1], owner)}", hint, at_key=True)


def _wrong_key(details: ErrorDetails, document: Document, path: Path) -> Problem:
    """Return the problem of a wrong key of a mapping with free keys."""
    form = _FORMS.get(details.get("ctx", {}).get("pattern", ""))
    wrong = f"is not a {form}" if form else f"must {_bound(details, None) or details['msg']}"
    return Problem("HW204", document.name, path, f"the key `{path[-1]}` of `{dotted(path[:-1])}` {wrong}", at_key=True)


def _wrong_value(details: ErrorDetails, model: type[BaseModel], document: Document, prefix: Path) -> Problem:
    loc, context = details["loc"], details.get("ctx", {})
    kind = _NOT_DECIDED if details["input"] == AUTO and details["type"] in {*_TYPES, NOT_A_QUANTITY} else details["type"]
    path = _written(document, (*prefix, *loc))
    name = f"`{dotted(path)}`"
    info = field_of(model, loc)
    found = _found(document, path)
    if kind == _NOT_DECIDED:
        hint = _about(loc, model)
        return Problem("HW203", document.name, path, f"{name}: `auto` is not supported here; write the value itself", hint)
    if kind == MISSING_UNIT:
        message = f"{name} must be {context['what']} with its unit, found {found}"
        return Problem("HW213", document.name, path, message, f"write it as {context['examples']}")
    if kind == NOT_A_QUANTITY:
        message = f"{name} must be {context['what']}, found {found}"
        return Problem("HW204", document.name, path, message, f"write it as {context['examples']}")
    if kind in _TYPES:
        hint = _in_quotes(document, path) if kind == "string_type" else None
        hint = hint or _about(loc, model) or _of_key(path)
        return Problem("HW203", document.name, path, f"{name} must be {_TYPES[kind]}, found {found}", hint)
    if kind == "literal_error":
        allowed = _literals(info)
        hint = did_you_mean(str(details["input"]), allowed, "allowed values")
        return Problem("HW205", document.name, path, f"{name} must be one of {listed(allowed)}, found {found}", hint)
    bound = _bound(details, info)
    message = f"{name} must {bound}, found {found}" if bound else f"{name}: {details['msg']}, found {found}"
    return Problem("HW204", document.name, path, message, _about(loc, model))


def _bound(details: ErrorDetails, info: FieldInfo | None) -> str | None:
    """Return what the value must be, a limit of a quantity in its unit; None for an error without a bound."""
    kind, context = details["type"], details.get("ctx", {})
    notation = None if info is None else _notation(info.annotation, *info.metadata)
    write: Callable[[Any], str] = notation.write if notation else _number
    limits = {name: write(context[name]) for name in _LIMITS if name in context}
    return _BOUNDS[kind]({**context, **limits}) if kind in _BOUNDS else None


def _notation(*annotations: Any) -> Notation | None:
    """Return the notation of the quantity in one of the annotations; None if there is none."""
    for each in annotations:
        inner = notation_of(each.json_schema or {}) if isinstance(each, WithJsonSchema) else _notation(*get_args(each))
        if inner is not None:
            return inner
    return None


def _written(document: Document, path: Path) -> Path:
    """Return the position of the value; of a mapping that is written as its name alone, the name's."""
    return path[:-1] if path not in document.values and path[:-1] in document.scalars else path


def _found(document: Document, path: Path) -> str:
    if document.value(path) is None and path not in document.scalars:
        return "nothing"
    source = document.source(path)
    if source == "":
        return "nothing"
    return f"`{source}`" if path in document.scalars else source


def _form(pattern: str) -> str:
    return f"be a {_FORMS[pattern]}" if pattern in _FORMS else f"have the form `{pattern}`"


def _number(number: float) -> str:
    return f"{number:g}" if isinstance(number, float) else str(number)


def _counted(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _in_quotes(document: Document, path: Path) -> str | None:
    """Return how to write a number or a boolean where text is required; None for other values."""
    if document.value(path) is None or path not in document.scalars:
        return None
    key = f"{path[-1]}: " if isinstance(path[-1], str) else ""
    return f'put it in quotes: `{key}"{document.source(path)}"`'


def _of_key(path: Path) -> str | None:
    """Return the remedy for an empty value in a mapping with free keys."""
    return f'leave `{path[-1]}` out, or write `{path[-1]}: ""` for an empty text' if isinstance(path[-1], str) else None


def _about(loc: Path, model: type[BaseModel]) -> str | None:
    """Return the description of the field at `loc`, with an example; of an item, that of its list."""
    owner, name = _holder(model, loc)
    if owner is None or name not in field_descriptions(owner):
        return None
    description, info = _as_clause(field_descriptions(owner)[name]), field_names(owner)[name]
    return f"{description}, for example `{name}: {_example(info)}`" if loc[-1] == name and info.examples else description


def _as_clause(sentence: str) -> str:
    """Return it without its full stop and capital; `CPU cores` keeps its own."""
    first = sentence[:1] if sentence[1:2].isupper() else sentence[:1].lower()
    return first + sentence[1:].rstrip(".")


def _example(info: FieldInfo) -> str:
    """Return the field's first example in YAML's flow style."""
    return flow((info.examples or [None])[0])


def _place(path: Path, owner: type[BaseModel]) -> str:
    return f"`{dotted(path)}`" if path else f"a {owner.__name__}"


def field_of(model: type[BaseModel], loc: Path) -> FieldInfo | None:
    """Return the field that holds the value at `loc`, below a `model`: for an item of a list, the list's."""
    owner, name = _holder(model, loc)
    return None if owner is None else field_names(owner).get(name)


def _holder(model: type[BaseModel], loc: Path) -> tuple[type[BaseModel] | None, str]:
    """Return the model and the name of the field that holds the value at `loc`: for an item of a list, the list's."""
    names = [segment for segment in loc if isinstance(segment, str)]
    return (_owner(model, tuple(names[:-1])), names[-1]) if names else (None, "")


def _owner(model: type[BaseModel], loc: Path) -> type[BaseModel] | None:
    """Return the model of the mapping at `loc`."""
    owner: type[BaseModel] | None = model
    for segment in loc:
        if isinstance(segment, str) and owner is not None:
            info = field_names(owner).get(segment)
            owner = None if info is None else _model_of(info.annotation)
    return owner


def _model_of(annotation: Any) -> type[BaseModel] | None:
    """Return the model inside `X`, `X | None` or `tuple[X, ...]`."""
    if isinstance(annotation, type) and not isinstance(annotation, types.GenericAlias) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for found in map(_model_of, get_args(annotation)) if found is not None), None)


def _literals(info: FieldInfo | None) -> list[str]:
    """Return what the field's `Literal` allows, also inside a tuple or with None."""
    return [] if info is None else list(_literal_values(info.annotation))


def _literal_values(annotation: Any) -> Iterator[str]:
    if get_origin(annotation) is Literal:
        yield from map(str, get_args(annotation))
    else:
        for inner in get_args(annotation):
            yield from _literal_values(inner)
