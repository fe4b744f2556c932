"""Prints problems for people: each with its place, the line with a caret, and the hint."""

from typing import TextIO

from headway.cli.terminal import has_colour, width_of
from headway.compile import Problems
from headway.jobspec.notation import counted
from headway.jobspec.problem import printable, show, span_of


def print_problems(problems: Problems, stream: TextIO, colour: str = "auto", warnings: bool = True) -> None:
    """Every problem in order, a blank line after each; only the errors if `warnings` is false. In `colour` as `has_colour` reads it, and
    wrapped to the width of a terminal."""
    coloured, width = has_colour(stream, colour), width_of(stream)
    for problem in (problem for problem in problems if warnings or problem.is_error):
        text = show(problem, problems.documents.get(problem.document), coloured, problems.heirs(problem), width)
        print(text, end="\n\n", file=stream)


def print_ignored(problems: Problems, stream: TextIO) -> None:
    """The problems that documents accept, a line each with the reason; a blank line after them."""
    for problem in problems.ignored:
        span = span_of(problem, problems.documents.get(problem.document))
        place = problem.document if span is None else f"{problem.document}:{span.line + 1}:{span.column + 1}"
        print(printable(f"ignored[{problem.code}]: {place}: {problem.ignored}"), file=stream)
    if problems.ignored:
        print(file=stream)


def counts(problems: Problems, what: str) -> str:
    """How many errors, by the name `what`, and warnings, in words."""
    errors = [counted(problems.errors, what)] if problems.errors else []
    warnings = [counted(problems.warnings, "warning")] if problems.warnings else []
    return ", ".join(errors + warnings) or "no problems"
