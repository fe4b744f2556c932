"""Defines the two-way table between the fields of a spec and the keys of a framework's own configuration.

A table writes the configuration of a plan and reads the fields back from one. Its keys are dotted where the configuration is nested.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Protocol

from msgspec import Struct

from headway.jobspec.problem import JOB, Problem
from headway.jobspec.suggest import joined_or
from headway.templates.trainers.script.arguments import LATE, NAMES

# By field of the spec; None where neither the job nor the plan has a value.
Known = Mapping[str, Any]
# By dotted key.
Config = Mapping[str, Any]

# Arguments of scripts that set no field of a framework: those of the run and of its nodes, and those that another field sets.
_OF_ARGUMENTS = ("name", "runs", *LATE, "nodes", "world_size", "model.preset", "layout.layers_per_stage", "batch.accumulation")
# The fields that define what is trained and how: those that a script's arguments may have, and those of the model's architecture.
# A field that a table leaves to the script is named by its section alone.
FIELDS = (
    *(name for name in NAMES if name not in _OF_ARGUMENTS),
    "model.mlp",
    "model.norm",
    "model.positions",
    "model.tie_embeddings",
    "model.qkv_bias",
    "model.linear_bias",
    "model.qk_norm",
    "model.experts.count",
    "model.experts.top_k",
    "model.experts.ffn_hidden",
    "model.experts.shared",
    "model.experts.shared_ffn_hidden",
    "model.experts.first_dense",
    "model.experts.every",
    "model.latent_attention.q_rank",
    "model.latent_attention.kv_rank",
    "model.latent_attention.nope_head",
    "model.latent_attention.rope_head",
    "model.latent_attention.value_head",
)

# The fields whose paths in a document are others.
_PATHS: Mapping[str, tuple[str, ...]] = {
    "checkpoint.shared.steps": ("checkpoint",),
    "checkpoint.shared.seconds": ("checkpoint",),
}


class TableRow(Protocol):
    """A part of a table. `keys` are those that it may write."""

    @property
    def fields(self) -> tuple[str, ...]: ...

    @property
    def keys(self) -> tuple[str, ...]: ...

    def write(self, known: Known) -> Mapping[str, Any]:
        """Return the keys for the values."""

    def read(self, config: Config, ranks: int) -> Mapping[str, Any]:
        """Return the values of the fields that the keys say, on so many ranks."""

    def refusals(self, known: Known) -> Iterator[tuple[str, str, str]]:
        """Yield each field with a value that the framework does not do, what it does instead, and the remedy."""

    def words(self, name: str) -> str:
        """Return the cell of the documentation for the field, in Markdown."""


class Same(Struct, frozen=True):
    """A key with the field's value. `default` is the framework's own value, without the key; `as_type` converts ours."""

    name: str
    key: str
    default: Any = None
    as_type: Callable[[Any], Any] | None = None

    @property
    def fields(self) -> tuple[str, ...]:
        return (self.name,)

    @property
    def keys(self) -> tuple[str, ...]:
        return (self.key,)

    def write(self, known: Known) -> Mapping[str, Any]:
        value = known[self.name]
        if value is not None and self.as_type is not None:
            value = self.as_type(value)
        return {} if value is None else {self.key: value}

    def read(self, config: Config, ranks: int) -> Mapping[str, Any]:
        value = config.get(self.key)
        return {self.name: self.default if value is None else value}

    def refusals(self, known: Known) -> Iterator[tuple[str, str, str]]:
        return iter(())

    def words(self, name: str) -> str:
        return f"`{self.key}`"


class ValueRow(Struct, frozen=True):
    """Keys that depend on which value the field has; None as a key's value: the key is absent, null or false.

    A value that is not among `values` is refused, for `why`.
    """

    name: str
    values: Mapping[Any, Mapping[str, Any]]
    why: str = ""
    hint: str = ""
    # What the documentation adds to the values.
    note: str = ""

    @property
    def fields(self) -> tuple[str, ...]:
        return (self.name,)

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(key for keys in self.values.values() for key in keys))

    def write(self, known: Known) -> Mapping[str, Any]:
        return {key: value for key, value in self.values.get(known[self.name], {}).items() if value is not None}

    def read(self, config: Config, ranks: int) -> Mapping[str, Any]:
        for value, keys in self.values.items():
            if all(_means(config.get(key), theirs) for key, theirs in keys.items()):
                return {self.name: value}
        return {self.name: None}

    def refusals(self, known: Known) -> Iterator[tuple[str, str, str]]:
        if known[self.name] is not None and known[self.name] not in self.values:
            yield self.name, self.why or f"has {_listed(self.values)} only", self.hint or f"use {_listed(self.values)}"

    def words(self, name: str) -> str:
        own = {value: " ".join(_assigned(key, theirs) for key, theirs in keys.items() if theirs is not None)
               for value, keys in self.values.items()}  # fmt: skip
        cells = "; ".join(f"{_plain(value)}: {text or 'left out'}" for value, text in own.items())
        return f"{cells}; {self.note}" if self.note else cells


class Computed(Struct, frozen=True):
    """Keys that several fields make up together."""

    fields: tuple[str, ...]
    keys: tuple[str, ...]
    to: Callable[[Known], Mapping[str, Any]]
    back: Callable[[Config, int], Mapping[str, Any]]
    objection: Callable[[Known], Iterable[tuple[str, str, str]]] = lambda known: ()

    def write(self, known: Known) -> Mapping[str, Any]:
        return {key: value for key, value in self.to(known).items() if value is not None}

    def read(self, config: Config, ranks: int) -> Mapping[str, Any]:
        return self.back(config, ranks)

    def refusals(self, known: Known) -> Iterator[tuple[str, str, str]]:
        return iter(self.objection(known))

    def words(self, name: str) -> str:
        return ", ".join(f"`{key}`" for key in self.keys)


class Lacks(Struct, frozen=True):
    """Fields that the framework does one way only: values besides `allowed` are refused."""

    fields: tuple[str, ...]
    allowed: tuple[Any, ...]
    why: str
    hint: str = ""
    keys: tuple[str, ...] = ()

    def write(self, known: Known) -> Mapping[str, Any]:
        return {}

    def read(self, config: Config, ranks: int) -> Mapping[str, Any]:
        return {name: self.allowed[0] if len(self.allowed) == 1 else None for name in self.fields}

    def refusals(self, known: Known) -> Iterator[tuple[str, str, str]]:
        for name in self.fields:
            if known[name] is not None and known[name] not in self.allowed:
                last = name.rpartition(".")[2]
                only = f"use {_listed(self.allowed)}, or leave `{last}` out" if self.allowed else f"leave `{last}` out"
                yield name, self.why, self.hint or only

    def words(self, name: str) -> str:
        return f"{_listed(self.allowed)} only: {self.why}" if self.allowed else f"refused: {self.why}"


class Elsewhere(Struct, frozen=True):
    """Fields, or whole sections, that the configuration has no key for. With `asked` the training script reads them, if
    `arguments` pass them; else the trainer's options or its data say them."""

    fields: tuple[str, ...]
    where: str
    asked: bool = True
    keys: tuple[str, ...] = ()

    def write(self, known: Known) -> Mapping[str, Any]:
        return {}

    def read(self, config: Config, ranks: int) -> Mapping[str, Any]:
        return {}

    def refusals(self, known: Known) -> Iterator[tuple[str, str, str]]:
        return iter(())

    def words(self, name: str) -> str:
        return self.where


class Table(Struct, frozen=True):
    """The table of one framework, which messages call `name`. `own` are the keys that headway sets without a field."""

    name: str
    version: str
    rows: tuple[TableRow, ...]
    own: Callable[[Known], Mapping[str, Any]] = lambda known: {}

    def write(self, known: Known) -> dict[str, Any]:
        """Return the configuration by its dotted keys."""
        found = dict(self.own(known))
        for row in self.rows:
            found.update(row.write(known))
        return found

    def read(self, config: Config, ranks: int) -> dict[str, Any]:
        """Return the values of the fields that the configuration, by its dotted keys, has for so many ranks."""
        found: dict[str, Any] = {}
        for row in self.rows:
            found.update(row.read(config, ranks))
        return found

    def row_of(self, name: str) -> TableRow | None:
        """Return the row of the field."""
        sections = {name, *(name.rpartition(".")[0], name.partition(".")[0])}
        return next((row for row in self.rows if sections & set(row.fields)), None)

    def field_of(self, key: str) -> str | None:
        """Return the field that the key is written for: of several the one whose name it has, else how the model is split."""
        fields = next((row.fields for row in self.rows if key in row.keys and row.fields), ())
        last = key.rpartition(".")[2]
        named = next((each for each in fields if each.rpartition(".")[2] in last), None)
        return named or next((each for each in fields if each == "layout.sharding"), next(iter(fields), None))

    def refusals(self, known: Known) -> Iterator[Problem]:
        """Yield a problem for each value that the framework does not do."""
        for row in self.rows:
            for name, why, hint in row.refusals(known):
                yield Problem("HW306", JOB, path_of(name), f"{self.name} {why}", hint)

    @property
    def left(self) -> tuple[str, ...]:
        """The fields and sections that are left to the script."""
        return tuple(name for row in self.rows if isinstance(row, Elsewhere) and row.asked for name in row.fields)


def path_of(name: str) -> tuple[str, ...]:
    """Return the path of the field in a document."""
    return _PATHS.get(name, tuple(name.split(".")))


def flat(nested: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the leaves of nested mappings by dotted keys; an empty mapping is a leaf."""
    found: dict[str, Any] = {}
    for key, value in nested.items():
        if isinstance(value, Mapping) and value:
            found.update(flat(value, f"{prefix}{key}."))
        else:
            found[f"{prefix}{key}"] = value
    return found


def nested(config: Config) -> dict[str, Any]:
    """Return nested mappings for dotted keys."""
    found: dict[str, Any] = {}
    for key, value in config.items():
        *sections, last = key.split(".")
        place = found
        for section in sections:
            place = place.setdefault(section, {})
        place[last] = value
    return found


def _means(found: Any, theirs: Any) -> bool:
    return found in (None, False) if theirs is None else bool(found == theirs)


def _listed(values: Iterable[Any]) -> str:
    return joined_or([_plain(value) for value in values])


def _plain(value: Any) -> str:
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def _assigned(key: str, theirs: Any) -> str:
    return f"`{key}`" if theirs is True else f"`{key}={str(theirs).lower() if isinstance(theirs, bool) else theirs}`"
