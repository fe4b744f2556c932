"""Reads the value of a plain YAML scalar by YAML 1.2's core schema, with decimal integers only."""

import math
import re

_NULL = {"", "~", "null", "Null", "NULL"}
_BOOL = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_NUMERIC = frozenset("0123456789.+-")
_LEADING_ZERO = re.compile(r"[-+]?0[0-9_]+([.eE].*)?")
_INT = re.compile(r"[-+]?(0|[1-9][0-9]*)")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|(0|[1-9][0-9]*)(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_NOT_FINITE = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
_LARGEST = 2**63 - 1


class LeadingZeroError(ValueError):
    """A number such as `0123`, which is octal to one reader of YAML, decimal to another and text to a third."""


class NotFiniteError(ValueError):
    """A number without a finite value of 64 bits."""


def plain_scalar(text: str) -> str | int | float | bool | None:
    """Return the value of an unquoted `text`. Raises LeadingZeroError and NotFiniteError."""
    if text in _NULL:
        return None
    if text in _BOOL:
        return _BOOL[text]
    if text[0] not in _NUMERIC:
        return text
    if _LEADING_ZERO.fullmatch(text):
        raise LeadingZeroError(text)
    if _INT.fullmatch(text):
        return _integer(text)
    if _FLOAT.fullmatch(text) or _NOT_FINITE.fullmatch(text):
        return _number(text)
    return text


def _integer(text: str) -> int:
    # Longer texts are beyond 64 bits, and int() refuses the longest of them.
    if len(text) > 20 or abs(int(text)) > _LARGEST:
        raise NotFiniteError(text)
    return int(text)


def _number(text: str) -> float:
    value = math.inf if _NOT_FINITE.fullmatch(text) else float(text)
    if not math.isfinite(value):
        raise NotFiniteError(text)
    return value
