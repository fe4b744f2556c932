"""What is wrong with a document, and how it is shown: the message, the place, the line with a caret, a hint."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from headway.jobspec.document import Document, Path, Span

# Checks do not know files: they name the document by its part, and `locate` puts the file's name in its place.
JOB = "job"
CLUSTER = "cluster"

_WIDTH = 120
_RESET = "\x1b[0m"


class Severity(StrEnum):
    """An error stops the plan; a warning does not."""

    ERROR = "error"
    WARNING = "warning"


_COLOUR: Mapping[Severity, str] = {Severity.ERROR: "\x1b[1;31m", Severity.WARNING: "\x1b[1;33m"}


@dataclass(frozen=True)
class Problem:
    """One mistake. `path` leads to the value; `span` is set only where there is no path yet (syntax)."""

    code: str
    document: str
    path: Path
    message: str
    hint: str | None = None
    severity: Severity = Severity.ERROR
    at_key: bool = False
    span: Span | None = None

    @property
    def is_error(self) -> bool:
        return self.severity is Severity.ERROR


def locate(problems: Iterable[Problem], names: Mapping[str, str]) -> list[Problem]:
    """The problems with the documents' parts (`job`, `cluster`) replaced by the names of their files."""
    return [replace(problem, document=names.get(problem.document, problem.document)) for problem in problems]


def in_order(problems: Iterable[Problem], documents: Mapping[str, Document]) -> list[Problem]:
    """The problems without repetitions, by document, line and column."""

    def key(problem: Problem) -> tuple[str, int, int, str]:
        span = span_of(problem, documents.get(problem.document))
        return (problem.document, span.line if span else -1, span.column if span else -1, problem.code)

    return sorted(dict.fromkeys(problems), key=key)


def show(problem: Problem, document: Document | None, colour: bool = False) -> str:
    """The problem as text of several lines, without a line break at the end."""
    label = f"{problem.severity}[{problem.code}]"
    head = f"{_COLOUR[problem.severity]}{label}{_RESET}" if colour else label
    span = span_of(problem, document)
    lines = [f"{head}: {printable(problem.message)}", f"  --> {printable(problem.document)}{_position(span)}"]
    if document is not None and span is not None:
        lines += _excerpt(document, span)
    if problem.hint is not None:
        lines += ["", f"hint: {printable(problem.hint)}"]
    return "\n".join(lines)


def printable(text: str) -> str:
    """`text` with every character that could steer a terminal written as its escape."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def span_of(problem: Problem, document: Document | None) -> Span | None:
    """Where the problem is; None where nobody knows."""
    if problem.span is not None or document is None:
        return problem.span
    return document.span(problem.path, problem.at_key)


def _position(span: Span | None) -> str:
    return "" if span is None else f":{span.line + 1}:{span.column + 1}"


def _excerpt(document: Document, span: Span) -> list[str]:
    lines = document.lines()
    line = lines[span.line] if span.line < len(lines) else ""
    end = span.end_column if span.end_line == span.line else len(line.rstrip())
    first = max(0, min(span.column - _WIDTH // 2, len(line) - _WIDTH))
    shown = "".join(char if char.isprintable() else " " for char in line[first : first + _WIDTH])
    carets = "^" * max(1, min(end, first + _WIDTH) - span.column)
    number = str(span.line + 1)
    return [f" {number} | {shown}".rstrip(), f" {' ' * len(number)} | {' ' * (span.column - first)}{carets}"]
