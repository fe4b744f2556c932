"""A YAML file as a Document with positions, or the problems that keep it from being one.

The tree is built from libyaml's event stream, bounded while it is read: PyYAML's C composer crashes the process on some 100,000
nested brackets. Nothing here raises on bad input.
"""

from collections.abc import Iterator
from pathlib import Path as FilePath
from typing import Any, NoReturn

import yaml

from headway.jobspec.document import Document, Path, Span
from headway.jobspec.problem import Problem
from headway.jobspec.scalar import LeadingZeroError, NotFiniteError, plain_scalar

MAX_BYTES = 1 << 20
MAX_DEPTH = 64


def load_file(path: FilePath, name: str | None = None) -> tuple[Document, list[Problem]]:
    """The document in the file, called `name` in problems (by default its path). With a problem its data may be incomplete."""
    name = str(path) if name is None else name
    try:
        with path.open("rb") as file:
            return load_bytes(name, file.read(MAX_BYTES + 1))
    except OSError as error:
        message = f"cannot read the file: {error.strerror or error}"
        return Document(name), [Problem("HW101", name, (), message, "check the path and its permissions")]


def load_bytes(name: str, content: bytes) -> tuple[Document, list[Problem]]:
    """The document in `content`, as `load_file` reads it."""
    if len(content) > MAX_BYTES:
        message = f"the file is larger than {MAX_BYTES} bytes, the most that a spec may have"
        return Document(name), [Problem("HW103", name, (), message, "a spec is a page or two; is this the right file?")]
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        message = f"byte {error.start} is not part of UTF-8 text"
        return Document(name), [Problem("HW102", name, (), message, "save the file as UTF-8")]
    reader = _Reader(name, text)
    reader.read()
    return reader.document(), list(dict.fromkeys(reader.problems))


class _StopError(Exception):
    """Nothing after this point can be read."""


class _Reader:
    """One pass over the events of one text."""

    def __init__(self, name: str, text: str) -> None:
        self.name, self.text = name, text
        self.data: Any = None
        self.keys: dict[Path, Span] = {}
        self.values: dict[Path, Span] = {}
        self.scalars: set[Path] = set()
        self.problems: list[Problem] = []
        self._events: Iterator[yaml.Event] = iter(())

    def document(self) -> Document:
        return Document(self.name, self.text, self.data, self.keys, self.values, frozenset(self.scalars))

    def read(self) -> None:
        try:
            self._events = yaml.parse(self.text, Loader=yaml.CSafeLoader)
            self._read_stream()
        except yaml.YAMLError as error:
            self._syntax_error(error)
        except _StopError:
            pass

    def _read_stream(self) -> None:
        for event in self._events:
            if isinstance(event, yaml.DocumentStartEvent):
                if self.values:
                    self._problem("HW112", event, "a second document begins here", "put each document into a file of its own")
                    raise _StopError
                self.data = self._node((), next(self._events))
        if not isinstance(self.data, dict) and not self.problems:
            found = "empty" if self.data is None else "not a mapping"
            hint = "begin with `apiVersion: headway/v1alpha1` and `kind: TrainingJob` or `kind: Cluster`"
            self.problems.append(Problem("HW113", self.name, (), f"the document is {found}", hint))

    def _node(self, path: Path, event: yaml.Event) -> Any:
        self._refuse(event)
        if len(path) > MAX_DEPTH:
            self._too_deep(event)
        self.values[path] = _span(event)
        if isinstance(event, yaml.ScalarEvent):
            self.scalars.add(path)
            return self._scalar(event)
        if isinstance(event, yaml.SequenceStartEvent):
            return self._sequence(path)
        if isinstance(event, yaml.MappingStartEvent):
            return self._mapping(path)
        return None

    def _sequence(self, path: Path) -> list[Any]:
        items: list[Any] = []
        while not isinstance(event := next(self._events), yaml.SequenceEndEvent):
            items.append(self._node((*path, len(items)), event))
        return items

    def _mapping(self, path: Path) -> dict[str, Any]:
        found: dict[str, Any] = {}
        while not isinstance(event := next(self._events), yaml.MappingEndEvent):
            key = self._key(path, event, found)
            if key is None:
                self._skip(next(self._events))
            else:
                self.keys[*path, key] = _span(event)
                found[key] = self._node((*path, key), next(self._events))
        return found

    def _key(self, path: Path, event: yaml.Event, found: dict[str, Any]) -> str | None:
        """The key, or None when it cannot be used; then its value is read past."""
        self._refuse(event)
        if not isinstance(event, yaml.ScalarEvent):
            self._problem("HW109", event, "this key is a list or a mapping; a key is text", None)
            self._skip(event)
            return None
        value = self._scalar(event)
        if not event.style and event.value == "<<":
            self._problem("HW106", event, "merge keys are refused", "write the values out where they count")
            return None
        if not isinstance(value, str):
            self._problem("HW109", event, f"the key `{event.value}` is not text", f'quote it: `"{event.value}"`')
            return None
        if value in found:
            first = self.keys[*path, value].line + 1
            self._problem("HW108", event, f"the key `{value}` already stands on line {first}", "keep one of the two")
            return None
        return value

    def _skip(self, event: yaml.Event) -> None:
        """Reads past a node without keeping it. What it holds is still refused where it must be."""
        depth = 0
        while True:
            self._refuse(event)
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > MAX_DEPTH:
                self._too_deep(event)
            if depth == 0:
                return
            event = next(self._events)

    def _scalar(self, event: yaml.ScalarEvent) -> Any:
        if event.style:
            return event.value
        try:
            return plain_scalar(event.value)
        except LeadingZeroError:
            hint = f'quote it to keep it as text (`"{event.value}"`), or leave the zero out'
            self._problem("HW110", event, f"the number `{event.value}` begins with a zero", hint)
        except NotFiniteError:
            message = f"`{_clip(event.value)}` is not a finite number of 64 bits"
            self._problem("HW111", event, message, "quote it to keep it as text")
        return event.value

    def _refuse(self, event: yaml.Event) -> None:
        """Anchors, aliases and tags, each with its reason."""
        if isinstance(event, yaml.AliasEvent):
            self._problem("HW106", event, f"the alias `*{event.anchor}` is refused", "write the value out where it counts")
            return
        anchor, tag = getattr(event, "anchor", None), getattr(event, "tag", None)
        if anchor is not None:
            self._problem("HW106", event, f"the anchor `&{anchor}` is refused", "write the value out where it counts")
        if tag is not None:
            short = tag.replace("tag:yaml.org,2002:", "!!")
            self._problem("HW107", event, f"the tag `{short}` is refused", "leave it out; quote a value to make it text")

    def _too_deep(self, event: yaml.Event) -> NoReturn:
        self._problem("HW104", event, f"nested deeper than {MAX_DEPTH} levels", "a spec is nearly flat; is this the right file?")
        raise _StopError

    def _problem(self, code: str, event: yaml.Event, message: str, hint: str | None) -> None:
        self.problems.append(Problem(code, self.name, (), message, hint, span=_span(event)))

    def _syntax_error(self, error: yaml.YAMLError) -> None:
        mark = getattr(error, "problem_mark", None)
        if getattr(error, "problem", None) == "could not find expected ':'":
            mark = getattr(error, "context_mark", None) or mark  # the key that lacks it, not the line after
        span = None if mark is None else Span(mark.line, mark.column, mark.line, mark.column + 1)
        what = getattr(error, "problem", None) or getattr(error, "reason", None) or "not YAML"
        context = getattr(error, "context", None)
        message = f"the text is not YAML: {what}" + (f" {context}" if context else "")
        hint = "indent with spaces, put a space after `:` and quote texts that hold `: ` or ` #`"
        self.problems.append(Problem("HW105", self.name, (), message, hint, span=span))


def _span(event: yaml.Event) -> Span:
    start, end = event.start_mark, event.end_mark
    return Span(start.line, start.column, end.line, end.column) if start and end else Span(0, 0, 0, 0)


def _clip(text: str) -> str:
    return text if len(text) <= 40 else f"{text[:37]}..."
