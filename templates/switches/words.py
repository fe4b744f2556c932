"""Puts values of the plan into commands of switches as words."""

from functools import lru_cache
from typing import Any

from headway.templates.shell import Shell


def word(value: Any) -> str:
    """Return `value` as one word of a command; FRR and EOS have no quotes. Text that went through `comment` may have blanks."""
    return value if isinstance(value, Shell) else _checked(str(value))


@lru_cache(65536)
def _checked(text: str) -> str:
    """Return the text. The switches of a fabric have most of their words in common."""
    if not text.isprintable() or len(text.split()) != 1 or text.startswith(("!", "#")):
        raise ValueError(f"not one word of a command: {text!r}")
    return text
