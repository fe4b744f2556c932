"""A YAML document with the position of every key and value."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Path = tuple[str | int, ...]

# The line breaks of YAML 1.1, which libyaml counts lines by; str.splitlines knows others too.
_LINE_BREAK = re.compile("\r\n|[\r\n\x85\u2028\u2029]")


@dataclass(frozen=True)
class Span:
    """From a line and column to another, counted from 0 in characters; the end is not part of it."""

    line: int
    column: int
    end_line: int
    end_column: int


@dataclass(frozen=True)
class Document:
    """`data` as read from `text`, and where every key and value of it stands."""

    name: str
    text: str = ""
    data: Any = None
    keys: Mapping[Path, Span] = field(default_factory=dict)
    values: Mapping[Path, Span] = field(default_factory=dict)
    scalars: frozenset[Path] = frozenset()

    def lines(self) -> list[str]:
        return _LINE_BREAK.split(self.text)

    def span(self, path: Path, at_key: bool = False) -> Span | None:
        """Where `path` stands: a scalar at its value, all else at its key. What is not there is found at its deepest ancestor."""
        while path and path not in self.values:
            path = path[:-1]
        if path in self.scalars and not at_key:
            return self.values[path]
        return self.keys.get(path) or self._first_key(path) or self.values.get(path)

    def _first_key(self, path: Path) -> Span | None:
        """Where a mapping without a key of its own (the document, an item of a list) begins."""
        return next((span for key, span in self.keys.items() if key[:-1] == path), None)

    def source(self, path: Path) -> str:
        """The scalar at `path` as it is written, quotes included; what else stands there as its name."""
        span = self.values.get(path)
        if span is None or path not in self.scalars:
            value = self.value(path)
            return "a mapping" if not isinstance(value, list) else f"a list of {len(value)}" if value else "an empty list"
        if span.line != span.end_line:
            return "a text of several lines"
        return self.lines()[span.line][span.column : span.end_column]

    def value(self, path: Path) -> Any:
        """What stands at `path`; None when nothing does."""
        found = self.data
        for segment in path:
            try:
                found = found[segment]
            except (KeyError, IndexError, TypeError):
                return None
        return found
