"""Represents a YAML document with the position of every key and value."""

import re
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path as FilePath
from typing import Any, NamedTuple

from msgspec import Struct, field

from headway.jobspec.credentials import STARS, find_credentials, starred

Path = tuple[str | int, ...]

# The line breaks of YAML 1.1, by which libyaml counts lines; str.splitlines accepts others too.
LINE_BREAK = re.compile("\r\n|[\r\n\x85\u2028\u2029]")

_QUOTED = 60
_SHORTEST_SECRET = 6


class Span(NamedTuple):
    """From a line and column to another, counted from 0 in characters; the end is not part of it."""

    line: int
    column: int
    end_line: int
    end_column: int


class Document(Struct, frozen=True, dict=True):
    """`data` as read from `text`, and the position of every key and value of it.

    In a document that extends others, `data` is the merged result. `origins` maps each inherited part to the base whose
    text has it; `keys` and `values` are positions in that text then.
    """

    name: str
    text: str = ""
    data: Any = None
    keys: Mapping[Path, Span] = field(default_factory=dict)
    values: Mapping[Path, Span] = field(default_factory=dict)
    scalars: frozenset[Path] = frozenset()
    origins: Mapping[Path, "Document"] = field(default_factory=dict)

    def lines(self) -> list[str]:
        """Return the lines of the text, without their breaks."""
        return self._lines

    @cached_property
    def _lines(self) -> list[str]:
        return LINE_BREAK.split(self.text)

    @cached_property
    def credentials(self) -> Mapping[Path, str]:
        """The scalars that are secrets, and what each looks like; no message and no excerpt shows them."""
        return find_credentials(self.data)

    def shown(self, line: int) -> str:
        """Return the line, stars in place of secrets; empty when there is no such line."""
        # A hundred problems may be on one line of a million characters.
        if line not in self._shown:
            self._shown[line] = self._without_secrets(line)
        return self._shown[line]

    @cached_property
    def _shown(self) -> dict[int, str]:
        return {}

    def _without_secrets(self, line: int) -> str:
        text = self._lines[line] if line < len(self._lines) else ""
        for span in self._secrets_of_lines.get(line, ()):
            start = span.column if line == span.line else 0
            end = span.end_column if line == span.end_line else len(text)
            text = text[:start] + "*" * (end - start) + text[end:]
        return starred(text)

    @cached_property
    def _secrets_of_lines(self) -> Mapping[int, list[Span]]:
        """Return the positions of secrets in this text, by line."""
        found: dict[int, list[Span]] = {}
        for path in self.credentials:
            if path in self.values and self.origin(path) is self:
                span = self.values[path]
                for line in range(span.line, span.end_line + 1):
                    found.setdefault(line, []).append(span)
        return found

    def starred(self, text: str | None) -> str | None:
        """Return a message about the document without its secrets."""
        return None if text is None else starred(text, self._secret_values)

    @cached_property
    def _secret_values(self) -> tuple[str, ...]:
        """Return the values, long ones first, since one may contain another; texts shorter than a password stay unchanged."""
        values = {str(self.value(path)) for path in self.credentials}
        return tuple(sorted((value for value in values if len(value) >= _SHORTEST_SECRET), key=len, reverse=True))

    def origin(self, path: Path) -> "Document":
        """Return the document whose text has the value at `path`: this one, or a base of it."""
        ancestors = (path[:length] for length in range(len(path), 0, -1))
        return next((self.origins[each] for each in ancestors if each in self.origins), self)

    def folder(self, path: Path) -> FilePath:
        """Return the folder from which a relative path of a file at `path` counts."""
        return FilePath(self.origin(path).name).parent

    def span(self, path: Path, at_key: bool = False) -> Span | None:
        """Return the position of `path`: a scalar at its value, all else at its key. A missing path is found at its
        deepest ancestor."""
        while path and path not in self.values:
            path = path[:-1]
        if path in self.scalars and not at_key:
            return self.values[path]
        return self.keys.get(path) or self._first_keys.get(path) or self.values.get(path)

    @cached_property
    def _first_keys(self) -> Mapping[Path, Span]:
        """Return the begin of each mapping, the position of one without a key (the document, an item of a list)."""
        first: dict[Path, Span] = {}
        for path, span in self.keys.items():
            first.setdefault(path[:-1], span)
        return first

    def source(self, path: Path) -> str:
        """Return the scalar at `path` as it is written, quotes included, a long one clipped, a secret starred; other
        values as their type's name."""
        path = path[:-1] if path[:-1] in self.scalars else path
        span = self.values.get(path)
        if span is None or path not in self.scalars:
            value = self.value(path)
            return "a mapping" if not isinstance(value, list) else f"a list of {len(value)}" if value else "an empty list"
        if path in self.credentials:
            return STARS
        if span.line != span.end_line:
            return "a text of several lines"
        return clipped(self.origin(path).lines()[span.line][span.column : span.end_column])

    def value(self, path: Path) -> Any:
        """Return the value at `path`; None when there is none. A single text is also the only item of a list."""
        found = self.data
        for segment in path:
            if isinstance(found, str) and segment == 0:
                continue
            try:
                found = found[segment]
            except (KeyError, IndexError, TypeError):
                return None
        return found


def dotted(path: Path) -> str:
    """Return the path as messages name it: `checkpoint.tiers[0].every`."""
    return "".join(f"[{segment}]" if isinstance(segment, int) else f".{segment}" for segment in path).lstrip(".")


def clipped(text: str, width: int = _QUOTED) -> str:
    """Return `text` as a message may quote it: text longer than `width` ends in three points."""
    return text if len(text) <= width else f"{text[: width - 3]}..."
