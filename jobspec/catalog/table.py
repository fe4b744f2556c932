"""Reads a YAML file of this folder into rows by name, all of them or a single one."""

import re
from pathlib import Path
from typing import Any

import yaml

_HERE = Path(__file__).parent


def rows(table: str) -> dict[str, dict[str, Any]]:
    """Return the rows of `<table>.yaml`, in their order."""
    found: dict[str, dict[str, Any]] = yaml.load(_text(table), yaml.CSafeLoader)
    return found


def row(table: str, name: str) -> dict[str, Any]:
    """Return one row of `<table>.yaml`; the others are not parsed. Raises KeyError."""
    found = re.search(rf"^{re.escape(name)}:\n(?:  .*\n)+", _text(table), re.MULTILINE)
    if found is None:
        raise KeyError(name)
    values: dict[str, Any] = yaml.load(found[0], yaml.CSafeLoader)[name]
    return values


def _text(table: str) -> str:
    return (_HERE / f"{table}.yaml").read_text(encoding="utf-8")
