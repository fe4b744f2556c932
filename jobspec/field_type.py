"""Describes the type of a field in words, from its JSON Schema: allowed values and bounds."""

from collections.abc import Mapping
from typing import get_args

from headway.jobspec.flow import flow
from headway.jobspec.forms import form
from headway.jobspec.markdown import code
from headway.jobspec.notation import bounds, notation_of
from headway.jobspec.schema import JsonSchema
from headway.jobspec.spec.section import Name

# Links to explanations elsewhere: to each definition by its name, to `NAME`, and to each quantity by its name.
Links = Mapping[str, str]

NAME = "name"
_NAME_PATTERN = get_args(Name)[1].pattern
_NULL = {"type": "null"}
_NUMBERS = {"integer": "an integer", "number": "a number"}


def field_type(schema: JsonSchema, links: Links) -> str:
    """Markdown, for example "an integer, 1 to 8"."""
    words = _words(schema, links)
    return f"{words}, {schema['$comment']}" if "$comment" in schema else words


def _words(schema: JsonSchema, links: Links) -> str:
    if "anyOf" in schema:
        words = [_words(each, links) for each in schema["anyOf"] if each != _NULL or _differs_from_null(schema)]
        return (", or " if "," in "".join(words) else " or ").join(words)
    if "$ref" in schema:
        return links[schema["$ref"].rpartition("/")[2]]
    if "const" in schema or "enum" in schema:
        return _one_of([code(flow(value)) for value in schema.get("enum", [schema.get("const")])])
    notation = notation_of(schema)
    return links[notation.name] if notation is not None else _plain(schema, links)


def _differs_from_null(schema: JsonSchema) -> bool:
    """Return whether `null` means something other than omitting the field."""
    return schema.get("default") is not None


def _plain(schema: JsonSchema, links: Links) -> str:
    match schema.get("type"):
        case "integer" | "number" as kind:
            return _joined(_NUMBERS[kind], _limits(schema, "imum"))
        case "boolean":
            return "`true` or `false`"
        case "string":
            return _text(schema, links)
        case "array":
            items = _limits(schema, "Items")
            return _joined(f"a list ({items})" if items else "a list", f"each {_words(schema['items'], links)}")
        case "object":
            return _mapping(schema, links)
        case "null":
            return "`null`"
        case _:
            return "any value"


def _one_of(words: list[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"


def _text(schema: JsonSchema, links: Links) -> str:
    pattern = schema.get("pattern")
    if pattern == _NAME_PATTERN:
        return links[NAME]
    if (words := form(pattern)) is not None:
        return _joined(words, _length(schema))
    return _joined("text", f"of the form {code(pattern)}" if pattern else "", _length(schema))


def _length(schema: JsonSchema) -> str:
    least, most = schema.get("minLength"), schema.get("maxLength")
    if most is not None:
        return f"at most {most} characters"
    return "not empty" if least else ""


def _mapping(schema: JsonSchema, links: Links) -> str:
    """Return a mapping with free keys: of their form, with values of one type."""
    for pattern, value in schema.get("patternProperties", {}).items():
        return f"a mapping of keys, each {_text({'pattern': pattern}, links)}, to {_words(value, links)}"
    return "a mapping"


def _limits(schema: JsonSchema, what: str) -> str:
    """Return the limits of a number (`imum`) or of a list's `Items`."""
    names = (f"min{what}", f"exclusiveMin{what}", f"max{what}", f"exclusiveMax{what}")
    least, above, most, below = (None if name not in schema else f"{schema[name]}" for name in names)
    return bounds(least, above, most, below)


def _joined(*parts: str) -> str:
    return ", ".join(part for part in parts if part)
