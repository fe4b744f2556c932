"""Provides journal lines with the fewest facts that their kinds allow."""

import dataclasses
from typing import Any, get_origin, get_type_hints

from headway.runner.contract.journal import Entry

PLAIN: dict[Any, Any] = {int: 1, float: 1.0, str: "x", tuple: ()}


def example(kind: type[Entry]) -> Entry:
    """A line with a value for every required field."""
    hints = get_type_hints(kind)
    needed = [each.name for each in dataclasses.fields(kind) if each.default is dataclasses.MISSING]
    values: dict[str, Any] = {name: PLAIN.get(get_origin(hints[name]) or hints[name]) for name in needed}
    return kind(**values)
