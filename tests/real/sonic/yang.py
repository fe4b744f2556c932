"""Validates a switch's config_db.json against SONiC's own YANG models.

`SonicModels(folder).complaints(text)` is empty for allowed values. The mapping from JSON to the models' tree is derived from the
models themselves: each table is a container of one module, a row of it a container or an entry of a list with as many keys as the
row's name has parts, and a map is a list with two leaves inside of that entry. Anything that does not fit is an error, never skipped.
"""

import functools
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

# sonic-yang-mgmt, LEAF_LIST_WITH_STRING_VALUE_DICT: lists of the models that config_db.json writes as one text
LISTS_IN_A_TEXT = {
    ("BUFFER_PORT_EGRESS_PROFILE_LIST", "profile_list"): ",",
    ("BUFFER_PORT_INGRESS_PROFILE_LIST", "profile_list"): ",",
    ("PORT", "adv_speeds"): ",",
    ("PORT", "adv_interface_types"): ",",
}

MODELS_VARIABLE = "SONIC_YANG_MODELS"
CHECKOUT = Path(__file__).parents[3]


def shared_data(name: str) -> Path:
    """The folder `name` of the facts in a folder `shared` next to the checkout, or above it."""
    found = (parent / "shared" / "data" / name for parent in CHECKOUT.parents)
    return next((folder for folder in found if folder.is_dir()), CHECKOUT.parent / "shared" / "data" / name)


def models_folder() -> Path:
    """The folder of sonic-*.yang, given by the environment or next to the checkout."""
    given = os.environ.get(MODELS_VARIABLE)
    return Path(given) if given else shared_data("sonic-yang")


def obstacle() -> str | None:
    """Why nothing can be validated here, with a remedy; None if it can."""
    packages = {"pyang": "pyang", "oopt_gnpy_libyang": "oopt-gnpy-libyang"}
    absent = [package for module, package in packages.items() if find_spec(module) is None]
    if absent:
        return f"run `pip install {' '.join(absent)}`"
    if not (models_folder() / "sonic-port.yang").is_file():
        return f"no sonic-port.yang in `{models_folder()}`; set {MODELS_VARIABLE} to the rendered models of sonic-buildimage"
    return None


@functools.cache
def models() -> "SonicModels":
    """The models of this machine, read once."""
    return SonicModels(models_folder())


class DoesNotFitError(Exception):
    """A table, row or value without a place in the models."""


@dataclass(frozen=True)
class Rows:
    """A list or container of rows: its name, the names of its keys, its lists of values, and its map, if the row is one.

    `lists`: field -> the separator between the values if config_db.json has them in one text. `map`: the list, its key, its value.
    """

    name: str
    keys: tuple[str, ...]
    lists: Mapping[str, str | None]
    map: tuple[str, str, str] | None


@dataclass(frozen=True)
class Module:
    """A module, whose container of the same name holds its tables."""

    name: str
    namespace: str


@dataclass(frozen=True)
class Table:
    """A table of config_db.json: the rows with a fixed name and those with keys."""

    module: Module
    fixed: dict[str, Rows]
    keyed: tuple[Rows, ...]


class SonicModels:
    """Every module of a folder, loaded once."""

    def __init__(self, folder: Path) -> None:
        libyang: Any = import_module("oopt_gnpy_libyang")
        # errors are kept for `complaints`; libyang's messages about the models themselves are irrelevant here
        libyang.set_log_options(libyang.LogOptions.Store)
        self._libyang = libyang
        self.tables = dict(_tables(folder))
        option = libyang.ContextOptions
        self._context = libyang.Context(str(folder), option.NoYangLibrary | option.RefImplemented | option.DisableSearchCwd)
        # references into a module that is only imported are not checked, so each is loaded separately
        for path in sorted(folder.glob("*.yang")):
            self._context.load_module(path.stem)

    def complaints(self, text: str) -> list[str]:
        """The violations of the models in the config_db.json `text`."""
        try:
            xml = self._xml(_document(text))
        except (DoesNotFitError, json.JSONDecodeError) as error:
            return [str(error)]
        return self._validate(xml)

    def _xml(self, document: dict[str, Any]) -> str:
        modules: dict[Module, list[str]] = {}
        for name, rows in document.items():
            if name not in self.tables:
                raise DoesNotFitError(f"`{name}` is no table of the models")
            if not isinstance(rows, dict) or not rows:
                raise DoesNotFitError(f"`{name}` holds no rows")
            table = self.tables[name]
            text = "".join(_row(name, table, key, row) for key, row in rows.items())
            modules.setdefault(table.module, []).append(f"<{name}>{text}</{name}>")
        return "".join(
            f'<{module.name} xmlns="{module.namespace}">{"".join(texts)}</{module.name}>' for module, texts in modules.items()
        )

    def _validate(self, xml: str) -> list[str]:
        libyang = self._libyang
        parsing = libyang.ParseOptions.Strict | libyang.ParseOptions.NoState
        self._context.clean_all_errors()
        try:
            self._context.parse_data(xml, libyang.DataFormat.XML, parsing, libyang.ValidationOptions.MultiError)
        except (libyang.Error, libyang.ErrorWithCode) as error:
            found = [
                f"{entry.message} ({entry.data_path})"
                for entry in self._context.errors()
                if entry.level == libyang.LogLevel.Error
            ]
            return found or [str(error)]
        return []


def _document(text: str) -> dict[str, Any]:
    document = json.loads(text, object_pairs_hook=_unique)
    if not isinstance(document, dict):
        raise DoesNotFitError("not a JSON object")
    return document


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise DoesNotFitError(f"a key stands twice among {[key for key, _ in pairs]}")
    return result


def _row(table_name: str, table: Table, key: str, row: Any) -> str:
    where = f"{table_name}|{key}"
    if not isinstance(row, dict):
        raise DoesNotFitError(f"`{where}` is not an object")
    fixed = table.fixed.get(key)
    if fixed is not None:
        return f"<{key}>{_fields(where, fixed, row)}</{key}>"
    parts = key.split("|")
    fitting = [rows for rows in table.keyed if len(rows.keys) == len(parts)]
    if len(fitting) != 1:
        raise DoesNotFitError(f"`{where}`: {len(fitting)} lists of the models have {len(parts)} keys")
    (rows,) = fitting
    keys = "".join(f"<{name}>{escape(part)}</{name}>" for name, part in zip(rows.keys, parts, strict=True))
    return f"<{rows.name}>{keys}{_fields(where, rows, row)}</{rows.name}>"


def _fields(where: str, rows: Rows, row: dict[str, Any]) -> str:
    # Redis keeps no empty hash, so SONiC writes a row without fields as {"NULL": "NULL"}
    fields = {name: value for name, value in row.items() if (name, value) != ("NULL", "NULL")}
    return "".join(_field(f"{where}|{name}", rows, name, value) for name, value in fields.items())


def _field(where: str, rows: Rows, name: str, value: Any) -> str:
    if rows.map is not None:
        entry, key, target = rows.map
        return f"<{entry}><{key}>{escape(name)}</{key}><{target}>{escape(_text(where, value))}</{target}></{entry}>"
    if not name.replace("-", "_").isidentifier():
        raise DoesNotFitError(f"`{where}` is no name of a field")
    values = _values(where, rows, name, value)
    return "".join(f"<{name}>{escape(_text(where, item))}</{name}>" for item in values)


def _values(where: str, rows: Rows, name: str, value: Any) -> list[Any]:
    separator = rows.lists.get(name)
    if separator is not None and isinstance(value, str):
        return value.split(separator)
    if isinstance(value, list) != (name in rows.lists):
        raise DoesNotFitError(f"`{where}` {'must be a' if name in rows.lists else 'is no'} list")
    return value if isinstance(value, list) else [value]


def _text(where: str, value: Any) -> str:
    if not isinstance(value, str):
        raise DoesNotFitError(f"`{where}` is not text but {value!r}")
    return value


def _tables(folder: Path) -> Iterator[tuple[str, Table]]:
    repository = import_module("pyang.repository").FileRepository(str(folder))
    context = import_module("pyang.context").Context(repository)
    modules = [context.add_module(path.name, path.read_text()) for path in sorted(folder.glob("*.yang"))]
    context.validate()
    for module in modules:
        named = Module(module.arg, module.search_one("namespace").arg)
        for top in _children(module, "container"):
            for table in _children(top, "container") if top.arg == module.arg else ():
                fixed = {child.arg: _rows(table.arg, child) for child in _children(table, "container")}
                keyed = tuple(_rows(table.arg, child) for child in _children(table, "list"))
                yield table.arg, Table(named, fixed, keyed)


def _rows(table: str, statement: Any) -> Rows:
    keys = tuple(key.arg for key in getattr(statement, "i_key", ()))
    lists = {leaf.arg: LISTS_IN_A_TEXT.get((table, leaf.arg)) for leaf in _children(statement, "leaf-list")}
    return Rows(statement.arg, keys, lists, _map(list(_children(statement, "list"))))


def _map(inner: list[Any]) -> tuple[str, str, str] | None:
    if len(inner) != 1:
        return None
    leaves = [leaf.arg for leaf in _children(inner[0], "leaf")]
    (key,) = (leaf.arg for leaf in inner[0].i_key)
    (target,) = (leaf for leaf in leaves if leaf != key)
    return inner[0].arg, key, target


def _children(statement: Any, keyword: str) -> Iterable[Any]:
    """The nodes of one kind below `statement`, also those within a choice, which has no place in the data."""
    for child in statement.i_children:
        if child.keyword == keyword:
            yield child
        elif child.keyword in {"choice", "case"}:
            yield from _children(child, keyword)
