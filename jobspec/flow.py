"""Writes a value as YAML on one line (flow style)."""

import json
import re
from collections.abc import Mapping
from typing import Any

from headway.jobspec.scalar import plain_scalar

# Text that needs no quotes between brackets (YAML 1.2, 7.3.3), and some less.
_PLAIN = re.compile(r"(?!-(?: |$))[\w./~+<-]([\w ./~+<>()=@*$%-]|:(?=[\w/]))*(?<! )")

_LONGEST_FLOW = 120


def flow(value: Any) -> str:
    """Return the value as YAML in one line, which a document may contain unchanged."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{flow(key)}: {flow(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(flow, value)) + "]"
    if isinstance(value, str) and _means_itself(value):
        return value
    return json.dumps(value, ensure_ascii=False)


def short_flow(value: Any) -> str:
    """Return the value as `flow` writes it, in backticks; a long one is cut."""
    return shortened(flow(value))


def shortened(text: str) -> str:
    return f"`{text}`" if len(text) <= _LONGEST_FLOW else f"`{text[:_LONGEST_FLOW]}...`"


def _means_itself(text: str) -> bool:
    try:
        return _PLAIN.fullmatch(text) is not None and plain_scalar(text) == text
    except ValueError:
        return False
