"""Finds what an unknown field is meant to be: a misspelt field, another program's name for one, or a field of another section."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, get_origin

from msgspec import Struct
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from headway.jobspec import aliases, repair
from headway.jobspec.catalog.models import models
from headway.jobspec.document import Document, Path
from headway.jobspec.fitting import accepts, fitted
from headway.jobspec.flow import flow
from headway.jobspec.spec.docstrings import field_descriptions
from headway.jobspec.spec.fields import field_names, field_of, literals_of, model_of, owner_of
from headway.jobspec.spec.job import DEFAULT_TRAINER
from headway.jobspec.suggest import Hint, as_clause, did_you_mean, joined_and, joined_or, listed, nearest, similar

# Names as unlike as `partition` and `precision`, or `vlan` and `planes`, are no typing errors.
_SLIP = 0.72
# The names of a choice's own fields (`choice.Choice`).
_CHOICE = ("kind", "options")
# The head of Kubernetes' documents, which people expect of a document with `apiVersion` and `kind`.
HEAD = ("metadata", "spec")
# The field of a document that others are read with.
EXTENDS = ("extends",)
# What is listed is read: a section with more fields is described in docs/spec.md.
_LISTED = 24
# What other programs call the kind of a choice.
_KIND_NAMES = ("type", "name", "class", "backend", "driver")
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
_LONGEST = 120
# What `run` is short for.
_ARGV = ("trainer", "options", "argv")
CORRUPTION = ("resilience", "corruption")
# Sections below another one.
_DEEP = 2
# The shortest word that shows what a field is.
_WORD = 4
# The name of a node: that of its group and a number.
_NODE = re.compile(r"[a-z0-9][a-z0-9-]*-[1-9][0-9]*")
# Where a note repeats the value.
_VALUE = re.compile(r"\bVALUE(?=\b|MiB)")
# The field that a note begins with.
_TOLD = re.compile(r"(?:set|write) `([a-z_]+)")


OtherKinds = Callable[[str], Sequence[str]]
"""Returns which kinds have an option of this name, but for the kind of the data."""


class Meaning(Struct, frozen=True):
    """The field that an unknown one is meant to be: `target` is its place, without the positions in lists; None if unknown. It is `sure`
    where the table of names has it, and `of_others` where it is an option of other kinds."""

    hint: Hint
    target: tuple[str, ...] | None = None
    sure: bool = False
    of_others: bool = False


class _Unknown(Struct, frozen=True, dict=True):
    """A field that its section does not have: its key and value, the section's model, fields and place, and what is set around it.

    `model` is that of the data in which it was found, `root` that of the document; `path` is its place there. `others` are the kinds that
    have it as an option, where it is one of another kind.
    """

    key: str
    value: Any
    around: Mapping[str, Any]
    owner: type[BaseModel]
    here: tuple[str, ...]
    path: Path
    model: type[BaseModel]
    root: type[BaseModel]
    document: Document
    in_options: bool
    others: Sequence[str]

    @cached_property
    def fields(self) -> dict[str, FieldInfo]:
        return field_names(self.owner)

    @cached_property
    def free(self) -> list[str]:
        """The fields of the section that are not set."""
        return [name for name in self.fields if name not in self.around]

    @cached_property
    def called(self) -> list[tuple[str, ...]]:
        """The places of fields that other programs call so; of options, only those that this kind has."""
        places = aliases.places(self.kind, self.key)
        # A section around is not what its own field means.
        return [
            place
            for place in places
            if (place[:-1] != self.here or place[-1] in self.fields) and place != self.here[: len(place)]
        ]

    @property
    def kind(self) -> str:
        return str(self.document.value(("kind",)))

    def at(self, name: str, hint: Hint) -> Meaning:
        """The meaning: a field of the same section."""
        return Meaning(hint, (*self.here, name))

    def fits(self, name: str) -> bool:
        """Whether the field of this name takes the value, in its own form."""
        return accepts(self.fields[name], fitted(self.fields[name], self.value, self.key))


def of_no_kind(_: str) -> Sequence[str]:
    """Return the kinds that have an option, of data that is no kind's."""
    return ()


def meaning(loc: Path, model: type[BaseModel], document: Document, prefix: Path = (), others: OtherKinds = of_no_kind) -> Meaning:
    """Return what the field at `loc` below `model` is meant to be; `prefix` is the path of the model's data in the document."""
    owner, path = owner_of(model, loc[:-1]) or model, (*prefix, *loc)
    around = document.value(path[:-1])
    unknown = _Unknown(
        key=str(loc[-1]),
        value=document.value(path),
        around=around if isinstance(around, dict) else {},
        owner=owner,
        here=names_of(path[:-1]),
        path=path,
        model=model,
        root=_model_of_kind(str(document.value(("kind",)))) or model,
        document=document,
        in_options=bool(prefix),
        others=others(str(loc[-1])) if len(loc) == 1 else (),
    )
    found = next((each for step in _STEPS if (each := step(unknown)) is not None), None)
    return found or Meaning(Hint(_known(owner, list(unknown.fields))))


def _without_blank(unknown: _Unknown) -> Meaning | None:
    """Return the field and the value that YAML reads as one key, because no blank follows the colon, or has `=` in its place:
    `{node_mtbf:200d}`."""
    found = re.fullmatch(r"(\w+)\s*(:|=>|:=|=)\s*(\S.*)", unknown.key)
    if found is None or unknown.value is not None or found[1] not in unknown.fields:
        return None
    written, why = f"{found[1]}: {found[3]}", "with a blank after the colon" if found[2] == ":" else "with a colon"
    return unknown.at(found[1], Hint(f"write `{written}`, {why}", written))


def _own_name(unknown: _Unknown) -> Meaning | None:
    """Return the field that the key names in another case or another number."""
    key, value, fields = unknown.key, unknown.value, unknown.fields
    if same := next((name for name in fields if aliases.squeezed(name) == aliases.squeezed(key)), None):
        return unknown.at(same, Hint(f"write `{same}`", same))
    one = next((name for name in fields if name.lower() in (f"{key}s".lower(), key.removesuffix("s").lower())), None)
    if one is None:
        return None
    if not unknown.fits(one) and not unknown.in_options and aliases.note(unknown.kind, key) is not None:
        # `gpu: H100-SXM-80` in a job is not the number that `gpus` is.
        return None
    # `path: corpus/*.txt` is `paths: [corpus/*.txt]`: the name alone would be refused next.
    if not accepts(fields[one], value) and accepts(fields[one], meant := fitted(fields[one], value, key)):
        return unknown.at(one, Hint(f"write `{one}: {flow(meant)}`"))
    return unknown.at(one, Hint(f"did you mean `{one}`?", one))


def _of_choice(unknown: _Unknown) -> Meaning | None:
    """Return what belongs to a kind with its options, or to a resource with its number."""
    key, value, fields = unknown.key, unknown.value, unknown.fields
    if tuple(fields) == _CHOICE and aliases.normal(key) in _KIND_NAMES and "kind" not in unknown.around:
        return unknown.at("kind", Hint("write `kind`", "kind"))
    if "/" in key and "resource" in fields and "count" in fields and accepts(fields["resource"], key):
        # As `limits` of a container have it: the resource and its number.
        count = f", count: {value}" if isinstance(value, int) and value > 1 else ""
        return unknown.at("resource", Hint(f"write `{{resource: {key}{count}}}`"))
    if unknown.here == ("data",) and ("model",) in _homes(key, unknown.root):
        # A model size is not an option of `data`.
        return _at_home(unknown)
    if tuple(fields) == _CHOICE and nearest(key, fields, _SLIP) is None:
        return unknown.at("options", Hint(f"`{key}` belongs under `options`"))
    return None


def _noted(unknown: _Unknown) -> Meaning | None:
    """Return what the table has on the name in this section."""
    return _told(aliases.note(f"{unknown.kind}.{'.'.join(unknown.here)}", unknown.key) if unknown.here else None, unknown)


def _noted_of_kind(unknown: _Unknown) -> Meaning | None:
    """Return what the table has on the name in documents of this kind."""
    return None if unknown.in_options else _told(aliases.note(unknown.kind, unknown.key), unknown)


def _told(note: str | None, unknown: _Unknown) -> Meaning | None:
    if note is None:
        return None
    told = _TOLD.match(note)
    if unknown.in_options and note.startswith("write `") and told is not None and told[1] not in unknown.fields:
        # It is for another kind.
        return None
    written = _with_value(note, unknown.value, unknown.around.get("lr"), unknown.document)
    # In the section itself its name is not written again: `compute: fp8` in `precision`.
    nested = re.fullmatch(r"write `(\w+): \{([^{}]*)\}`", written)
    if nested is not None and unknown.here[-1:] == (nested[1],):
        written = f"write `{nested[2]}`"
    return Meaning(Hint(written), (*unknown.here, told[1]) if told is not None and told[1] in unknown.fields else None, sure=True)


def _by_path(unknown: _Unknown) -> Meaning | None:
    """Return what a key with points is meant to be: the place of a field of the job, with the others next to it, or a field of a section
    below: `restart.budget`."""
    key, fields, around = unknown.key, unknown.fields, unknown.around
    if "." not in key:
        return _values_of_field(unknown)
    places = {name: each for name, each in around.items() if "." in str(name)}
    infos = {name: field_of(unknown.model, tuple(str(name).split("."))) for name in places}
    if "set" in fields and all(info is not None and accepts(info, places[name]) for name, info in infos.items()):
        return unknown.at("set", Hint(f"write `set: {flow(places)}`"))
    lists = {name: each if isinstance(each, list) else [each] for name, each in places.items()}
    if "grid" in fields and all(
        info is not None and all(accepts(info, each) for each in lists[name]) for name, info in infos.items()
    ):
        return unknown.at("grid", Hint(f"write `grid: {flow(lists)}`"))
    parts = tuple(key.split("."))
    below, nested = field_of(unknown.owner, parts), unknown.value
    if below is None or not accepts(below, nested):
        return None
    for part in reversed(parts):
        nested = {part: nested}
    return unknown.at(parts[0], Hint(f"write `{flow(nested)[1:-1]}`"))


def _values_of_field(unknown: _Unknown) -> Meaning | None:
    """Return the entry of `grid` that the values of a field are meant to be, by its name alone: `lr: [0.1, 0.2]` in `sweep`."""
    if "grid" not in unknown.fields or not isinstance(unknown.value, list) or not unknown.value:
        return None
    homes = [home for home in _homes(unknown.key, unknown.root) if home]
    homes += [place[:-1] for place in unknown.called if place[-1] != unknown.key]
    for home in homes:
        names = [unknown.key, *(place[-1] for place in unknown.called if place[:-1] == home)]
        for name in names:
            info = field_of(unknown.root, (*home, name))
            if info is not None and all(accepts(info, each) for each in unknown.value):
                return unknown.at("grid", Hint(f"write `grid: {flow({'.'.join((*home, name)): unknown.value})}`"))
    return None


def _field_of_change(unknown: _Unknown) -> Meaning | None:
    """Return the entry of `set` that a field of the job is meant to be, next to the step of a change."""
    key, value = unknown.key, unknown.value
    info = field_of(unknown.model, (key,)) if "set" in unknown.fields else None
    if info is None or (not isinstance(value, dict) and not accepts(info, value)):
        return None
    changed = {f"{key}.{name}": each for name, each in value.items()} if isinstance(value, dict) else {key: value}
    return unknown.at("set", Hint(f"write `set: {flow(changed)}`"))


def _value_as_key(unknown: _Unknown) -> Meaning | None:
    """Return the enumeration of which the key is a value that is switched on: `fsdp: true` is `sharding: parameters`."""
    if unknown.value is not True:
        return None
    found = {name: aliases.values(unknown.key, literals_of(unknown.fields[name])) for name in unknown.free}
    meant = [(name, each[0]) for name, each in found.items() if len(each) == 1]
    return unknown.at(meant[0][0], Hint(f"write `{meant[0][0]}: {flow(meant[0][1])}`")) if len(meant) == 1 else None


def _joined(unknown: _Unknown) -> Meaning | None:
    """Return the section of which the key, and others like it, name the fields, and what to write: `ecn: {min: ..., max: ...}`."""
    fields = unknown.fields
    section = next((name for name in fields if _joined_name(unknown.key, name, fields) is not None), None)
    if section is None:
        return None
    given = {name: value for each, value in unknown.around.items() if (name := _joined_name(each, section, fields)) is not None}
    inner = field_names(model_of(fields[section].annotation) or unknown.owner)
    lacking = {
        name: info.examples[0] for name, info in inner.items() if info.is_required() and name not in given and info.examples
    }
    also = f", with {listed(list(lacking))} of your own" if lacking else ""
    return unknown.at(section, Hint(f"write `{section}: {flow({**given, **lacking})}`{also}"))


def _joined_name(key: str, section: str, fields: Mapping[str, FieldInfo]) -> str | None:
    inner = model_of(fields[section].annotation)
    name = key.removeprefix(f"{section}_")
    return name if name != key and inner is not None and name in field_names(inner) else None


def _several_of_one(unknown: _Unknown) -> Meaning | None:
    """Return the section that has this and other unknown fields around it, where it is not set: `min` and `max` are those of `ecn`."""
    for section in unknown.free:
        info = unknown.fields[section]
        inner = model_of(info.annotation)
        names = () if inner is None else field_names(inner)
        if unknown.key not in names:
            continue
        # By the section's names, of which there are few: a hostile document has 50,000 around it.
        given = {name: unknown.around[name] for name in names if name in unknown.around and name not in unknown.fields}
        if len(given) > 1 and accepts(info, given):
            return unknown.at(section, Hint(f"write `{section}: {flow(given)}`"))
    return None


def _fields_of_this(unknown: _Unknown) -> Meaning | None:
    """Return the fields of this section that are inside of an unknown one: Kubernetes' `metadata: {annotations: {...}}`."""
    inside = unknown.value
    if not unknown.here or not isinstance(inside, dict) or not inside or not inside.keys() <= set(unknown.free):
        return None
    if not all(accepts(unknown.fields[name], each) for name, each in inside.items()):
        return None
    written = joined_and([f"`{name}: {flow(each)}`" for name, each in inside.items()])
    written = written if len(written) <= _LONGEST else joined_and([f"`{name}`" for name in inside])
    return unknown.at(next(iter(inside)), Hint(f"write {written} here, without `{unknown.key}`"))


def check_of(document: Document) -> str:
    """Return the check against silent corruption that the job's trainer has."""
    kind = document.value(("trainer", "kind"))
    is_builtin = kind == DEFAULT_TRAINER or (kind is None and document.value(("run",)) is None)
    return "replay" if is_builtin else "compare"


def _another_name(unknown: _Unknown) -> Meaning | None:  # noqa: C901 (each case is a line of its own)
    """Return the field of this section that other programs call so, or one that is called so in another section."""
    own = _names_here(unknown)
    # What is the name of a field elsewhere, with its value, is not another name here.
    infos = (field_of(unknown.root, (*home, unknown.key)) for home in _homes(unknown.key, unknown.root))
    is_field = any(info is not None and accepts(info, unknown.value) for info in infos)
    others = [] if is_field else unknown.called
    alike = [place[-1] for place in others if place[-1] in unknown.free and place[:-1] != unknown.here]
    names = [*(name for name in own if name in unknown.free), *(name for name in alike if unknown.fits(name))]
    found = next((name for name in names if unknown.fits(name)), next(iter(names), None))
    if found is not None and not unknown.fits(found):
        # Of several fields that are called so, a value of one that is set already shows it: `hyperparameters: {lr: 1.0e-4}`.
        if set_already := [name for name in own if name not in unknown.free and unknown.fits(name)]:
            own, found = set_already, None
        elif (of_value := _value_elsewhere(unknown)) is not None:
            return of_value
    if found == "run" and not unknown.here and "trainer" in unknown.around:
        return Meaning(
            Hint("leave it out: `trainer` defines the command, and `argv` of its options has the script and its arguments")
        )
    if found == "host" and "name" in unknown.free and unknown.here == ("nodes",) and _NODE.fullmatch(str(unknown.value)):
        # An inventory's node is named by its group and a number, which no address is.
        return unknown.at("name", Hint("write `name`", "name"))
    if found == "data" and not unknown.here and _is_of_a_script(unknown.around):
        return Meaning(Hint("leave it out, and pass it to the script as an argument: a script reads its data itself"))
    if found is not None:
        return unknown.at(found, _renamed(found, unknown))
    if own == ["name"] and "port" in unknown.free and "switch" in unknown.around:
        # The adapter has a name, and the port of its cable is missing.
        return unknown.at("port", Hint("write `port`", "port"))
    if not own:
        return None
    # `preset: llama-3.1` with `size: 8b` is the name of a model in two parts.
    whole = f"{unknown.around.get(own[0])}-{str(unknown.value).lower()}"
    if own[0] == "preset" and unknown.around["preset"] not in models() and whole in models():
        return unknown.at("preset", Hint(f"leave it out, and write `preset: {whole}`"))
    if isinstance(unknown.value, dict | list) and isinstance(unknown.around.get(own[0]), dict | list):
        examples = unknown.fields[own[0]].examples
        if not unknown.fits(own[0]) and examples:
            # Another program's form of it would be refused next.
            return unknown.at(own[0], Hint(f"leave it out, and write it as in `{own[0]}: {flow(examples[0])}`"))
        return unknown.at(own[0], Hint(f"move what is in it to `{own[0]}`, which is its name here"))
    # What is set already is not written again.
    return unknown.at(own[0], Hint(f"leave it out: `{own[0]}` is its name here, and is set"))


def _names_here(unknown: _Unknown) -> list[str]:
    """Return the fields of this section that other programs call so; of checks against corruption, the one that the trainer has."""
    own = [place[-1] for place in unknown.called if place[:-1] == unknown.here]
    check = check_of(unknown.document)
    return [check] if unknown.here == CORRUPTION and check in own else own


def _is_of_a_script(job: Mapping[str, Any]) -> bool:
    """Return whether the job runs a script of its author."""
    trainer = job.get("trainer")
    return job.get("run") is not None or (isinstance(trainer, dict) and trainer.get("kind") == "script")


def _of_rotary_positions(unknown: _Unknown) -> Meaning | None:
    """Return that a model without learned positions has no longest sequence: `max_position_embeddings: 8192`."""
    if unknown.here != ("model",) or ("model", "max_positions") not in unknown.called or "max_positions" in unknown.around:
        return None
    preset = models().get(str(unknown.around.get("preset")))
    positions = unknown.around.get("positions", "rotary" if preset is None else preset.model.positions or "rotary")
    if positions == "learned" or "config" in unknown.around:
        return None
    return Meaning(Hint(f"leave it out: {positions} positions have no maximum, and `batch.sequence` is the length of a sequence"))


def _with_unit(unknown: _Unknown) -> Meaning | None:
    """Return the field of which the key has the name and the unit, also by another name: `memory_gb: 48` is `host_memory: 48GB`."""
    rest, _, unit = aliases.normal(unknown.key).rpartition("_")
    if not rest or isinstance(unknown.value, bool) or not isinstance(unknown.value, int | float):
        return None
    called = [place[-1] for place in aliases.places(unknown.kind, rest) if place[:-1] == unknown.here]
    for name in (each for each in (rest, *called) if each in unknown.fields):
        texts = (f"{flow(unknown.value)}{each}" for each in _UNITS_IN_KEYS.get(unit, ()))
        if (found := next((text for text in texts if accepts(unknown.fields[name], text)), None)) is not None:
            return unknown.at(name, Hint(f"write `{name}: {found}`"))
    return None


def _at_home(unknown: _Unknown) -> Meaning | None:
    """Return where a field of other sections belongs, of those near to this one in which it is not set: where its value is taken."""
    key, here, root = unknown.key, unknown.here, unknown.root

    def is_near(home: tuple[str, ...]) -> bool:
        common = min(len(home), len(here))
        around = home[:common] == here[:common] or home[:-1] == here[:-1]
        return around or len(home) < _DEEP or unknown.document.value(home) is not None

    homes = [home for home in dict.fromkeys(_homes(key, root)) if home != here and is_near(home)]
    free = [home for home in homes if _is_of_items(home, root) or unknown.document.value((*home, key)) is None]
    if homes and not free and not unknown.in_options:
        where = f"in `{'.'.join(homes[0])}`" if homes[0] else "at the top of the document"
        return Meaning(Hint(f"`{key}` belongs {where}, and is set there: leave it out here"), (*homes[0], key))
    homes = free
    infos = {home: field_of(root, (*home, key)) for home in homes}
    homes = [
        home for home, info in infos.items() if info is not None and accepts(info, fitted(info, unknown.value, key))
    ] or homes
    if not homes:
        return None
    where = joined_or([f"in `{'.'.join(home)}`" if home else "at the top of the document" for home in homes[:3]])
    return Meaning(Hint(f"`{key}` belongs {where}"), (*homes[0], key) if len(homes) == 1 else None)


def _at_home_in_another_case(unknown: _Unknown) -> Meaning | None:
    """Return where a field of other sections belongs that is written in another case: `imagePullSecrets`."""
    if unknown.in_options:
        return None
    found = [
        (home, name)
        for home, name in _all_fields(unknown.root)
        if name != unknown.key and home != unknown.here and aliases.squeezed(name) == aliases.squeezed(unknown.key)
    ]
    for home, name in found:
        info = field_of(unknown.root, (*home, name))
        if info is not None and accepts(info, fitted(info, unknown.value, unknown.key)):
            written = _written(name, info, unknown.path, unknown.document)
            where = f"under `{'.'.join(home)}`" if home else "at the top of the document"
            return Meaning(Hint(f"write {written} {where}"), (*home, name))
    return None


def _all_fields(model: type[BaseModel], at: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield the place and the name of each field at and below `model`, those of a section before those of its sections."""
    fields = field_names(model)
    if tuple(fields) != _CHOICE:
        yield from ((at, name) for name in fields)
    for name, info in fields.items():
        section = model_of(info.annotation)
        if section is not None:
            yield from _all_fields(section, (*at, name))


def _option_of_others(unknown: _Unknown) -> Meaning | None:
    """Return that the option is one of other kinds."""
    if not unknown.others:
        return None
    kinds = joined_or([f"`{each}`" for each in unknown.others])
    return Meaning(Hint(f"leave it out: `{unknown.key}` is an option of {kinds}"), of_others=True)


def _is_of_items(home: tuple[str, ...], root: type[BaseModel]) -> bool:
    """Return whether the section is that of a list's items, of which there may be another one."""
    infos = (field_of(root, home[:length]) for length in range(1, len(home) + 1))
    return any(get_origin(info.annotation) is tuple for info in infos if info is not None)


def _misspelt(unknown: _Unknown) -> Meaning | None:
    """Return the field that the key resembles, if it is not set and may have the value."""
    may_be = [name for name in unknown.free if _may_be_meant(unknown.fields[name], unknown.value)]
    near = nearest(unknown.key, [name for name in may_be if unknown.fits(name)], _SLIP) or nearest(unknown.key, may_be, _SLIP)
    # Another program's name for a field of a section below is no typing error.
    inside = (*unknown.here, near)
    if near is None or any(place[: len(inside)] == inside and place != inside for place in unknown.called):
        return None
    return unknown.at(near, Hint(f"did you mean `{near}`?", near))


def _may_be_meant(info: FieldInfo, value: Any) -> bool:
    """Return whether a misspelt field with this value may be this one: no section that has none of the value's fields."""
    section = model_of(info.annotation)
    return not (isinstance(value, dict) and value and section is not None and not value.keys() & field_names(section).keys())


def _fields_of_one(unknown: _Unknown) -> Meaning | None:
    """Return the section that has all the fields of an unknown one: torchtitan's `lr_scheduler` has those of `optimizer`."""
    value = unknown.value
    found = _home_of_all(value, unknown) if isinstance(value, dict) and not unknown.in_options else None
    if found is None:
        return None
    home, names = found
    written = joined_and([f"`{names[key]}: {flow(each)}`" for key, each in value.items()])
    return Meaning(Hint(f"write {written} under `{home}`" if len(written) <= _LONGEST else f"write its fields under `{home}`"))


def _elsewhere(unknown: _Unknown) -> Meaning | None:
    """Return the field of another section that other programs call so, and that takes the value; of options no field is known."""
    for place in unknown.called:
        info, run = field_of(unknown.root, place), unknown.around.get("run")
        if info is not None and not accepts(info, fitted(info, unknown.value, unknown.key)):
            continue
        if place == _ARGV and not unknown.here and isinstance(run, list):
            # `run` is short for them, and may not be next to them.
            value = unknown.value if isinstance(unknown.value, list) else [unknown.value]
            return Meaning(Hint(f"write `run: {flow([*run, *value])}`, which has the script's arguments too"))
        if place == _ARGV and not unknown.here and isinstance(unknown.document.value(_ARGV), list):
            return Meaning(Hint("leave it out, and add its items to `argv` of `trainer.options`, after the script"))
        if (whole := _in_new_section(place, unknown)) is not None:
            return Meaning(whole, place)
        written, section = _written(place[-1], info, unknown.path, unknown.document), place[:-1]
        where = f"under `{'.'.join(section)}`" if section else "at the top of the document"
        return Meaning(Hint(f"write {written} {where}"), place)
    return None


def _in_new_section(place: tuple[str, ...], unknown: _Unknown) -> Hint | None:
    """Return the section of a field in a document that has none yet, with what else it must have: `experts: {count: 8, top_k: 2}`. Of a
    preset, the section is known."""
    info, section = field_of(unknown.root, place[:-1]), place[:-1]
    model = None if info is None else model_of(info.annotation)
    if not section or model is None or unknown.document.value(section) is not None:
        return None
    required = {name: each for name, each in field_names(model).items() if each.is_required() and name != place[-1]}
    if not required:
        return None
    preset = models().get(str(unknown.around.get("preset"))) if section[:1] == ("model",) else None
    own = None if preset is None else preset.model.model_dump(exclude_none=True).get(section[-1])
    field = field_of(unknown.root, place)
    value = fitted(field, unknown.value, unknown.key)
    if isinstance(own, dict):
        if own.get(place[-1]) == value:
            return Hint(f"leave it out: the preset has `{section[-1]}: {{{place[-1]}: {flow(value)}}}`")
        others = {name: own[name] for name in required if name in own}
        return Hint(f"write `{section[-1]}: {flow({place[-1]: value, **others})}`")
    others = {name: each.examples[0] for name, each in required.items() if each.examples}
    if len(others) < len(required):
        return None
    where = f" in `{'.'.join(section[:-1])}`" if section[:-1] != unknown.here and section[:-1] else ""
    return Hint(f"write `{section[-1]}: {flow({place[-1]: value, **others})}`{where}, with {listed(list(others))} of your own")


def _value_elsewhere(unknown: _Unknown) -> Meaning | None:
    """Return the enumeration of which the value is a word, in a section where other programs' name of the key is another field:
    `fsdp: full_shard` is `sharding: parameters` of `layout`, where `fsdp` is the number of ranks too."""
    if not isinstance(unknown.value, str):
        return None
    for section in dict.fromkeys(each for place in unknown.called for each in (place[:-1], place)):
        info = field_of(unknown.root, section) if section else None
        model = unknown.root if not section else None if info is None else model_of(info.annotation)
        for name, field in (field_names(model) if model is not None else {}).items():
            words = [unknown.value, *unknown.value.split()]
            found = next((each for word in words if len(each := aliases.values(word, literals_of(field))) == 1), None)
            if found is not None and (section != unknown.here or name in unknown.free):
                where = f" under `{'.'.join(section)}`" if section and section != unknown.here else ""
                return Meaning(Hint(f"write `{name}: {flow(found[0])}`{where}"), (*section, name))
    return None


def _fields_at_the_top(unknown: _Unknown) -> Meaning | None:
    """Return the fields at the top of the document that are in a section of another program: Ray's `runtime_env: {env_vars: {...}}`."""
    value = unknown.value
    if not isinstance(value, dict) or not value or unknown.in_options or unknown.here:
        return None
    written = {}
    for key, each in value.items():
        places = [key] if key in unknown.fields else [place[0] for place in aliases.places(unknown.kind, key) if len(place) == 1]
        name = next((name for name in places if accepts(unknown.fields[name], fitted(unknown.fields[name], each, key))), None)
        if name is None:
            return None
        if name in unknown.around and not isinstance(each, dict | list):
            return Meaning(Hint(f"leave it out: `{name}` is at the top of the document"))
        if name in unknown.around:
            return Meaning(Hint(f"leave it out, and add what is in its `{key}` to `{name}`"))
        written[name] = fitted(unknown.fields[name], each, key)
    text = joined_and([f"`{name}: {flow(each)}`" for name, each in written.items()])
    text = text if len(text) <= _LONGEST else joined_and([f"`{name}`" for name in written])
    return Meaning(Hint(f"write {text} at the top of the document, in its place"), (next(iter(written)),))


def _of_another_kind(unknown: _Unknown) -> Meaning | None:
    """Return the kind of document that has the field at its top, where this one does not."""
    from headway.jobspec.parse import MODELS  # noqa: PLC0415 (it reads this file)

    others = [each for each in MODELS.values() if each is not unknown.root]
    homes = [(each, home) for each in others for home in _homes(unknown.key, each) if len(home) < _DEEP]
    if unknown.here or not homes:
        return None
    kind, home = min(homes, key=lambda each: len(each[1]))
    where = f" in `{'.'.join(home)}` of" if home else " of"
    return Meaning(Hint(f"`{unknown.key}` is a field{where} a {kind.__name__}: write it in that document"))


def _by_words(unknown: _Unknown) -> Meaning | None:
    """Return the one field whose name is a part of the key, or whose description has its words."""
    key, fields = unknown.key, unknown.fields
    squeezed = aliases.squeezed(key)
    may_be = [each for each in unknown.free if _may_be_meant(fields[each], unknown.value)]
    inside = [each for each in may_be if len(each) >= _WORD and aliases.squeezed(each) in squeezed and unknown.fits(each)]
    if len(inside) == 1:
        return unknown.at(inside[0], _renamed(inside[0], unknown))
    stems = [_stem(each) for each in aliases.normal(key).split("_") if len(each) >= _WORD]
    said = {name: text.lower() for name, text in field_descriptions(unknown.owner).items() if name in may_be}
    told = [name for name, text in said.items() if stems and all(stem in text for stem in stems)]
    if len(told) != 1:
        return None
    (name,) = told
    meant = fitted(fields[name], unknown.value, key)
    if not accepts(fields[name], meant):
        return unknown.at(name, Hint(f"headway calls it `{name}`: {_about(unknown.owner, name)}"))
    is_same = meant == unknown.value
    return unknown.at(
        name,
        Hint(f"write `{name}{'' if is_same else f': {flow(meant)}'}`: {_about(unknown.owner, name)}", name if is_same else None),
    )


def _stem(word: str) -> str:
    """Return the part of a word that its other forms share: `hyperthreading` and `hyperthreads`."""
    return re.sub(r"(?:ing|ed|es|s|ion|or|er)$", "", word) if len(word) > _WORD + 2 else word


def _about(owner: type[BaseModel], name: str) -> str:
    return as_clause(field_descriptions(owner)[name])


# How the meaning of a field is found, the surest way first.
_STEPS: tuple[Callable[[_Unknown], Meaning | None], ...] = (
    _without_blank,
    _own_name,
    _noted,
    _of_choice,
    _by_path,
    _field_of_change,
    _joined,
    _several_of_one,
    _value_as_key,
    _of_rotary_positions,
    _another_name,
    _with_unit,
    _fields_of_this,
    _noted_of_kind,
    _option_of_others,
    _at_home,
    _at_home_in_another_case,
    _misspelt,
    _fields_of_one,
    _elsewhere,
    _value_elsewhere,
    _fields_at_the_top,
    _of_another_kind,
    _by_words,
)


def _model_of_kind(kind: str) -> type[BaseModel] | None:
    """Return the model of documents of this kind."""
    from headway.jobspec.parse import MODELS  # noqa: PLC0415 (it reads this file)

    return MODELS.get(kind)


def meanings(
    found: list[ErrorDetails], model: type[BaseModel], document: Document, prefix: Path = (), others: OtherKinds = of_no_kind
) -> dict[Path, Meaning]:
    """Return the meaning of each unknown field among the errors, by its place below `model`."""
    meant = {details["loc"]: meaning(details["loc"], model, document, prefix, others) for details in found if is_unknown(details)}
    missing: dict[Path, list[str]] = {}
    for details in found:
        if details["type"] == "missing":
            missing.setdefault(details["loc"][:-1], []).append(str(details["loc"][-1]))
    for section, names in missing.items():
        here = names_of((*prefix, *section))
        targets = {place.target for place in meant.values()}
        lacking = [name for name in names if (*here, name) not in targets]
        # What is called so here may be set already.
        there = document.value((*prefix, *section))
        is_set = {(*here, name) for name in there} if isinstance(there, dict) else set()
        strange = [
            loc
            for loc, place in meant.items()
            if loc[:-1] == section and not place.sure and ((place.target or ())[:-1] != here or place.target in is_set)
        ]
        fields = field_names(owner_of(model, section) or model)
        # A field too many and one too few: the one is meant to be the other, rather than a field elsewhere that resembles it.
        for loc in strange if section or prefix else ():
            value = document.value((*prefix, *loc))
            forms = {name: fitted(fields[name], value, str(loc[-1])) for name in lacking}
            fitting = [name for name, form in forms.items() if accepts(fields[name], form)]
            if len(fitting) == 1 and forms[fitting[0]] != value:
                meant[loc] = Meaning(Hint(f"write `{fitting[0]}: {flow(forms[fitting[0]])}`"), (*here, fitting[0]))
            elif not meant[loc].of_others and (
                len(fitting) == 1 or (len(lacking) == len(strange) == 1 and meant[loc].target is None)
            ):
                name = (fitting or lacking)[0]
                meant[loc] = Meaning(Hint(f"did you mean `{name}`, which is missing here?", name), (*here, name))
            else:
                continue
            lacking.remove((fitting or lacking)[0])
    return meant


def misread_sections(error: ValidationError, model: type[BaseModel], document: Document) -> set[str]:
    """Return the top-level fields that an unknown field is meant to set: their values are not what the author wrote."""
    found = meanings(error.errors(include_url=False), model, document)
    if any((key,) in found for key in HEAD) or any(place.target == EXTENDS for place in found.values()):
        return set(model.model_fields)
    return {place.target[0] for place in found.values() if place.target is not None}


def alias_or_similar(value: str, allowed: Iterable[str]) -> Hint | None:
    """Return the hint for a value that is not one of the `allowed`: what other programs call so, else the nearest; None where none is."""
    names = list(allowed)
    found = aliases.values(value, names)
    if len(found) == 1:
        return Hint(f"write `{found[0]}`", found[0])
    return Hint(f"write {joined_or([f'`{each}`' for each in found])}") if found else similar(value, names)


def alias_or_nearest(value: str, allowed: Iterable[str], what: str, likely: str | None = None) -> Hint:
    """Return the hint for a value that is not one of the `allowed`, which are `what`: what other programs call so, else the nearest, else
    the `likely` one."""
    names = list(allowed)
    return alias_or_similar(value, names) or did_you_mean(value, names, what, likely)


def is_unknown(details: ErrorDetails) -> bool:
    """Return whether the error is a field that its section does not have."""
    return details["type"] == "extra_forbidden"


def names_of(path: Path) -> tuple[str, ...]:
    """Return the path without the positions in lists."""
    return tuple(segment for segment in path if isinstance(segment, str))


def _homes(key: str, model: type[BaseModel]) -> Iterator[tuple[str, ...]]:
    """Yield the sections at and below `model` that have a field `key`."""
    return (at for at, name in _all_fields(model) if name == key)


def _home_of_all(value: Mapping[str, Any], unknown: _Unknown) -> tuple[str, dict[str, str]] | None:
    """Return the only section at the top of which all these are fields, also by other programs' names, and the name of each there."""
    found = []
    for section, info in field_names(unknown.model).items():
        model = model_of(info.annotation)
        fields = {} if model is None else field_names(model)
        names = {key: _name_in(section, key, each, fields, unknown.kind) for key, each in value.items()}
        if value and fields and None not in names.values():
            found.append((section, {key: name for key, name in names.items() if name is not None}))
    own = [each for each in found if all(key == name for key, name in each[1].items())] or found
    return own[0] if len(own) == 1 else None


def _name_in(section: str, key: str, value: Any, fields: Mapping[str, FieldInfo], kind: str) -> str | None:
    """Return the name of the section's field that other programs call `key`, if it takes the value."""
    if key in fields:
        return key
    called = [place[-1] for place in aliases.places(kind, key) if place[:-1] == (section,)]
    return next((name for name in called if accepts(fields[name], value)), None)


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
    if "MODULES" in note:
        names = value if isinstance(value, list) and value else [value] if isinstance(value, str) else ["NAME"]
        return note.replace("MODULES", " ".join(map(str, names)) if len(str(names)) <= _SHOWN else "NAME")
    if "time: VALUE" in note and (found := repair.quantity("time", value)) is not None:
        value = value if found.fix is None else found.fix
    if isinstance(value, str) and re.search("[A-Za-z]", value):
        # It has its unit.
        note = note.replace("VALUEMiB", "VALUE")
    if "IMAGE" in note:
        return note.replace("IMAGE", str(_named(value, "image") or "..."))
    if "MEMORY" in note:
        return note.replace("MEMORY", str(_named(value, "memory") or "1500Gi"))
    if _VALUE.search(note):
        is_short = isinstance(value, str | int | float) and 0 < len(str(value)) <= _SHOWN
        return _VALUE.sub(lambda _: flow(value) if is_short else "...", note)
    if "RANGE" in note:
        return note.replace("RANGE", flow(_range(value, document)))
    if "SAMPLES" in note:
        samples = repair.samples(value, document) if isinstance(value, int) else None
        return note.replace("SAMPLES", "N" if samples is None else str(samples))
    every = f"{value} steps" if isinstance(value, int) and not isinstance(value, bool) else value
    return note.replace("EVERY", every if isinstance(every, str) and len(every) <= _SHOWN else "500 steps")


def _named(value: Any, name: str) -> Any:
    """Return the value of the first field of this name inside of a value."""
    if not isinstance(value, dict):
        return None
    found = value.get(name) or next((each for inner in value.values() if (each := _named(inner, name)) is not None), None)
    return found if isinstance(found, str | int) else None


def _range(value: Any, document: Document) -> dict[str, Any]:
    """Return the fewest and the most nodes of an elastic job: those that it states, else up to its `nodes`."""
    nodes = document.value(("nodes",))
    most = nodes if isinstance(nodes, int) and nodes > 1 else 4
    given = (
        {str(key)[:3].lower(): each for key, each in value.items() if isinstance(each, int)} if isinstance(value, dict) else {}
    )
    if "min" not in given and isinstance(value, int) and 0 < value < most:
        given["min"] = value
    return {"min": given.get("min", max(1, most // 2)), "max": given.get("max", most)}


def _renamed(name: str, unknown: _Unknown) -> Hint:
    """Return the hint for a field that is called `name` here: its new name alone if the value stays as it is."""
    info, value, path = unknown.fields[name], unknown.value, unknown.path
    meant = fitted(info, value, unknown.key)
    if name == "url" and meant == value and not accepts(info, value) and accepts(info, store := f"s3://{value}"):
        # The name of a bucket alone.
        return Hint(f"write `{name}: {flow(store)}`")
    if meant != value and path not in unknown.document.credentials:
        return Hint(f"write `{name}: {flow(meant)}`")
    if isinstance(value, list) and (mounts := [repair.mount(each) for each in value]) and all(mounts) and accepts(info, mounts):
        return Hint(f"write `{name}: {flow(mounts)}`")
    if path in unknown.document.scalars and not accepts(info, value):
        return Hint(f"headway calls it `{name}`: {field_descriptions(unknown.owner)[name].rstrip('.')}")
    return Hint(f"headway calls it `{name}`", name)


def _written(name: str, info: FieldInfo | None, path: Path, document: Document) -> str:
    """Return the field under its name here, with the value that it has in the document if the field takes it and it is short."""
    value = fitted(info, document.value(path), str(path[-1]))
    shown = "" if path in document.credentials or (info is not None and not accepts(info, value)) else flow(value)
    return f"`{name}: {shown}`" if path in document.scalars and 0 < len(shown) <= _SHOWN else f"`{name}`"


def _known(owner: type[BaseModel], names: list[str]) -> str:
    if not names:
        return "leave it out: there are no fields here"
    if len(names) <= _LISTED:
        return f"leave it out, or write one of the fields here: {listed(names)}"
    return f"leave it out: none of the {len(names)} fields of `{owner.__name__}` has a similar name (docs/spec.md lists them)"
