"""Writes Markdown as GitHub reads it (https://github.github.com/gfm/): code, tables, links to headings."""

import re
from collections.abc import Iterable


def code(text: str) -> str:
    """Return `text` unchanged, also if it holds backticks (GFM 6.3)."""
    fence = "`" * (max(map(len, re.findall("`+", text)), default=0) + 1)
    padding = " " if text.startswith("`") or text.endswith("`") else ""
    return f"{fence}{padding}{text}{padding}{fence}"


def table(columns: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Return a table of Markdown cells, each of one line (GFM 4.10)."""
    names = list(columns)
    return "\n".join(map(_row, [names, ["---"] * len(names), *rows]))


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def link(text: str, title: str) -> str:
    """Return a link to the heading `title` of the same page."""
    return f"[{text}](#{anchor(title)})"


def anchor(title: str) -> str:
    """Return GitHub's anchor of a heading: lower case, hyphens for spaces, no punctuation."""
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")
