"""Puts values of the plan into commands of switches as words."""

from typing import Any

from headway.templates.shell import Shell


def word(value: Any) -> str:
    """Return `value` as one word of a command; FRR and EOS have no quotes. Text that went through `comment` may have blanks."""
    if isinstance(value, Shell):
        return value
    text = str(value)
    if not text.isprintable() or len(text.split()) != 1 or text.startswith(("!", "#")):
        raise ValueError(f"not one word of a command: {text!r}")
    return text
