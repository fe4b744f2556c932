"""Represents a problem of a document and shows it: message, place, the line with a caret, hint."""

import textwrap
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum

from msgspec import Struct
from msgspec.structs import replace

from headway.jobspec.document import Document, Path, Span, clipped
from headway.jobspec.suggest import listed_some

# Checks do not use file names: they name the document by its part, and `locate` replaces it by the file's name.
JOB = "job"
CLUSTER = "cluster"

# With one of these a file gives no document at all.
UNREADABLE = frozenset({"HW101", "HW102", "HW103", "HW104", "HW105", "HW113", "HW115"})
_UNSHOWN = "HW116"
_ALWAYS_SHOWN = {*UNREADABLE, _UNSHOWN}

MAX_PROBLEMS = 100
"""The most problems of one document that are reported at once."""

_WIDTH = 120
_LONGEST = 1000
# A narrower terminal is treated as this wide.
_NARROWEST = 40
_RESET = "\x1b[0m"


class Severity(StrEnum):
    """An error stops the plan; a warning does not."""

    ERROR = "error"
    WARNING = "warning"


class Misfit(StrEnum):
    """Two parts of a document that do not fit each other, where the problem's code has other mistakes too and others follow from this."""

    OTHER_TRANSPORT = "other transport"
    """The model of the switches is of another transport than their fabric."""
    OTHER_VENDOR = "other vendor"
    """The operating system runs on switches of another vendor than the model's."""


_COLOUR: Mapping[Severity, str] = {Severity.ERROR: "\x1b[1;31m", Severity.WARNING: "\x1b[1;33m"}
_FRAME = "\x1b[1;34m"
_HINT = "\x1b[1;36m"
_HINT_INDENT = " " * len("hint: ")


class Problem(Struct, frozen=True):
    """One mistake. `path` leads to the value; `span` is set only where there is no path yet (syntax).

    `fix` is the text that mends it, in place of the text at its position.
    `ignored` is the reason for which the document accepts it (`ignore`); it counts as no error then, and is not listed.
    `heir` is the document in which it was found, if `document` is a base of it that has the value.
    `fields` are what the message lists (`not_passed`), if each of them can be accepted by itself.
    """

    code: str
    document: str
    path: Path
    message: str
    hint: str | None = None
    severity: Severity = Severity.ERROR
    at_key: bool = False
    span: Span | None = None
    heir: str | None = None
    fix: str | None = None
    ignored: str | None = None
    fields: tuple[str, ...] = ()
    misfit: Misfit | None = None

    @property
    def is_error(self) -> bool:
        return self.severity is Severity.ERROR and self.ignored is None


def not_passed(fields: Sequence[str]) -> str:
    """Return the message of a problem with these `fields`: what a script does not get."""
    return f"not passed to the script: {listed_some(fields)}"


def locate(problems: Iterable[Problem], names: Mapping[str, str]) -> list[Problem]:
    """Return the problems with the documents' parts (`job`, `cluster`) replaced by the names of their files, and no
    text too long."""
    return [
        replace(
            problem,
            document=names.get(problem.document, problem.document),
            message=clipped(problem.message, _LONGEST),
            hint=problem.hint and clipped(problem.hint, _LONGEST),
        )
        for problem in problems
    ]


def at_origin(problem: Problem, document: Document) -> Problem:
    """Return the problem in `document`, at the base that has the value if it is inherited."""
    origin = document if problem.span is not None else document.origin(problem.path)
    return problem if origin is document else replace(problem, document=origin.name, heir=document.name)


def capped(problems: Iterable[Problem], document: str, more: int = 0) -> list[Problem]:
    """Return a readable number of the document's problems, and how many there are in addition, `more` of them not even listed."""
    found = list(problems)
    first = [problem for index, problem in enumerate(found) if index < MAX_PROBLEMS or problem.code in _ALWAYS_SHOWN]
    unshown = len(found) - len(first) + more
    if not unshown:
        return first
    message = f"{unshown} more of this document's problems {'are' if unshown > 1 else 'is'} not shown"
    return [*first, Problem("HW116", document, (), message, "fix the others first")]


def in_order(problems: Iterable[Problem], documents: Mapping[str, Document]) -> list[Problem]:
    """Return the problems without repetitions: what cannot be read at all, then the others by document, line and column."""

    def key(problem: Problem) -> tuple[bool, str, bool, int, int, str]:
        span = span_of(problem, documents.get(problem.document))
        place = (span.line, span.column) if span else (-1, -1)
        return (problem.code not in UNREADABLE, problem.document, problem.code == _UNSHOWN, *place, problem.code)

    return sorted(dict.fromkeys(problems), key=key)


def show(
    problem: Problem, document: Document | None, colour: bool = False, heirs: Sequence[str] = (), width: int | None = None
) -> str:
    """Return the problem as text of several lines, without a line break at the end. `heirs` inherit it from the document.

    Lines are wrapped at `width` columns; message and hint are a line each without it.
    """
    span = span_of(problem, document)
    label = f"{problem.severity}[{problem.code}]"
    head = wrapped(f"{label}: {printable(problem.message)}", width, "  ")
    lines = [_coloured(_COLOUR[problem.severity], label, colour) + head.removeprefix(label)]
    lines.append(f"  {_coloured(_FRAME, '-->', colour)} {printable(problem.document)}{_position(span)}")
    if document is not None and span is not None:
        line, carets = _excerpt(document, span, width)
        lines += [line, _carets_in(_COLOUR[problem.severity], carets) if colour else carets]
    if heirs:
        lines.append(f" {' ' * len(str(span.line + 1 if span else ''))} = {printable(inherited(heirs))}")
    if problem.hint is not None:
        hint = wrapped(f"hint: {printable(problem.hint)}", width, _HINT_INDENT)
        lines += ["", _coloured(_HINT, "hint", colour) + hint.removeprefix("hint")]
    return "\n".join(lines)


def _coloured(code: str, text: str, colour: bool) -> str:
    return f"{code}{text}{_RESET}" if colour else text


def _carets_in(code: str, line: str) -> str:
    first = line.index("^")
    return f"{line[:first]}{code}{line[first:]}{_RESET}"


def wrapped(text: str, width: int | None, indent: str = "") -> str:
    """Return the text in lines of `width` columns at most, further ones behind `indent`; a single line without a width. Words stay whole,
    also those that are longer, for copying."""
    if width is None:
        return text
    return textwrap.fill(text, max(_NARROWEST, width), subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def inherited(heirs: Sequence[str]) -> str:
    """Return where else a problem of a base is found: the first heir by name, and the number of others."""
    first = f"in {heirs[0]}"
    return f"{first}, which extends it" if len(heirs) == 1 else f"{first} and {len(heirs) - 1} more, which extend it"


def printable(text: str) -> str:
    """`text` with every character that could steer a terminal written as its escape."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def span_of(problem: Problem, document: Document | None) -> Span | None:
    """Return the position of the problem; None if it is unknown."""
    if problem.span is not None or document is None:
        return problem.span
    return document.span(problem.path, problem.at_key)


def _position(span: Span | None) -> str:
    return "" if span is None else f":{span.line + 1}:{span.column + 1}"


def _excerpt(document: Document, span: Span, width: int | None) -> tuple[str, str]:
    """Return the line of the problem, and the carets below its place."""
    line, number = document.shown(span.line), str(span.line + 1)
    most = _WIDTH if width is None else max(_NARROWEST, min(_WIDTH, width)) - len(number) - 4
    end = span.end_column if span.end_line == span.line else len(line.rstrip())
    first = max(0, min(span.column - most // 2, len(line) - most))
    shown = "".join(char if char.isprintable() else " " for char in line[first : first + most])
    place = span.column - first
    carets = "^" * max(1, _cells(shown[place : min(end, first + most) - first]))
    return f" {number} | {shown}".rstrip(), f" {' ' * len(number)} | {' ' * _cells(shown[:place])}{carets}"


def _cells(text: str) -> int:
    """Return the columns that a terminal shows the text in: wide characters take two, combining ones none."""
    if text.isascii():
        return len(text)
    return sum(0 if unicodedata.combining(char) else 2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in text)
