"""Renders a Jinja template as shell text in which every value is quoted, whatever it contains."""

import shlex
from pathlib import Path
from typing import Any

from headway.templates.template import fill


class Shell(str):
    """Text that is shell already, and is printed as it is."""

    __slots__ = ()


def comment(text: str) -> Shell:
    """`text` as it may stand behind `#`. Raises ValueError when it would leave the comment."""
    if len(text.splitlines()) > 1:
        raise ValueError(f"a comment of several lines: {text!r}")
    return Shell(text)


def quote(value: Any) -> str:
    """`value` as one word of shell; text that is shell already stays as it is."""
    if isinstance(value, Shell):
        return value
    quoted = shlex.quote(str(value))
    # zsh expands a word that begins with `=`, and shellcheck takes `A==b` for a comparison.
    return f"'{quoted}'" if quoted.startswith("=") else quoted


def render_shell(template: Path, **values: Any) -> str:
    """The template filled with `values`. Raises jinja2.UndefinedError when it names one that is not there."""
    return fill(template, quote, comment, values)
