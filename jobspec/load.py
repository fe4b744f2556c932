"""Loads a YAML file as a Document with positions, or reports the problems that prevent it.

The tree is built from libyaml's event stream, bounded while it is read: PyYAML's C composer crashes the process on some 100,000
nested brackets. Nothing here raises on bad input.
"""

import codecs
import re
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path as FilePath
from typing import Any

import yaml

from headway.jobspec.document import LINE_BREAK, Document, Path, Span, clipped
from headway.jobspec.problem import MAX_PROBLEMS, UNREADABLE, Problem, capped
from headway.jobspec.scalar import LeadingZeroError, NotFiniteError, plain_scalar

MAX_BYTES = 1 << 20
MAX_DEPTH = 64
MAX_VALUES = 50_000
MAX_KEY = 512

_HIDES = "a reviewer would not see the value where it is used"
_WRITE_OUT = "write the value out, or share it between documents with `extends`"
_HEAD = re.compile(r"^(?:apiVersion|kind)\s*:", re.MULTILINE)
# libyaml compares each %TAG directive with all before it: a file of them takes it many seconds.
_TAG_DIRECTIVE = re.compile("(?:^|(?<=[\r\n\x85\u2028\u2029]))%TAG")


def load_file(path: FilePath) -> tuple[Document, list[Problem]]:
    """Return the document in the file, whose path problems name. With a problem its data may be incomplete."""
    try:
        return load_bytes(str(path), read_bytes(path))
    except (OSError, ValueError) as error:
        return Document(str(path)), [_unreadable(str(path), error)]


def read_bytes(path: FilePath) -> bytes:
    """Return the content of the file, up to the first byte beyond the limit. Raises OSError, and ValueError for an
    impossible path."""
    with path.open("rb") as file:
        return file.read(MAX_BYTES + 1)


def load_bytes(name: str, content: bytes) -> tuple[Document, list[Problem]]:
    """Return the document in `content`, as `load_file` reads it."""
    if len(content) > MAX_BYTES:
        message = f"the file is larger than the {MAX_BYTES} bytes that a spec may have"
        return Document(name), [Problem("HW103", name, (), message, "a spec is a page or two; check that this is the right file")]
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        return _not_utf8(name, content, error.start)
    reader = _Reader(name, text)
    reader.read()
    return reader.document(), capped(dict.fromkeys(reader.problems), name, reader.unshown)


def _unreadable(name: str, error: OSError | ValueError) -> Problem:
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    hint = "name one document in it" if isinstance(error, IsADirectoryError) else "check the path and its permissions"
    return Problem("HW101", name, (), f"cannot read the file: {reason}", hint)


def _not_utf8(name: str, content: bytes, start: int) -> tuple[Document, list[Problem]]:
    message, hint = f"byte {start} is not valid UTF-8", "save the file as UTF-8"
    if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        message, hint = "the file is in UTF-16", "save it as UTF-8: in PowerShell by `| Out-File -Encoding utf8` in place of `>`"
    span = _span_at(content[:start].decode("utf-8-sig"))
    document = Document(name, content.decode("utf-8-sig", errors="replace"))
    return document, [Problem("HW102", name, (), message, hint, span=span)]


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
        self.unshown = 0
        self._read = 0
        self._merges = False
        self._end = _span_at(text)[:2]
        self._events: Iterator[yaml.Event] = iter(())

    def document(self) -> Document:
        return Document(self.name, self.text, self.data, self.keys, self.values, frozenset(self.scalars))

    def read(self) -> None:
        try:
            self._refuse_tag_directive()
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
                    hint = "put each document into a separate file"
                    if not _HEAD.search(self.text[event.start_mark.index :] if event.start_mark else ""):
                        hint = (
                            "remove the `---`: the text after it has no `apiVersion` and no `kind`, so it is not another document"
                        )
                    self._problem("HW112", self._span(event), "a second document begins here", hint)
                    raise _StopError
                self.data = self._node((), next(self._events))
        if not isinstance(self.data, dict) and not self.problems:
            found = "empty" if self.data is None else "not a mapping"
            hint = "begin with `apiVersion: headway/v1alpha1` and `kind: TrainingJob` or `kind: Cluster`"
            if isinstance(self.data, list):
                found, hint = "a list, not a mapping", "remove the `- ` before its fields; each document has a file of its own"
            self._problem("HW113", None, f"the document is {found}", hint)

    def _node(self, path: Path, event: yaml.Event) -> Any:
        self._refuse(event)
        self._count(event, len(path))
        self.values[path] = self._span(event)
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
                self._merges = False
            else:
                self.keys[*path, key] = self._span(event)
                found[key] = self._node((*path, key), next(self._events))
        return found

    @cached_property
    def _lines(self) -> list[str]:
        return LINE_BREAK.split(self.text)

    @cached_property
    def _anchors(self) -> frozenset[str]:
        """The names behind each `&` of the text, in quoted texts too: they only decide on a hint."""
        return frozenset(re.findall(r"&([\w-]+)", self.text))

    @cached_property
    def _aliases(self) -> frozenset[str]:
        """The names behind each `*` of the text."""
        return frozenset(re.findall(r"\*([\w-]+)", self.text))

    def _key(self, path: Path, event: yaml.Event, found: dict[str, Any]) -> str | None:
        """Return the key, or None when it cannot be used; then its value is read past."""
        self._refuse(event)
        if not isinstance(event, yaml.ScalarEvent):
            mark = event.start_mark
            around = "" if mark is None else self.text[max(0, mark.index - 1) : mark.index + 2]
            if "{{" in around or "{%" in around:
                hint = "render the template first: headway fills in no `{{ }}`"
                self._problem("HW109", self._span(event), "the file is a template that was not rendered", hint)
                raise _StopError
            hint = "write the key as text; quote a value that begins with `{` or `[`"
            self._problem("HW109", self._span(event), "this key is a list or a mapping; a key is text", hint)
            self._skip(event)
            return None
        if (number := self._decimal_comma(event)) is not None:
            self._whole_number(path, event, number)
            return None
        value, shown = self._scalar(event), clipped(event.value)
        if not event.style and event.value == "<<":
            self._problem("HW106", self._span(event), f"merge keys are not accepted: {_HIDES}", _WRITE_OUT)
            self._merges = True
        elif not isinstance(value, str):
            self._problem("HW109", self._span(event), f"the key `{shown}` is not text", f'quote it: `"{shown}"`')
        elif len(value) > MAX_KEY:
            message = f"the key `{shown}` has {len(value)} characters, more than {MAX_KEY}"
            self._problem("HW117", self._span(event), message, "check that the `:` after the field's name is not missing")
        elif value in found:
            first, here = self.keys[*path, value].line, self._span(event).line
            lines = self._lines
            is_copy = first != here and lines[first].strip() == lines[here].strip() and not lines[here].rstrip().endswith(":")
            hint = "remove this line, which is the same" if is_copy else "keep one of the two"
            self._problem("HW108", self._span(event), f"the key `{shown}` is already on line {first + 1}", hint)
        else:
            return value
        return None

    def _decimal_comma(self, event: yaml.ScalarEvent) -> str | None:
        """Return the number before the key if the key is its decimals, `0,01` in a mapping in braces."""
        mark = event.start_mark
        if mark is None or event.style or not event.value.isdecimal() or self.text[mark.index - 1 : mark.index] != ",":
            return None
        before = re.search(r"(?<![\w.])[0-9]+$", self.text[max(0, mark.index - 16) : mark.index - 1])
        return before and before[0]

    def _whole_number(self, path: Path, event: yaml.ScalarEvent, number: str) -> None:
        span = self._span(event)
        whole = Span(span.line, span.column - 1 - len(number), span.end_line, span.end_column)
        place = next((place for place in reversed(self.values) if place[:-1] == path and len(place) == len(path) + 1), None)
        if place is not None:
            self.values[place] = whole
        fix = f"{number}.{event.value}"
        self._problem(
            "HW110", whole, f"`{number},{event.value}` has a comma in it, which begins another field", f"write `{fix}`", fix
        )

    def _skip(self, event: yaml.Event) -> None:
        """Read past a node without keeping it. Forbidden content is still refused."""
        depth = 0
        while True:
            self._refuse(event)
            self._count(event, depth)
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth == 0:
                return
            event = next(self._events)

    def _scalar(self, event: yaml.ScalarEvent) -> Any:
        if event.style:
            return event.value
        try:
            return plain_scalar(event.value)
        except LeadingZeroError:
            shown = clipped(event.value)
            hint = f'quote it to keep it as text (`"{shown}"`), or leave the zero out'
            self._problem("HW110", self._span(event), f"the number `{shown}` has a leading zero", hint)
        except NotFiniteError:
            message = f"`{clipped(event.value)}` is not a finite number of 64 bits"
            self._problem("HW111", self._span(event), message, "quote it to keep it as text")
        return event.value

    def _refuse(self, event: yaml.Event) -> None:
        """Refuse anchors, aliases and tags, each with its reason."""
        if isinstance(event, yaml.AliasEvent):
            if self._merges:
                # The merge key before it is the problem.
                self._merges = False
                return
            name = clipped(str(event.anchor))
            message, hint, fix = f"the alias `*{name}` is not accepted: {_HIDES}", _WRITE_OUT, None
            if event.anchor not in self._anchors:
                # A pattern of files, or of nodes.
                fix = f'"*{name}"'
                message, hint = f"YAML reads `*{name}` as an alias, but there is no anchor `&{name}`", f"quote it: `{fix}`"
            self._problem("HW106", self._span(event), message, hint, fix)
            return
        anchor, tag = getattr(event, "anchor", None), getattr(event, "tag", None)
        if anchor is not None:
            message = f"the anchor `&{clipped(anchor)}` is not accepted: {_HIDES}"
            self._problem(
                "HW106", self._span(event), message, _WRITE_OUT if anchor in self._aliases else f"leave `&{clipped(anchor)}` out"
            )
        if tag is not None:
            short = clipped(tag.replace("tag:yaml.org,2002:", "!!"))
            self._problem(
                "HW107", self._span(event), f"the tag `{short}` is refused", "leave it out; quote a value to make it text"
            )

    def _refuse_tag_directive(self) -> None:
        if found := _TAG_DIRECTIVE.search(self.text):
            span = _span_at(self.text[: found.start()], len("%TAG"))
            self._problem("HW107", span, "the directive `%TAG` is refused", "leave it out; no tag is allowed")
            raise _StopError

    def _count(self, event: yaml.Event, depth: int) -> None:
        """Stop before more is kept than a spec may hold."""
        self._read += 1
        if depth > MAX_DEPTH:
            message = f"nested deeper than {MAX_DEPTH} levels"
            self._problem("HW104", self._span(event), message, "a spec is nearly flat; check that this is the right file")
            raise _StopError
        if self._read > MAX_VALUES:
            message = f"more than {MAX_VALUES} values, the most that a spec may have"
            self._problem("HW115", self._span(event), message, "a spec is a page or two; check that this is the right file")
            raise _StopError

    def _problem(self, code: str, span: Span | None, message: str, hint: str | None, fix: str | None = None) -> None:
        problem = Problem(code, self.name, (), message, hint, span=span, fix=fix)
        if len(self.problems) < MAX_PROBLEMS or code in UNREADABLE:
            self.problems.append(problem)
        else:
            self.unshown += 1

    def _syntax_error(self, error: yaml.YAMLError) -> None:
        if isinstance(error, yaml.reader.ReaderError):
            self._forbidden_character(error)
            return
        from headway.jobspec.syntax import explain  # noqa: PLC0415 (most texts are YAML)

        found = explain(error, LINE_BREAK.split(self.text))
        span = None if found.place is None else self._between(*found.place)
        self._problem("HW105", span, found.message, found.hint, found.fix)

    def _span(self, event: yaml.Event) -> Span:
        start, end = event.start_mark, event.end_mark
        return self._between(start.line, start.column, end.line, end.column) if start and end else Span(0, 0, 0, 0)

    def _between(self, line: int, column: int, end_line: int, end_column: int) -> Span:
        """Return the range between two places; libyaml counts the end of a text as a line."""
        return Span(*min((line, column), self._end), *min((end_line, end_column), self._end))

    def _forbidden_character(self, error: yaml.reader.ReaderError) -> None:
        # libyaml counts the bytes of the text, which PyYAML hands over in UTF-8.
        before = self.text.encode()[: error.position].decode(errors="ignore")
        number = ord(self.text[len(before)])
        message = f"the text is not YAML: the character U+{number:04X} is not allowed"
        escape = f"\\x{number:02x}" if number < 256 else f"\\u{number:04x}"
        self._problem("HW105", _span_at(before), message, f"remove it, or write it in double quotes as `{escape}`")


def _span_at(before: str, length: int = 1) -> Span:
    """Return the `length` characters that follow the text `before`."""
    lines = LINE_BREAK.split(before)
    line, column = len(lines) - 1, len(lines[-1])
    return Span(line, column, line, column + length)
