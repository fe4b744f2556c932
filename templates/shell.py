"""Renders a Jinja template as shell text in which every value is quoted, whatever it contains."""

import shlex
from pathlib import Path
from typing import Any

from headway.templates.template import fill


class Shell(str):
    """Text that is shell already, and is printed unchanged."""

    __slots__ = ()


def comment(text: str) -> Shell:
    """Return `text` for a comment. Raises ValueError when it would leave the comment."""
    if len(text.splitlines()) > 1:
        raise ValueError(f"a comment of several lines: {text!r}")
    return Shell(text)


def quote(value: Any) -> str:
    """Return `value` as one word of shell; shell text stays unchanged."""
    if isinstance(value, Shell):
        return value
    quoted = shlex.quote(str(value))
    # zsh expands a word that begins with `=`, and shellcheck takes `A==b` for a comparison.
    return f"'{quoted}'" if quoted.startswith("=") else quoted


def render_shell(template: Path, **values: Any) -> str:
    """Return the template filled with `values`. Raises jinja2.UndefinedError for a missing one."""
    return fill(template, quote, comment, values)
