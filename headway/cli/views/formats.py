"""Formats problems for other programs: JSON, SARIF 2.1.0, and GitHub's workflow commands."""

import os
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any
from urllib.parse import quote

from headway.compile import Problems
from headway.jobspec.codes import CODES, WARNING
from headway.jobspec.document import Span
from headway.jobspec.explain import explanations
from headway.jobspec.json_text import json_text
from headway.jobspec.problem import Problem, inherited, printable, span_of

SCHEMA = "headway.problems/1"
SARIF_SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
ROOT = "%SRCROOT%"


def as_json(problems: Problems, documents: int, passed_over: Sequence[str] = ()) -> str:
    """Every problem with its place, lines and columns counted from 1; the end is the first column that is not part of it."""

    def row(problem: Problem) -> dict[str, Any]:
        return {
            "code": problem.code,
            "severity": problem.severity.value,
            "file": problem.document,
            **_position(_span(problem, problems)),
            "heirs": problems.heirs(problem),
            "path": list(problem.path),
            "message": problem.message,
            "hint": problem.hint,
            "fix": problem.fix,
        }

    ignored = [{**row(problem), "reason": problem.ignored} for problem in problems.ignored]
    return json_text(
        {
            "schema": SCHEMA,
            "documents": documents,
            "passed_over": list(passed_over),
            "problems": list(map(row, problems)),
            "ignored": ignored,
        }
    )


def as_sarif(problems: Problems, documents: int, passed_over: Sequence[str] = ()) -> str:
    """One SARIF run, with every code as a rule. Paths are relative to the repository's root."""
    driver = {"name": "headway", "version": version("headway"), "rules": [_rule(code) for code in CODES]}
    run = {
        "tool": {"driver": driver},
        "invocations": [{"executionSuccessful": True}],
        "columnKind": "unicodeCodePoints",
        "originalUriBaseIds": {ROOT: {"uri": f"{_root().as_uri().rstrip('/')}/"}},
        "results": [_result(problem, problems) for problem in (*problems, *problems.ignored)],
    }
    return json_text({"$schema": SARIF_SCHEMA, "version": "2.1.0", "runs": [run]})


def as_github(problems: Problems, documents: int, passed_over: Sequence[str] = ()) -> str:
    """A workflow command a line, each of which GitHub Actions shows at its place in the pull request."""
    return "".join(f"{_command(problem, problems)}\n" for problem in problems)


# Prints the problems of so many documents, and the files that are none, by the name of the format; `text` is what people read.
FORMATS: Mapping[str, Callable[[Problems, int, Sequence[str]], str]] = {"json": as_json, "sarif": as_sarif, "github": as_github}


def _span(problem: Problem, problems: Problems) -> Span | None:
    return span_of(problem, problems.documents.get(problem.document))


def _position(span: Span | None) -> dict[str, int | None]:
    if span is None:
        return dict.fromkeys(("line", "column", "end_line", "end_column"))
    return {
        "line": span.line + 1,
        "column": span.column + 1,
        "end_line": span.end_line + 1,
        "end_column": span.end_column + 1,
    }


def _said(problem: Problem, problems: Problems) -> str:
    """The message; on lines of their own, who inherits the problem, and the hint."""
    heirs = problems.heirs(problem)
    found = [inherited(heirs)] if heirs else []
    hint = [f"hint: {problem.hint}"] if problem.hint is not None else []
    return "\n".join([problem.message, *found, *hint])


def _root() -> Path:
    """The root of the repository around the working directory (`.git`); the working directory itself where there is none."""
    here = Path.cwd()
    return next((folder for folder in (here, *here.parents) if (folder / ".git").exists()), here)


def _in_repository(file: str) -> Path:
    """Return the file's path from the repository's root, by which GitHub knows it; the whole path of a file outside of it."""
    path, root = Path(os.path.abspath(file)), _root()  # noqa: PTH100 (a link is known by its own name)
    return path.relative_to(root) if path.is_relative_to(root) else path


def _rule(code: str) -> dict[str, Any]:
    found = explanations()[code]
    return {
        "id": code,
        "shortDescription": {"text": found.title},
        "fullDescription": {"text": f"{found.title} {found.why.strip()}"},
        "help": {"text": found.text(), "markdown": found.markdown()},
        "defaultConfiguration": {"level": "warning" if CODES[code].endswith(WARNING) else "error"},
    }


def _result(problem: Problem, problems: Problems) -> dict[str, Any]:
    location = {"artifactLocation": _artifact(problem.document), "region": _region(_span(problem, problems))}
    return {
        "ruleId": problem.code,
        "ruleIndex": list(CODES).index(problem.code),
        "level": problem.severity.value,
        "message": {"text": _said(problem, problems)},
        "locations": [{"physicalLocation": location}],
        **_related(problem, problems),
        **_fixes(problem, location),
        **_suppression(problem),
    }


def _related(problem: Problem, problems: Problems) -> dict[str, Any]:
    """The documents that inherit the problem, as SARIF's section 3.27.22 has it; nothing where there are none."""
    heirs = [
        {"physicalLocation": {"artifactLocation": _artifact(heir), "region": {"startLine": 1}}, "message": {"text": "extends it"}}
        for heir in problems.heirs(problem)
    ]
    return {"relatedLocations": heirs} if heirs else {}


def _suppression(problem: Problem) -> dict[str, Any]:
    """The reason for which the document accepts the problem, as SARIF's section 3.35 has it."""
    return {} if problem.ignored is None else {"suppressions": [{"kind": "inSource", "justification": problem.ignored}]}


def _fixes(problem: Problem, location: Mapping[str, Any]) -> dict[str, Any]:
    """The text that mends the problem in place of its region, as SARIF's section 3.55 has it; nothing where there is none."""
    if problem.fix is None:
        return {}
    replacement = {"deletedRegion": location["region"], "insertedContent": {"text": problem.fix}}
    change = {"artifactLocation": location["artifactLocation"], "replacements": [replacement]}
    return {"fixes": [{"description": {"text": str(problem.hint)}, "artifactChanges": [change]}]}


def _artifact(file: str) -> dict[str, str]:
    path = _in_repository(file)
    return {"uri": path.as_uri()} if path.is_absolute() else {"uri": quote(os.fsencode(path)), "uriBaseId": ROOT}


def _region(span: Span | None) -> dict[str, int]:
    """Return the line of a result. GitHub's code scanning refuses one without a line, so a problem of a whole file gets its first."""
    if span is None:
        return {"startLine": 1}
    return {
        "startLine": span.line + 1,
        "startColumn": span.column + 1,
        "endLine": span.end_line + 1,
        "endColumn": span.end_column + 1,
    }


def _command(problem: Problem, problems: Problems) -> str:
    span = _span(problem, problems)
    properties = {"file": str(_in_repository(problem.document)), **_annotated(span), "title": problem.code}
    written = ",".join(f"{key}={_property(printable(str(value)))}" for key, value in properties.items())
    said = "\n".join(printable(line) for line in _said(problem, problems).splitlines())
    return f"::{problem.severity} {written}::{_data(said)}"


def _annotated(span: Span | None) -> dict[str, int]:
    """The place of an annotation: GitHub takes columns only where they are on one line."""
    if span is None:
        return {}
    if span.line == span.end_line:
        return {"line": span.line + 1, "col": span.column + 1, "endLine": span.line + 1, "endColumn": span.end_column + 1}
    last = span.end_line if span.end_column else span.end_line - 1
    return {"line": span.line + 1, "endLine": last + 1}


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
