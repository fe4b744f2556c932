"""Classifies each change of an edited TrainingJob: takes effect at once, needs an entry in `history`, or needs a new run.

Specs are compared as plans hold them (`JobPlan.spec`): JSON with every default, names as in documents.
"""

import dataclasses
import json
import types
import typing
from collections.abc import Collection, Iterable, Iterator, Mapping
from enum import StrEnum
from functools import cache
from typing import Any

from msgspec import Struct
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined, to_jsonable_python

from headway.jobspec import aliases
from headway.jobspec.document import Path
from headway.jobspec.notation import write_bytes, write_steps
from headway.jobspec.spec.fields import field_names
from headway.jobspec.spec.job import TrainingJob
from headway.jobspec.spec.resilience import Tier
from headway.jobspec.suggest import Hint, did_you_mean
from headway.jobspec.units import Amount, Bytes, Interval, Seconds, Steps

# Whole numbers that a document has with their unit.
_WRITTEN = ((Bytes, write_bytes), (Steps, write_steps))


class How(StrEnum):
    """How a field may change in a run. `history`: not in its own place, but from a step on, in an entry of `history`."""

    ANYTIME = "anytime"
    HISTORY = "history"
    NEW_RUN = "new_run"


class Rule(Struct, frozen=True):
    """How the fields of a row may change, and why; the reason is a clause."""

    how: How
    reason: str


# Each field of a TrainingJob is in one row, directly or with its section. `anytime` computes the same: at most, sums
# are rounded in another order.
CHANGES: Mapping[str, Rule] = types.MappingProxyType(
    {
        "apiVersion": Rule(How.ANYTIME, "it is the version of the format, not part of the content"),
        "kind": Rule(How.NEW_RUN, "another kind of document does not describe this job"),
        "name": Rule(How.NEW_RUN, "the run and its checkpoints are stored under it"),
        "extends": Rule(How.ANYTIME, "it sets where values are written; the values themselves are compared"),
        "ignore": Rule(How.ANYTIME, "it sets which problems are accepted, not what is computed"),
        "partial": Rule(How.ANYTIME, "it sets where values are written; the values themselves are compared"),
        "code": Rule(
            How.ANYTIME, "each attempt records the code that it ran; whether new code computes the same is for its review"
        ),
        "cluster": Rule(How.ANYTIME, "the same is computed on another cluster, which can reach the checkpoints"),
        "group": Rule(How.ANYTIME, "the same is computed on other nodes"),
        "nodes": Rule(
            How.ANYTIME, "checkpoints load on any number of ranks, and samples depend only on their position in the order"
        ),
        "gpus": Rule(
            How.ANYTIME, "checkpoints load on any number of ranks, and samples depend only on their position in the order"
        ),
        "layout": Rule(How.ANYTIME, "checkpoints load under any layout, and samples depend only on their position in the order"),
        "min_nodes": Rule(How.ANYTIME, "the same is computed on fewer nodes, by a script that can"),
        "scheduler": Rule(How.ANYTIME, "it sets where and when the job starts, not what is computed"),
        "model": Rule(How.NEW_RUN, "the checkpoints hold this model's parameters"),
        "data": Rule(How.HISTORY, "every later sample comes from it"),
        "batch.global": Rule(How.HISTORY, "every later gradient is a mean over it"),
        "batch.micro": Rule(How.ANYTIME, "the same sequences are summed in parts of another size"),
        "batch.sequence": Rule(How.NEW_RUN, "the position in the sample order is counted in sequences of this length"),
        "precision.parameters": Rule(How.NEW_RUN, "the checkpoints hold the parameters in this format"),
        "precision.compute": Rule(How.HISTORY, "every later product is rounded to it"),
        "precision.reduce": Rule(How.HISTORY, "every later sum of gradients is rounded to it"),
        "recompute": Rule(How.ANYTIME, "the same activations are kept or recomputed"),
        "overlap": Rule(How.ANYTIME, "the same data is sent at another time"),
        "compile": Rule(How.ANYTIME, "the same formulas are computed by other kernels"),
        "optimizer": Rule(How.HISTORY, "every later update follows from it"),
        "run": Rule(How.ANYTIME, "it is short for `trainer`, which is compared"),
        "trainer.kind": Rule(How.NEW_RUN, "another trainer neither computes the same nor loads these checkpoints"),
        "trainer.options": Rule(How.HISTORY, "a script computes what its arguments ask for"),
        "steps": Rule(How.HISTORY, "the learning rate's schedule ends with the last step"),
        "seed": Rule(How.NEW_RUN, "the initial parameters and the sample order depend on it"),
        "checkpoint": Rule(How.ANYTIME, "saving does not change what is computed"),
        "resilience": Rule(How.ANYTIME, "it sets how failures are handled, not what is computed"),
        "limits": Rule(How.ANYTIME, "they end an attempt, and the next one resumes"),
        "environment": Rule(
            How.ANYTIME, "variables set how ranks run; values that a script computes with belong in its arguments"
        ),
        "secrets": Rule(How.ANYTIME, "they give access and do not change the results"),
        "setup": Rule(How.ANYTIME, "it prepares a node; whether other software computes the same is for its review"),
        "mounts": Rule(How.ANYTIME, "they set where a directory is mounted, not what is read from it"),
        "sweep": Rule(How.ANYTIME, "each of its points is a run of its own"),
        "history": Rule(How.ANYTIME, "entries are only appended, and each names its step"),
    }
)


class ValueChange(Struct, frozen=True):
    """A field that two specs have different values for; `path` leads to it in the newer one."""

    path: Path
    old: Any
    new: Any
    how: How
    reason: str

    @property
    def name(self) -> str:
        """Return the field's name in messages and `history`."""
        return "".join(f"[{segment}]" if isinstance(segment, int) else f".{segment}" for segment in self.path).lstrip(".")


def changeable(path: str) -> Rule:
    """Return the rule for a field by its path, `optimizer.lr` for one. KeyError when it leads to no single field."""
    if field_at(path) is None:
        raise KeyError(path)
    return CHANGES[_row(tuple(path.split(".")))]


def is_for_history(path: str) -> bool:
    """Return whether the path leads to a field that `history` may set at all; the job's trainer decides whether it can change."""
    return field_at(path) is not None and changeable(path).how is How.HISTORY


def changeable_fields() -> Iterator[str]:
    """Yield the paths of all fields, as `history` names them."""
    return map(".".join, _all_fields())


def meant_field(path: str, allowed: Collection[str]) -> Hint:
    """Return the hint for a path that leads to no field: what another program calls so, or a misspelt one, of the `allowed` paths."""
    section, _, name = path.rpartition(".")
    called = [".".join(place) for place in aliases.places("TrainingJob", name)]
    ends = [each for each in allowed if each.rpartition(".")[2] in (name, aliases.normal(name))]
    found = [each for each in dict.fromkeys((*ends, *called)) if each in allowed]
    near = next((each for each in found if each.rpartition(".")[0] == section), None)
    inside = [each for each in allowed if section and each.startswith(f"{section}.")]
    # Where the section exists, suggest only its own fields: `batch.size` does not mean the model's size.
    known = [each for each in ends if each in allowed] or found
    if near is None and len(known) == 1 and not inside:
        near = known[0]
    if near is not None:
        return Hint(f"write `{near}`", near)
    note = aliases.plain_note(f"TrainingJob.{section}" if section else "TrainingJob", name)
    return (
        Hint(note)
        if note is not None
        else did_you_mean(path, inside or allowed, f"fields of `{section}`" if inside else "fields")
    )


def field_at(path: str) -> FieldInfo | None:
    """Return the field that the path leads to; for a key of a mapping with open keys (`data.options.paths`) the
    mapping's. None: no field."""
    fields = _all_fields()
    segments = tuple(path.split("."))
    owner = fields.get(segments[:-1])
    return fields.get(segments) or (owner if owner is not None and _is_open(owner) and segments[-1] else None)


def is_field(path: str) -> bool:
    """Return whether the path leads to a field, or to a section with fields."""
    segments = tuple(path.split("."))
    return field_at(path) is not None or any(each[: len(segments)] == segments for each in _all_fields())


def changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[ValueChange]:
    """Yield the differences between two specs, in the order of the language: fields one by one, lists as wholes, tiers
    by their kind.

    A field that the older spec does not have yet had its default.
    """
    old, new = _settled(old), _settled(new)
    found = []
    for path, info in _all_fields().items():
        rule = CHANGES[_row(path)]
        differences = _differences(path, info, _value(old, path, info), _value(new, path, info))
        found += [ValueChange(place, before, after, rule.how, rule.reason) for place, before, after in differences]
    return found


def as_written(path: Path, value: Any) -> str:
    """Return a field's value of a plan's spec in a document's notation."""
    if value is None:
        return "null"
    info = field_at(".".join(map(str, path)))
    if info is not None and isinstance(value, float) and _has_unit(info, Seconds):
        return f"{_plain(value)}s"
    if info is not None and (write := next((write for unit, write in _WRITTEN if _has_unit(info, unit)), None)) is not None:
        return write(value)
    if isinstance(value, dict):
        given = {key: as_written((), item) for key, item in value.items() if item is not None}
        return _quantity(value) or "{" + ", ".join(f"{key}: {item}" for key, item in given.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(as_written((), item) for item in value) + "]"
    return json.dumps(value, ensure_ascii=False)


def entry_for(found: Iterable[ValueChange], from_step: int) -> str:
    """Return the entry of `history` for the changes."""
    values = ", ".join(f"{change.name}: {as_written(change.path, change.new)}" for change in found)
    return f"{{from_step: {from_step}, set: {{{values}}}}}"


def _row(path: tuple[str, ...]) -> str:
    """Return the row of a field: its own, or that of a section around it."""
    return next(row for length in range(len(path), 0, -1) if (row := ".".join(path[:length])) in CHANGES)


def _settled(spec: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the spec in a canonical form: a model as its sizes, if they are known, a batch in sequences."""
    model, batch = spec.get("model"), spec.get("batch")
    found = dict(spec)
    if model and model.get("layers"):
        found["model"] = {**model, "preset": None, "config": None}
    if batch and batch["global"]["tokens"]:
        found["batch"] = {**batch, "global": {"sequences": batch["global"]["tokens"] // batch["sequence"], "tokens": None}}
    return found


@cache
def _all_fields() -> Mapping[tuple[str, ...], FieldInfo]:
    return dict(_fields(TrainingJob))


def _fields(model: type[BaseModel], above: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], FieldInfo]]:
    """Yield every field that is no section itself, by its path in a document."""
    for name, info in field_names(model).items():
        section = _section(info)
        if section is None:
            yield (*above, name), info
        else:
            yield from _fields(section, (*above, name))


def _section(info: FieldInfo) -> type[BaseModel] | None:
    """Return the model of a field that is a section, required or not."""
    around = typing.get_origin(info.annotation)
    inside = typing.get_args(info.annotation) if around in (typing.Union, types.UnionType) else (info.annotation,)
    return next((each for each in inside if isinstance(each, type) and issubclass(each, BaseModel)), None)


def _is_open(info: FieldInfo) -> bool:
    """Return whether it is a mapping with keys that are not headway's."""
    return typing.get_origin(info.annotation) is dict


def _value(spec: Mapping[str, Any], path: tuple[str, ...], info: FieldInfo) -> Any:
    """Return the spec's value at `path`; the field's default if a section is missing, or the field did not exist yet."""
    found: Any = spec
    for segment in path:
        if not isinstance(found, Mapping) or segment not in found:
            default = info.get_default(call_default_factory=True)
            return None if default is PydanticUndefined else to_jsonable_python(default)
        found = found[segment]
    return found


def _differences(path: Path, info: FieldInfo, old: Any, new: Any) -> Iterator[tuple[Path, Any, Any]]:
    """Yield where the values of one field differ, each with the older and the newer value."""
    if _is_open(info):
        keys = [*old, *(key for key in new if key not in old)]
        yield from (((*path, key), old.get(key), new.get(key)) for key in keys if old.get(key) != new.get(key))
    elif _holds_tiers(info):
        yield from _tiers(path, old or [], new or [])
    elif old != new:
        yield path, old, new


def _holds_tiers(info: FieldInfo) -> bool:
    return typing.get_args(info.annotation)[:1] == (Tier,)


def _tiers(path: Path, old: list[dict[str, Any]], new: list[dict[str, Any]]) -> Iterator[tuple[Path, Any, Any]]:
    """Tiers that came, went, or differ in a field; their order means nothing."""
    before, after = ({tier["kind"]: tier for tier in tiers} for tiers in (old, new))
    yield from ((path, tier, None) for kind, tier in before.items() if kind not in after)
    for index, tier in enumerate(new):
        if (was := before.get(tier["kind"])) is None:
            yield (*path, index), None, tier
            continue
        for name in tier:
            if was.get(name) != tier[name]:
                yield (*path, index, name), was.get(name), tier[name]


def _quantity(value: dict[str, Any]) -> str | None:
    """Return a number of one of several units, as `100 steps`; None for any other mapping."""
    units = set(value)
    if units not in [{field.name for field in dataclasses.fields(kind)} for kind in (Amount, Interval)]:
        return None
    unit, number = next((unit, number) for unit, number in value.items() if number is not None)
    return f"{_plain(number)}s" if unit == "seconds" else f"{number} {unit}"


def _has_unit(info: FieldInfo, unit: Any) -> bool:
    """Return whether the field's values are read by the unit, with or without None."""
    inside = [each for part in typing.get_args(info.annotation) for each in getattr(part, "__metadata__", ())]
    return any(each is unit.__metadata__[0] for each in (*info.metadata, *inside))


def _plain(number: float) -> str:
    """Return the number without an exponent and without zeros at the end."""
    return f"{number:.9f}".rstrip("0").rstrip(".")
