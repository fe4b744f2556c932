"""Finds what was left to be filled in, in any document: `<your-account>`, `CHANGEME`, and names in braces where none is filled in."""

import re
from collections.abc import Iterator

from headway.jobspec.document import Document, Path, dotted
from headway.jobspec.problem import Problem, Severity
from headway.jobspec.spec.fields import field_of
from headway.jobspec.spec.job import TrainingJob

# Also as a part of a text. Tokens such as `<pad>` are values of a tokenizer.
_PLACEHOLDER = re.compile(
    r"<(?:your|my|insert|enter|path[ _-]to|name[ _-]of)\b[^<>|]*>|<[A-Z]{3,}(?:[ _-][A-Z]+)+>"
    r"|\b(?:CHANGE|REPLACE|FILL)[ _-]?(?:ME|THIS|IN)\b|\byour[_-](?:[a-z]+[_-])*(?:here|account|bucket|cluster|group|host|image|name|org|"
    r"partition|path|project|registry|team|token|user)\b",
    re.IGNORECASE,
)
# Nothing expands the variables of a shell, or of a template, in the name of an image.
_VARIABLE = re.compile(r"\$\{?[A-Za-z_]\w*\}?|\{\{.*?\}\}")
_IN_CONTAINERS = ("image",)
# As the whole of a text.
_WORDS = frozenset({"TODO", "FIXME", "TBD", "XXX", "..."})
_NAMED = re.compile(r"(?<![{$])\{([a-z_]+(?:\.[a-z_]+)*)\}")
# What a script or a shell reads may contain them for its own reasons.
_FREE = frozenset({"environment", "run", "trainer", "setup", "reason", "annotations", "pod", "container"})


def check_unfilled(document: Document) -> Iterator[Problem]:
    """Yield a problem for each placeholder, and a warning for each value of the job that is named in a variable."""
    for path in document.scalars:
        value = document.value(path)
        if not isinstance(value, str) or path in document.credentials:
            continue
        found = value if value in _WORDS else next(iter(_PLACEHOLDER.findall(value)), None)
        if found is None and path[-1] in _IN_CONTAINERS and (variable := _VARIABLE.search(value)) is not None:
            found = variable[0]
        if found is not None:
            severity = Severity.WARNING if not _FREE.isdisjoint(path) else Severity.ERROR
            message = f"`{dotted(path)}` still has the placeholder `{found}`"
            yield Problem("HW703", document.name, path, message, "write the value itself", severity)
        elif path[0] == "environment" and "{" in value:
            yield from _named(document, path, value)


def _named(document: Document, path: Path, value: str) -> Iterator[Problem]:
    for name in _NAMED.findall(value):
        if field_of(TrainingJob, tuple(name.split("."))) is not None:
            message = f"`{dotted(path)}` is set to the text `{{{name}}}`: only arguments of a script are filled in"
            hint = f"write the value itself, or pass it as an argument, for example `--{name.rpartition('.')[2]}={{{name}}}`"
            yield Problem("HW703", document.name, path, message, hint, Severity.WARNING)
