"""Fits a value as other programs write it to a field: their word for it, an item without its list, a value without its section."""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, get_args

from pydantic import TypeAdapter, ValidationError, WithJsonSchema
from pydantic.fields import FieldInfo

from headway.jobspec import aliases, repair
from headway.jobspec.notation import notation_of, write_parts
from headway.jobspec.spec.fields import field_names, literals_of, model_of
from headway.jobspec.units import parse_seconds

# The units of times in the names that other programs give to fields.
_UNITS: Mapping[str, str] = {"seconds": "s", "_sec": "s", "_secs": "s", "minutes": "m", "_mins": "m", "hours": "h", "days": "d"}
# What sections of other programs call the one value that is a field here.
_MODES = ("mode", "type", "kind", "granularity", "strategy", "level", "stage", "name")
# The field that people write in place of its whole section: `scheduler: slurm`, `model: llama-3.1-8b`.
_SHORT = ("kind", "preset", "key", "budget", "leaf", "compute", "sharding")
# Of these, the ones that are words.
KIND_OR_PRESET = ("kind", "preset")
# A kind, or the name of a preset.
_KIND = re.compile(r"[A-Za-z0-9][\w.-]*")
# Names of the byte that holds the DSCP and the bits of ECN.
_TRAFFIC_CLASS = ("tos", "trafficclass", "tc", "ncclibtc", "dsfield", "tosbyte")
# Slurm's notation for a number of GPUs.
_GRES = re.compile(r"gpu(?::[\w.-]+)?:([0-9]{1,4})")
# Validators of fields, each with its field, which has no hash.
_ADAPTERS: dict[int, tuple[FieldInfo, TypeAdapter[Any]]] = {}


def accepts(info: FieldInfo, value: Any) -> bool:
    """Return whether the field takes the value."""
    try:
        # As documents are read: a list is a tuple, and "8" is no integer.
        _adapter(info).validate_json(json.dumps(value), strict=True)
    except (ValidationError, TypeError, ValueError):
        return False
    return True


def _adapter(info: FieldInfo) -> TypeAdapter[Any]:
    """Return the field's validator; each is kept, since making one takes milliseconds."""
    if id(info) not in _ADAPTERS:
        form: Any = Annotated[info.annotation, *info.metadata] if info.metadata else info.annotation
        _ADAPTERS[id(info)] = info, TypeAdapter(form)
    return _ADAPTERS[id(info)][1]


def _translated(info: FieldInfo | None, value: Any, key: str) -> Any:
    """Return the field's value for one that other programs write in a field called `key`; the value itself if no single one is meant."""
    if info is None or value is None or isinstance(value, dict | list) or (isinstance(value, bool) and accepts(info, value)):
        return value
    if aliases.squeezed(key) in _TRAFFIC_CLASS and isinstance(value, int) and 0 <= value >> 2 < 64 and accepts(info, value >> 2):
        # DSCP is the upper six bits of the byte (RFC 3168, section 22).
        return value >> 2
    allowed = literals_of(info)
    found = [] if str(value) in allowed else aliases.values(str(value), allowed)
    if len(found) == 1:
        return found[0]
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and (gres := _GRES.fullmatch(value)) is not None and accepts(info, int(gres[1])):
        return int(gres[1])
    notation = next((each for each in map(notation_of, _json_schemas(info)) if each is not None), None)
    if notation is None or accepts(info, value):
        return value
    unit = next((unit for end, unit in _UNITS.items() if aliases.normal(key).endswith(end)), "")
    hint = repair.quantity(notation.name, f"{value}{unit}")
    text = hint.fix if hint is not None and hint.fix is not None else f"{value}{unit}"
    if not accepts(info, text):
        return value
    return write_parts(round(parse_seconds(text))) if notation.name == "time" and unit else text


def fitted(info: FieldInfo | None, value: Any, key: str) -> Any:
    """Return the value in the form of the field, as far as one is meant: other programs' word for it, the only item of a list or the list
    of one item, the section that the value is short for; else the value itself."""
    meant = _translated(info, value, key)
    if info is None or value is None or accepts(info, meant):
        return meant
    forms: list[Any] = [[meant]] if not isinstance(meant, list) else meant[:1] if len(meant) == 1 else []
    if isinstance(meant, list) and (pairs := repair.pairs(meant)) is not None:
        forms = [pairs, *forms]
    if isinstance(meant, dict):
        # torchtitan's `{mode: selective}`.
        inside = [meant[name] for name in _MODES if name in meant] or (list(meant.values()) if len(meant) == 1 else [])
        forms += [_translated(info, each, key) for each in inside if not isinstance(each, dict)]
    if (
        isinstance(value, str)
        and (found := repair.number(value, whole=accepts(info, 1) and not accepts(info, 1.5)))
        and found.fix
    ):
        forms.append(repair.plain_number(found.fix))
    if (short := _in_section(info, meant, key)) is not None:
        forms = [short, [short], *forms]
    return next((each for each in forms if accepts(info, each)), meant)


def _in_section(info: FieldInfo, value: Any, key: str) -> dict[str, Any] | None:
    """Return the section that a value is short for, also in another program's word: `ddp` is `{sharding: none}`."""
    section = model_of(info.annotation)
    fields = {} if section is None else field_names(section)
    if (name := short_of(info, value)) is not None:
        return {name: value}
    translated = {name: _translated(fields[name], value, key) for name in _SHORT if name in fields and name not in KIND_OR_PRESET}
    return next(({name: each} for name, each in translated.items() if each != value and accepts(fields[name], each)), None)


def short_of(info: FieldInfo | None, value: Any) -> str | None:
    """Return the field that people write in place of the whole section, or of a whole item if the field is a list of sections, and that
    takes the value."""
    section = None if info is None else model_of(info.annotation)
    fields = {} if section is None else field_names(section)
    for name in _SHORT:
        is_word = name not in KIND_OR_PRESET or (isinstance(value, str) and _KIND.fullmatch(value) is not None)
        if name in fields and is_word and accepts(fields[name], value):
            return name
    return None


def _json_schemas(info: FieldInfo) -> Iterator[Mapping[str, Any]]:
    """Yield the schemas of the field's types."""
    for each in (*info.metadata, *_inner(info.annotation)):
        if isinstance(each, WithJsonSchema):
            yield each.json_schema or {}


def _inner(annotation: Any) -> Iterator[Any]:
    for each in get_args(annotation):
        yield each
        yield from _inner(each)
