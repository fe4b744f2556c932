"""Finds what an unknown field is meant to be: a misspelt field, another program's name for one, or a field of another section."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, get_args

from pydantic import BaseModel, TypeAdapter, ValidationError, WithJsonSchema
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from headway.jobspec import aliases, repair
from headway.jobspec.document import Document, Path
from headway.jobspec.flow import flow
from headway.jobspec.notation import notation_of, write_parts
from headway.jobspec.spec.docstrings import field_descriptions
from headway.jobspec.spec.fields import field_names, field_of, literals_of, model_of, owner_of
from headway.jobspec.suggest import Hint, did_you_mean, joined_or, listed, nearest
from headway.jobspec.units import parse_seconds

# Names as unlike as `partition` and `precision`, or `vlan` and `planes`, are no typing errors.
_SLIP = 0.72
# The names of a choice's own fields (`choice.Choice`).
_CHOICE = ("kind", "options")
# The head of Kubernetes' documents, which people expect of a document with `apiVersion` and `kind`.
HEAD = ("metadata", "spec")
# What is listed is read: a section with more fields is described in docs/spec.md.
_LISTED = 12
# What other programs call the kind of a choice.
_KIND_NAMES = ("type", "name", "class", "backend", "driver")
# The units of times in the names that other programs give to fields.
_UNITS: Mapping[str, str] = {"seconds": "s", "_sec": "s", "_secs": "s", "minutes": "m", "_mins": "m", "hours": "h", "days": "d"}
# What the end of a key may mean as the unit of its value, the likeliest first.
_UNITS_IN_KEYS: Mapping[str, tuple[str, ...]] = {
    **{unit: (f"{unit[0].upper()}B", f"{unit[0].upper()}B/s") for unit in ("kb", "mb", "gb", "tb")},
    **{f"{unit}ib": (f"{unit.upper()}iB", f"{unit.upper()}iB/s") for unit in "kmgt"},
    **{unit: (f"{unit[0].upper()}b/s", f"{unit[0].upper()}B/s") for unit in ("mbps", "gbps", "tbps")},
    **{word: (unit,) for unit, words in {"ms": "ms msec millis", "s": "s sec secs seconds"}.items() for word in words.split()},
    **{
        word: (unit,)
        for unit, words in {"m": "min mins minutes", "h": "h hr hrs hours", "d": "days"}.items()
        for word in words.split()
    },
    **dict.fromkeys(("m", "meters", "metres"), ("m",)),
    **dict.fromkeys(("steps", "iters", "iterations"), (" steps",)),
    **dict.fromkeys(("tokens",), (" tokens",)),
}
# Longer values are not repeated in a hint.
_SHOWN = 40
# Slurm's notation for a number of GPUs.
_GRES = re.compile(r"gpu(?::[\w.-]+)?:([0-9]{1,4})")
# The field that a note begins with.
_TOLD = re.compile(r"(?:set|write) `([a-z_]+)")


@dataclass(frozen=True)
class Meaning:
    """The field that an unknown one is meant to be: `target` is its place, without the positions in lists; None if unknown."""

    hint: Hint
    target: tuple[str, ...] | None = None


def meaning(loc: Path, model: type[BaseModel], document: Document, prefix: Path = ()) -> Meaning:
    """Return what the field at `loc` below `model` is meant to be; `prefix` is the path of the model's data in the document."""
    owner, key = owner_of(model, loc[:-1]) or model, str(loc[-1])
    here, kind = names_of((*prefix, *loc[:-1])), str(document.value(("kind",)))
    fields = field_names(owner)
    if (own := _own_name(key, document.value((*prefix, *loc)), fields)) is not None:
        return Meaning(own[1], (*here, own[0]))
    around = document.value((*prefix, *loc[:-1]))
    if tuple(fields) == _CHOICE and aliases.normal(key) in _KIND_NAMES and isinstance(around, dict) and "kind" not in around:
        return Meaning(Hint("write `kind`", "kind"), (*here, "kind"))
    value = document.value((*prefix, *loc))
    if "/" in key and "resource" in fields and "count" in fields and accepts(fields["resource"], key):
        # As `limits` of a container have it: the resource and its number.
        count = f", count: {value}" if isinstance(value, int) and value > 1 else ""
        return Meaning(Hint(f"write `{{resource: {key}{count}}}`"), (*here, "resource"))
    if tuple(fields) == _CHOICE and nearest(key, fields, _SLIP) is None:
        return Meaning(Hint(f"`{key}` belongs under `options`"), (*here, "options"))
    if note := aliases.note(f"{kind}.{'.'.join(here)}", key) or (aliases.note(kind, key) if not prefix else None):
        told = _TOLD.match(note)
        note = _with_value(note, document.value((*prefix, *loc)), document.value((*prefix, *loc[:-1], "lr")), document)
        return Meaning(Hint(note), (*here, told[1]) if told is not None and told[1] in fields else None)
    if (
        "set" in fields
        and (path := field_of(model, tuple(key.split(".")))) is not None
        and accepts(path, value := document.value((*prefix, *loc)))
    ):
        return Meaning(Hint(f"write `set: {{{key}: {flow(value)}}}`"), (*here, "set"))
    if isinstance(around, dict) and (joined := _joined(key, owner, around)) is not None:
        return Meaning(joined[1], (*here, joined[0]))
    # Of options, those of another kind are not among the fields.
    found = [place for place in aliases.places(kind, key) if place[:-1] != here or place[-1] in fields]
    names = [place[-1] for place in found if place[:-1] == here]
    renamed = next(
        (name for name in names if accepts(fields[name], _translated(fields[name], value, key))), next(iter(names), None)
    )
    if renamed is not None:
        return Meaning(_renamed(renamed, owner, (*prefix, *loc), document), (*here, renamed))
    homes = tuple(dict.fromkeys(_homes(key, model))) if not prefix else ()
    if homes:
        where = joined_or([f"in `{'.'.join(home)}`" if home else "at the top of the document" for home in homes[:3]])
        return Meaning(Hint(f"`{key}` belongs {where}"), (*homes[0], key) if len(homes) == 1 else None)
    near = nearest(key, fields, _SLIP)
    # Another program's name for a field of a section below is no typing error.
    if near is not None and not any(place[: len(here) + 1] == (*here, near) and place != (*here, near) for place in found):
        return Meaning(Hint(f"did you mean `{near}`?", near), (*here, near))
    if found:
        info = None if prefix else field_of(model, found[0])
        written, section = _written(found[0][-1], info, (*prefix, *loc), document), found[0][:-1]
        where = f"under `{'.'.join(section)}`" if section else "at the top of the document"
        return Meaning(Hint(f"write {written} {where}"), found[0])
    return Meaning(Hint(_known(owner, list(fields))))


def _own_name(key: str, value: Any, fields: Mapping[str, FieldInfo]) -> tuple[str, Hint] | None:
    """Return the field that the key names in another case, another number, or with the unit of its value: `memory_gb: 48` is
    `memory: 48GB`."""
    if same := next((name for name in fields if aliases.normal(name) == aliases.normal(key)), None):
        return same, Hint(f"write `{same}`", same)
    if one := next((name for name in fields if name.lower() in (f"{key}s".lower(), key.removesuffix("s").lower())), None):
        return one, Hint(f"did you mean `{one}`?", one)
    name, _, unit = key.rpartition("_")
    if name not in fields or isinstance(value, bool) or not isinstance(value, int | float):
        return None
    texts = (f"{flow(value)}{each}" for each in _UNITS_IN_KEYS.get(unit.lower(), ()))
    found = next((text for text in texts if accepts(fields[name], text)), None)
    return None if found is None else (name, Hint(f"write `{name}: {found}`"))


def _joined(key: str, owner: type[BaseModel], around: Mapping[str, Any]) -> tuple[str, Hint] | None:
    """Return the section of which the key, and others like it, name the fields, and what to write: `ecn: {min: ..., max: ...}`."""
    fields = field_names(owner)
    section = _section_of_joined(key, fields)
    if section is None:
        return None
    given = {name: value for each, value in around.items() if (name := _joined_name(each, section, fields)) is not None}
    inner = field_names(model_of(fields[section].annotation) or owner)
    lacking = {
        name: info.examples[0] for name, info in inner.items() if info.is_required() and name not in given and info.examples
    }
    also = f", with {listed(list(lacking))} of your own" if lacking else ""
    return section, Hint(f"write `{section}: {flow({**given, **lacking})}`{also}")


def _section_of_joined(key: str, fields: Mapping[str, FieldInfo]) -> str | None:
    """Return the section whose name and one of its fields are joined in the key: `ecn_min` for `ecn: {min: ...}`."""
    return next((name for name in fields if _joined_name(key, name, fields) is not None), None)


def _joined_name(key: str, section: str, fields: Mapping[str, FieldInfo]) -> str | None:
    inner = model_of(fields[section].annotation)
    name = key.removeprefix(f"{section}_")
    return name if name != key and inner is not None and name in field_names(inner) else None


def meanings(found: list[ErrorDetails], model: type[BaseModel], document: Document, prefix: Path = ()) -> dict[Path, Meaning]:
    """Return the meaning of each unknown field among the errors, by its place below `model`."""
    meant = {details["loc"]: meaning(details["loc"], model, document, prefix) for details in found if is_unknown(details)}
    missing: dict[Path, list[str]] = {}
    for details in found:
        if details["type"] == "missing":
            missing.setdefault(details["loc"][:-1], []).append(str(details["loc"][-1]))
    for section, names in missing.items():
        strange = [loc for loc in meant if loc[:-1] == section]
        # One field too many and one too few: the one is meant to be the other.
        if len(names) == len(strange) == 1 and section and meant[strange[0]].target is None:
            name = names[0]
            hint = Hint(f"did you mean `{name}`, which is missing here?", name)
            meant[strange[0]] = Meaning(hint, (*names_of((*prefix, *section)), name))
    return meant


def misread_sections(error: ValidationError, model: type[BaseModel], document: Document) -> set[str]:
    """Return the top-level fields that an unknown field is meant to set: their values are not what the author wrote."""
    found = meanings(error.errors(include_url=False), model, document)
    if any((key,) in found for key in HEAD):
        return set(model.model_fields)
    return {place.target[0] for place in found.values() if place.target is not None}


def alias_or_nearest(value: str, allowed: Iterable[str], what: str) -> Hint:
    """Return the hint for a value that is not one of the `allowed`, which are `what`: what other programs call so, else the nearest."""
    names = list(allowed)
    found = aliases.values(value, names)
    if len(found) == 1:
        return Hint(f"write `{found[0]}`", found[0])
    return Hint(f"write {joined_or([f'`{each}`' for each in found])}") if found else did_you_mean(value, names, what)


def is_unknown(details: ErrorDetails) -> bool:
    """Return whether the error is a field that its section does not have."""
    return details["type"] == "extra_forbidden"


def names_of(path: Path) -> tuple[str, ...]:
    """Return the path without the positions in lists."""
    return tuple(segment for segment in path if isinstance(segment, str))


def _homes(key: str, model: type[BaseModel], at: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the sections at and below `model` that have a field `key`."""
    fields = field_names(model)
    if key in fields and tuple(fields) != _CHOICE:
        yield at
    for name, info in fields.items():
        section = model_of(info.annotation)
        if section is not None:
            yield from _homes(key, section, (*at, name))


def _with_value(note: str, value: Any, lr: Any, document: Document) -> str:
    """Return the note with the value as an interval in place of `EVERY`, as a share of the learning rate in place of `SHARE`, and as a part
    of the run's steps in place of `PART`."""
    if "PART" in note:
        steps = document.value(("steps",))
        is_part = isinstance(value, int | float) and isinstance(steps, int) and 0 <= value <= 1
        return note.replace("PART", str(round(value * steps)) if is_part else "2000")
    if "BETA1" in note:
        betas = value if isinstance(value, list) and len(value) == 2 else [0.9, 0.95]
        return note.replace("BETA1", flow(betas[0])).replace("BETA2", flow(betas[1]))
    if "SHARE" in note:
        is_share = isinstance(value, int | float) and isinstance(lr, int | float) and 0 <= value <= lr and lr > 0
        return note.replace("SHARE", f"{value / lr:.4g}" if is_share else "0.1")
    every = f"{value} steps" if isinstance(value, int) and not isinstance(value, bool) else value
    return note.replace("EVERY", every if isinstance(every, str) and len(every) <= _SHOWN else "500 steps")


def _renamed(name: str, owner: type[BaseModel], path: Path, document: Document) -> Hint:
    """Return the hint for a field that is called `name` here: its new name alone if the value stays as it is."""
    info, value = field_names(owner)[name], document.value(path)
    meant = _translated(info, value, str(path[-1]))
    if meant != value and path not in document.credentials:
        return Hint(f"write `{name}: {flow(meant)}`")
    if isinstance(value, list) and (mounts := [repair.mount(each) for each in value]) and all(mounts) and accepts(info, mounts):
        return Hint(f"write `{name}: {flow(mounts)}`")
    if path in document.scalars and not accepts(info, value):
        return Hint(f"headway calls it `{name}`: {field_descriptions(owner)[name].rstrip('.')}")
    return Hint(f"headway calls it `{name}`", name)


def accepts(info: FieldInfo, value: Any) -> bool:
    """Return whether the field takes the value."""
    try:
        form: Any = Annotated[info.annotation, *info.metadata] if info.metadata else info.annotation
        # As documents are read: a list is a tuple, and "8" is no integer.
        TypeAdapter(form).validate_json(json.dumps(value), strict=True)
    except (ValidationError, TypeError, ValueError):
        return False
    return True


def _translated(info: FieldInfo | None, value: Any, key: str) -> Any:
    """Return the field's value for one that other programs write in a field called `key`; the value itself if no single one is meant."""
    if info is None or value is None or isinstance(value, dict | list | bool):
        return value
    allowed = literals_of(info)
    found = [] if str(value) in allowed else aliases.values(str(value), allowed)
    if len(found) == 1:
        return found[0]
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


def _json_schemas(info: FieldInfo) -> Iterator[Mapping[str, Any]]:
    """Yield the schemas of the field's types."""
    for each in (*info.metadata, *_inner(info.annotation)):
        if isinstance(each, WithJsonSchema):
            yield each.json_schema or {}


def _inner(annotation: Any) -> Iterator[Any]:
    for each in get_args(annotation):
        yield each
        yield from _inner(each)


def _written(name: str, info: FieldInfo | None, path: Path, document: Document) -> str:
    """Return the field under its name here, with the value that it has in the document if the field takes it and it is short."""
    value = _translated(info, document.value(path), str(path[-1]))
    shown = "" if path in document.credentials or (info is not None and not accepts(info, value)) else flow(value)
    return f"`{name}: {shown}`" if path in document.scalars and 0 < len(shown) <= _SHOWN else f"`{name}`"


def _known(owner: type[BaseModel], names: list[str]) -> str:
    if not names:
        return "leave it out: there are no fields here"
    if len(names) <= _LISTED:
        return f"known fields: {listed(names)}"
    return f"docs/spec.md lists the {len(names)} fields of `{owner.__name__}`"
