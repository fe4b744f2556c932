"""The specs as JSON Schema (2020-12), with the options of every kind: what an editor needs to complete and judge a document."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, models_json_schema
from pydantic_core.core_schema import DictSchema

from headway.jobspec.choice import Choice, Kind
from headway.jobspec.invalid import field_names
from headway.jobspec.parse import MODELS
from headway.jobspec.spec.cluster import Cluster
from headway.jobspec.spec.fabric import Switches
from headway.jobspec.spec.job import DEFAULT_TRAINER, TrainingJob

DIALECT = "https://json-schema.org/draft/2020-12/schema"

JsonSchema = dict[str, Any]
Table = Mapping[str, Kind]

_DEFINITIONS = "#/$defs/"


@dataclass(frozen=True)
class Tables:
    """The kinds of every open choice; `data` are those that each trainer reads."""

    schedulers: Table
    providers: Table
    switches: Table
    trainers: Table
    data: Mapping[str, Table]

    def options(self) -> list[type[BaseModel]]:
        """The options models of all kinds."""
        tables = (self.schedulers, self.providers, self.switches, self.trainers, *self.data.values())
        return [kind.options for table in tables for kind in table.values()]


def document_schema(tables: Tables, kind: str | None = None) -> JsonSchema:
    """The schema of documents of that kind, by itself; without one, of all documents, told apart by their `kind`."""
    definitions = _definitions(tables)
    top = _any_document(definitions) if kind is None else definitions[kind]
    used = set(_reached(top, definitions))
    return {"$schema": DIALECT, **top, "$defs": {name: found for name, found in definitions.items() if name in used}}


class _Strict(GenerateJsonSchema):
    """Pydantic's schema without titles of fields, which repeat their names, and with no keys beside those of the wanted form."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False

    def dict_schema(self, schema: DictSchema) -> JsonSchema:
        found = super().dict_schema(schema)
        return {**found, "additionalProperties": False} if "patternProperties" in found else found


def _definitions(tables: Tables) -> dict[str, JsonSchema]:
    """Every section and every kind's options by name, and each choice by the name of its field."""
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
    definitions |= {f"data.{trainer}": _choice(shape, table, names) for trainer, table in tables.data.items()}
    definitions[names[TrainingJob]] = _job(definitions[names[TrainingJob]], tables.data)
    return definitions


def _job(schema: JsonSchema, trainers: Iterable[str]) -> JsonSchema:
    """A job whose data is what its trainer reads, and whose cluster may be a single name."""
    properties = schema["properties"]
    data = {key: value for key, value in properties["data"].items() if key != "$ref"}
    return {
        **schema,
        "properties": {**properties, "cluster": _one_or_many(properties["cluster"]), "data": data},
        "allOf": [
            {"if": _with_trainer(name), "then": _property("data", {"$ref": f"{_DEFINITIONS}data.{name}"})} for name in trainers
        ],
    }


def _one_or_many(schema: JsonSchema) -> JsonSchema:
    """A list, or its only item by itself."""
    about = {key: schema[key] for key in ("description", "examples")}
    many = {key: value for key, value in schema.items() if key not in about}
    return {"anyOf": [schema["items"], many], **about}


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
    """The options of one kind: they may be left out where the kind wants none."""
    fields = field_names(model)
    wanted = [name for name, info in fields.items() if info.is_required()]
    example = {name: (fields[name].examples or [None])[0] for name in wanted or list(fields)[:1]}
    then = _property("options", {"$ref": reference, "examples": [example]})
    return {**then, "required": ["options"]} if wanted else then


def _any_document(definitions: Mapping[str, JsonSchema]) -> JsonSchema:
    """Any document: its kind says which definition is its own."""
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
    """A job that this trainer runs, which the default one does unasked."""
    condition = _property("trainer", _of_kind(name))
    return condition if name == DEFAULT_TRAINER else {**condition, "required": ["trainer"]}


def _property(name: str, schema: JsonSchema) -> JsonSchema:
    return {"properties": {name: schema}}


def _pointed(schema: Any, old: str, new: str) -> Any:
    """The schema with `new` wherever it refers to `old`."""
    if isinstance(schema, dict):
        return {key: new if (key, value) == ("$ref", old) else _pointed(value, old, new) for key, value in schema.items()}
    return [_pointed(each, old, new) for each in schema] if isinstance(schema, list) else schema


def _reached(schema: Any, definitions: Mapping[str, JsonSchema]) -> Iterator[str]:
    """Names of the definitions that the schema refers to, and those refer to; none of them refers to itself."""
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
