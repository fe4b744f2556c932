"""Defines values that may be written in a shorter form than they are kept, or left to headway as `auto`."""

from typing import Annotated, Any

from msgspec import Struct
from pydantic import BeforeValidator, Field, GetJsonSchemaHandler, StringConstraints
from pydantic_core import CoreSchema

AUTO = "auto"


def one_or_many(value: Any) -> Any:
    """Return a single text in place of a list of one."""
    return (value,) if isinstance(value, str) else tuple(value) if isinstance(value, list) else value


class OrAuto(Struct, frozen=True):
    """Marks a field that may be `auto` in a document. Its model never holds `auto`: `stand_in` is read until a value is decided."""

    stand_in: Any = None

    def __get_pydantic_json_schema__(self, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        schema = handler(core_schema)
        return {"anyOf": [*schema.get("anyOf", [schema]), {"const": AUTO}]}


class OrRange:
    """Marks a number that may be `{min, max}` in a document, of which the model holds the larger one (jobspec/short.py)."""

    def __get_pydantic_json_schema__(self, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        number = handler(core_schema)
        both = {"type": "object", "properties": {"min": number, "max": number}, "required": ["min", "max"]}
        return {"anyOf": [number, {**both, "additionalProperties": False}]}


_Base = Annotated[str, StringConstraints(min_length=1)]
_Bases = Annotated[tuple[_Base, ...], Field(max_length=8)]

# Documents that one extends, by their paths from it.
Bases = Annotated[_Bases, BeforeValidator(one_or_many, json_schema_input_type=_Base | _Bases)]
