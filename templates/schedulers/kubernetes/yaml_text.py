"""Renders a Jinja template as YAML in which every value is quoted, whatever it contains."""

import json
import re
from pathlib import Path
from typing import Any

from headway.templates.template import fill

# Compiled on first use: sets of so many characters take milliseconds, and a check quotes nothing. Besides what JSON
# escapes: what YAML 1.2 (5.1) does not call printable, and characters that it reads as line breaks.
_ESCAPED = "[\x7f-\x9f\u2028\u2029\ud800-\udfff\ufeff\ufffe\uffff]"
_NOT_IN_A_BLOCK = "[^\n\t\x20-\x7e\xa0-\u2027\u202a-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]"


class Yaml(str):
    """Text that is YAML already, and is printed unchanged."""

    __slots__ = ()


def quote(value: Any) -> str:
    """Return `value` as JSON, which is YAML too, in one line; YAML text stays unchanged."""
    if isinstance(value, Yaml):
        return value
    return re.sub(_ESCAPED, lambda found: f"\\u{ord(found[0]):04x}", json.dumps(value, ensure_ascii=False, allow_nan=False))


def comment(text: str) -> Yaml:
    """Return `text` for a comment. Raises ValueError when it would leave the comment."""
    if len(text.splitlines()) > 1:
        raise ValueError(f"a comment of several lines: {text!r}")
    return Yaml(quote(text)[1:-1] if re.search(_NOT_IN_A_BLOCK, text) else text)


def block(text: str, indent: int) -> Yaml:
    """Return lines of text unchanged, `indent` deep; quoted in one line if a literal block cannot hold them."""
    if not re.match(r"[^\s]", text) or not text.endswith("\n") or text.endswith("\n\n") or re.search(_NOT_IN_A_BLOCK, text):
        return Yaml(quote(text))
    lines = [" " * indent + line if line else line for line in text.removesuffix("\n").split("\n")]
    return Yaml("\n".join(["|", *lines]))


def render_yaml(template: Path, **values: Any) -> str:
    """Return the template filled with `values`. Raises jinja2.UndefinedError for a missing one."""
    return fill(template, quote, comment, values)
