"""Writes a plan as JSON that reads well in a diff: sorted keys, and one line for whatever fits."""

import json
from typing import Any

_WIDTH = 120


def json_text(value: Any) -> str:
    """`value` as JSON text with a line break at the end. The same value gives the same bytes."""
    return _text(value, 0) + "\n"


def _text(value: Any, indent: int) -> str:
    line = json.dumps(value, sort_keys=True, allow_nan=False)
    if len(line) + indent <= _WIDTH or not isinstance(value, dict | list | tuple) or not value:
        return line
    pad = " " * (indent + 2)
    if isinstance(value, dict):
        items = [f"{json.dumps(key)}: {_text(value[key], indent + 2)}" for key in sorted(value)]
        begin, end = "{", "}"
    else:
        items = [_text(item, indent + 2) for item in value]
        begin, end = "[", "]"
    return f"{begin}\n{pad}" + f",\n{pad}".join(items) + f"\n{' ' * indent}{end}"
