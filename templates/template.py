"""Renders a Jinja template so that every value passes through one function, which makes it safe in its place."""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jinja2 import Template


def fill(template: Path, word: Callable[[Any], str], comment: Callable[[str], str], values: dict[str, Any]) -> str:
    """Return the template filled with `values`, each of them through `word`, or through `comment` where the template
    requests it.

    Raises jinja2.UndefinedError for a missing value.
    """
    return _compiled(template, word, comment).render(values)


@cache
def _compiled(path: Path, word: Callable[[Any], str], comment: Callable[[str], str]) -> "Template":
    """Compile the template, once: a large cluster has thousands of files of one template."""
    import jinja2  # noqa: PLC0415 (checking a spec must not need it)

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(path.parent),
        undefined=jinja2.StrictUndefined,
        finalize=word,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
    )
    environment.filters["comment"] = comment
    return environment.get_template(path.name)
