"""Builds the JSON Schema (2020-12) of the specs with the options of every kind, for completion and validation in editors."""

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from msgspec import Struct
from msgspec import field as struct_field
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema, models_json_schema
from pydantic_core.core_schema import DictSchema, ModelSchema

from headway.jobspec.catalog.gpus import gpus
from headway.jobspec.catalog.models import models
from headway.jobspec.catalog.nics import nics
from headway.jobspec.catalog.switches import switches
from headway.jobspec.choice import Choice, Kind
from headway.jobspec.compose import OWN
from headway.jobspec.forms import form
from headway.jobspec.notation import bounds, notation_of
from headway.jobspec.parse import MODELS
from headway.jobspec.spec.cluster import Cluster
from headway.jobspec.spec.docstrings import field_descriptions
from headway.jobspec.spec.fabric import Switches
from headway.jobspec.spec.fields import field_names
from headway.jobspec.spec.job import DEFAULT_TRAINER, TrainingJob

DIALECT = "https://json-schema.org/draft/2020-12/schema"

JsonSchema = dict[str, Any]
Table = Mapping[str, Kind]

_DEFINITIONS = "#/$defs/"
_NULL = {"type": "null"}
_BOUNDS = ("ge", "gt", "le", "lt")
# Keywords with values of documents.
_DATA = ("const", "default", "enum", "examples")
# Fields that name something in the catalogue.
_CATALOGUES: Mapping[tuple[str, str], Callable[[], Collection[str]]] = {
    ("Model", "preset"): models,
    ("NodeGroup", "gpu"): gpus,
    ("GpuModel", "like"): gpus,
    ("NodeGroup", "nic"): nics,
    ("Switches", "model"): switches,
}


class Tables(Struct, frozen=True):
    """The kinds of every open choice; of each trainer the kinds of data that it reads, the fields of a job that it needs, and those
    that it takes one way only: the values that say so, and what it does instead of all others.
    """

    schedulers: Table
    providers: Table
    switches: Table
    trainers: Table
    data: Mapping[str, Table]
    needs: Mapping[str, tuple[str, ...]]
    only: Mapping[str, Mapping[tuple[str, ...], tuple[tuple[Any, ...], str]]] = struct_field(default_factory=dict)

    def options(self) -> list[type[BaseModel]]:
        """Return the options models of all kinds."""
        tables = (self.schedulers, self.providers, self.switches, self.trainers, *self.data.values())
        return [kind.options for table in tables for kind in table.values()]


def document_schema(tables: Tables, kind: str | None = None) -> JsonSchema:
    """Return the schema of documents of that kind, alone; without one, of all documents, distinguished by their `kind`."""
    definitions = _definitions(tables)
    top = _any_document(definitions) if kind is None else definitions[kind]
    used = set(_reached(top, definitions))
    found = {**top, "$defs": {name: schema for name, schema in definitions.items() if name in used}}
    return {"$schema": DIALECT, **_with_messages(found)}


def _with_messages(schema: Any) -> Any:
    """Add what editors show in place of a regular expression (`patternErrorMessage` of VS Code's JSON and YAML services)."""
    if isinstance(schema, list):
        return [_with_messages(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    found = {key: value if key in _DATA else _with_messages(value) for key, value in schema.items()}
    pattern, notation = schema.get("pattern"), notation_of({"pattern": schema.get("pattern")})
    if notation is not None:
        examples = " or ".join(f"`{example}`" for example in notation.examples)
        found["patternErrorMessage"] = f"must be {notation.article} {notation.name}, for example {examples}"
    elif (words := form(pattern)) is not None:
        found["patternErrorMessage"] = f"must be {words}"
    return found


class _Strict(GenerateJsonSchema):
    """Pydantic's schema with the docstrings of fields and without their titles, which repeat their names.

    A mapping accepts only keys of the required form.
    """

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False

    def sort(self, value: JsonSchema, parent_key: str | None = None) -> JsonSchema:
        """Return the value unchanged: Pydantic would sort the keys of examples."""
        return value

    def model_schema(self, schema: ModelSchema) -> JsonSchema:
        found = super().model_schema(schema)
        model: type[BaseModel] = schema["cls"]
        properties = {name: _as_written(found["properties"][name], info) for name, info in field_names(model).items()}
        for name in properties.keys() & {field for owner, field in _CATALOGUES if owner == model.__name__}:
            first = properties[name]["examples"]
            others = [each for each in _CATALOGUES[model.__name__, name]() if each not in first]
            properties[name]["examples"] = [*first, *others]
        for name, text in field_descriptions(model).items():
            properties[name]["description"] = text
        return {**found, "properties": properties}

    def dict_schema(self, schema: DictSchema) -> JsonSchema:
        found = super().dict_schema(schema)
        return {**found, "additionalProperties": False} if "patternProperties" in found else found


def _as_written(schema: JsonSchema, info: FieldInfo) -> JsonSchema:
    """Return a field with a quantity: its default as a document has it, its bounds, which no pattern can express, as a
    comment."""
    notation = notation_of(schema)
    if notation is None:
        return schema
    limits = {bound: notation.write(getattr(each, bound)) for each in info.metadata for bound in _BOUNDS if hasattr(each, bound)}
    comment = {"$comment": bounds(*map(limits.get, _BOUNDS))} if limits else {}
    default = {"default": notation.write(info.default)} if schema.get("default") is not None else {}
    return {**_without_bounds(schema), **comment, **default}


def _without_bounds(schema: JsonSchema) -> JsonSchema:
    """Remove the bounds of the value, which Pydantic writes in addition to the pattern of its text."""
    found = {key: value for key, value in schema.items() if key not in _BOUNDS}
    return {**found, "anyOf": [_without_bounds(each) for each in found["anyOf"]]} if "anyOf" in found else found


def _definitions(tables: Tables) -> dict[str, JsonSchema]:
    """Return every section and every kind's options by name, and each choice by the name of its field."""
    models = [*MODELS.values(), Switches, Choice, *tables.options()]
    references, found = models_json_schema([(model, "validation") for model in models], schema_generator=_Strict)
    names = {model: reference["$ref"].removeprefix(_DEFINITIONS) for (model, _), reference in references.items()}
    definitions: dict[str, JsonSchema] = found["$defs"]
    shape = definitions[names[Choice]]
    for model, field, table in (
        (Cluster, "scheduler", tables.schedulers),
        (Cluster, "provider", tables.providers),
        (Switches, "os", tables.switches),
        (TrainingJob, "trainer", tables.trainers),
    ):
        definitions[field] = _choice(shape, table, names)
        properties = definitions[names[model]]["properties"]
        properties[field] = _pointed(properties[field], _DEFINITIONS + names[Choice], _DEFINITIONS + field)
    definitions |= {f"data.{trainer}": _choice(shape, table, names) for trainer, table in tables.data.items() if table}
    definitions[names[TrainingJob]] = _job(definitions[names[TrainingJob]], tables)
    for document in MODELS.values():
        if "extends" in document.model_fields:
            _allow_parts(names[document], definitions)
    return definitions


def _allow_parts(name: str, definitions: dict[str, JsonSchema]) -> None:
    """Define the document again for parts: one that extends another, or is only a base, may omit fields that the other has,
    and remove its values by null."""
    whole = definitions[name]
    definitions[f"{name}.whole"] = whole
    definitions[f"{name}.part"] = _part(whole, definitions)
    definitions[name] = {
        "type": "object",
        "properties": {key: whole["properties"][key] for key in ("apiVersion", "kind", "extends", "partial")},
        "required": ["apiVersion", "kind"],
        "if": {"anyOf": [_said("extends", []), _said("partial", False)]},
        "then": {"$ref": f"{_DEFINITIONS}{name}.part"},
        "else": {"$ref": f"{_DEFINITIONS}{name}.whole"},
    }


def _part(schema: Any, definitions: dict[str, JsonSchema]) -> Any:
    """Return the schema without required fields."""
    if isinstance(schema, dict):
        return {key: _part_of(key, value, definitions) for key, value in schema.items() if key != "required"}
    return [_part(each, definitions) for each in schema] if isinstance(schema, list) else schema


def _part_of(keyword: str, value: Any, definitions: dict[str, JsonSchema]) -> Any:
    match keyword:
        case "properties":
            parts = {name: _part(schema, definitions) for name, schema in value.items()}
            return {name: part if name in OWN else _or_null(part) for name, part in parts.items()}
        case "patternProperties":
            return {pattern: _or_null(_part(schema, definitions)) for pattern, schema in value.items()}
        case "items":
            # A list is never completed.
            return value
        case "if":
            # Another document's content decides nothing here; of alternatives the first names what the others stand for.
            named = value["anyOf"][0] if "anyOf" in value else value
            return {**named, "required": list(named["properties"])}
        case "$ref":
            return _part_reference(value, definitions)
    return _part(value, definitions)


def _or_null(schema: JsonSchema) -> JsonSchema:
    """Return the schema of a value, and of null."""
    if "$ref" in schema:
        return {"anyOf": [{"$ref": schema["$ref"]}, _NULL], **{key: value for key, value in schema.items() if key != "$ref"}}
    if "anyOf" in schema:
        return {**schema, "anyOf": [*(each for each in schema["anyOf"] if each != _NULL), _NULL]}
    kinds = schema.get("type", [])
    nullable = {"type": [*dict.fromkeys([kinds] if isinstance(kinds, str) else kinds), "null"]} if kinds else {}
    choices = {"enum": [*schema["enum"], None]} if "enum" in schema else {}
    return {**schema, **nullable, **choices}


def _part_reference(reference: str, definitions: dict[str, JsonSchema]) -> str:
    """Return what to refer to in a part: the same where nothing of it must be there."""
    name = reference.removeprefix(_DEFINITIONS)
    part = _part(definitions[name], definitions)
    if part == definitions[name]:
        return reference
    definitions[f"{name}.part"] = part
    return f"{reference}.part"


def _said(field: str, nothing: Any) -> JsonSchema:
    """Return a document with the field, and not with the value that means the same as none."""
    return {**_property(field, {"not": {"const": nothing}}), "required": [field]}


def _job(schema: JsonSchema, tables: Tables) -> JsonSchema:
    """Return a job that has what its trainer needs and data that it reads."""
    properties = schema["properties"]
    data = {key: value for key, value in properties["data"].items() if key != "anyOf"}
    return {
        **schema,
        "properties": {**properties, "data": data},
        "allOf": [
            {"anyOf": [{"required": [name]} for name in ("run", "trainer", "data")]},
            *({"if": _with_trainer(name), "then": _of_trainer(name, tables)} for name in tables.data),
        ],
    }


def _of_trainer(name: str, tables: Tables) -> JsonSchema:
    """Return what a job must have for this trainer; a field that it does not need may be null, as if it were left out."""
    kinds = [{"$ref": f"{_DEFINITIONS}data.{name}"}] if tables.data[name] else []
    there = {field: {"not": {"type": "null"}} for field in tables.needs[name]}
    data = _property("data", {"anyOf": [*kinds, {"type": "null"}]})
    return {**data, "allOf": [{"properties": there, "required": list(there)}]}


def _choice(shape: JsonSchema, table: Table, names: Mapping[Any, str]) -> JsonSchema:
    """`{kind, options}` with the table's kinds; what the options may be follows from the kind."""
    kind, options = shape["properties"]["kind"], shape["properties"]["options"]
    return {
        "type": "object",
        "properties": {
            "kind": {"enum": list(table), "description": kind["description"], "examples": list(table)},
            "options": {"description": options["description"]},
        },
        "required": ["kind"],
        "additionalProperties": False,
        "allOf": [
            {"if": _of_kind(name), "then": _options(each.options, _DEFINITIONS + names[each.options])}
            for name, each in table.items()
        ],
    }


def _options(model: type[BaseModel], reference: str) -> JsonSchema:
    """Return the options of one kind: they may be omitted if the kind requires none."""
    fields = field_names(model)
    wanted = [name for name, info in fields.items() if info.is_required()]
    example = {name: (fields[name].examples or [None])[0] for name in wanted or list(fields)[:1]}
    then = _property("options", {"$ref": reference, "examples": [example]})
    return {**then, "required": ["options"]} if wanted else then


def _any_document(definitions: Mapping[str, JsonSchema]) -> JsonSchema:
    """Return the schema of any document: its kind selects the definition."""
    head = definitions[next(iter(MODELS))]["properties"]
    return {
        "title": "headway document",
        "type": "object",
        "properties": {
            "apiVersion": head["apiVersion"],
            "kind": {"enum": list(MODELS), "description": head["kind"]["description"], "examples": list(MODELS)},
        },
        "required": ["apiVersion", "kind"],
        "allOf": [{"if": _of_kind(name), "then": {"$ref": _DEFINITIONS + name}} for name in MODELS],
    }


def _of_kind(name: str) -> JsonSchema:
    return {**_property("kind", {"const": name}), "required": ["kind"]}


def _with_trainer(name: str) -> JsonSchema:
    """Return a job that this trainer runs: it is named, or `run` or `data` stand for it."""
    named = {**_property("trainer", _of_kind(name)), "required": ["trainer"]}
    if name == DEFAULT_TRAINER:
        return {"anyOf": [named, {"required": ["data"], "not": {"anyOf": [{"required": ["trainer"]}, {"required": ["run"]}]}}]}
    return {"anyOf": [named, {"required": ["run"]}]} if name == "script" else named


def _property(name: str, schema: JsonSchema) -> JsonSchema:
    return {"properties": {name: schema}}


def _pointed(schema: Any, old: str, new: str) -> Any:
    """Return the schema with `new` wherever it refers to `old`."""
    if isinstance(schema, dict):
        return {key: new if (key, value) == ("$ref", old) else _pointed(value, old, new) for key, value in schema.items()}
    return [_pointed(each, old, new) for each in schema] if isinstance(schema, list) else schema


def _reached(schema: Any, definitions: Mapping[str, JsonSchema]) -> Iterator[str]:
    """Yield names of the definitions that the schema refers to, and those refer to; none of them refers to itself."""
    if isinstance(schema, dict):
        if "$ref" in schema:
            name = schema["$ref"].removeprefix(_DEFINITIONS)
            yield name
            yield from _reached(definitions[name], definitions)
        for value in schema.values():
            yield from _reached(value, definitions)
    elif isinstance(schema, list):
        for each in schema:
            yield from _reached(each, definitions)
