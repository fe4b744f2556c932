"""Finds secrets in a document, which anyone who reads the spec, its plan or the repository's history could use."""

import re
from collections.abc import Iterator

from headway.jobspec.credentials import find_in_comment
from headway.jobspec.document import Document, Path, Span, dotted
from headway.jobspec.problem import Problem

_HINT = (
    "revoke it, since Git history keeps it; pass it in a file that only the job's user can read, or in an "
    "environment variable set where the job is submitted"
)
_ARGV = ("trainer", "options", "argv")
_VARIABLE = re.compile("[A-Za-z_][A-Za-z0-9_]{0,127}")
# The variables from which their programs read them, by the kinds of `jobspec/credentials.py`.
_VARIABLES = {
    "an AWS access key": "AWS_ACCESS_KEY_ID",
    "a GitHub token": "GITHUB_TOKEN",
    "a Hugging Face token": "HF_TOKEN",
    "an NVIDIA API key": "NGC_API_KEY",
    "a Weights & Biases key": "WANDB_API_KEY",
}


def check_secrets(document: Document) -> Iterator[Problem]:
    """Yield a problem for each; the value itself is in none of them."""
    for path, kind in document.credentials.items():
        # The trainer's arguments that `run` is short for are at the same place.
        if path[:3] == _ARGV and ("run", *path[3:]) in document.credentials:
            continue
        yield Problem("HW215", document.name, path, f"`{dotted(path)}` holds a secret in clear text: {kind}", _hint(path, kind))
    for line, start, end, kind in _in_comments(document):
        message = f"the comment holds a secret in clear text: {kind}"
        yield Problem("HW215", document.name, (), message, _HINT, span=Span(line, start, line, end))


def _hint(path: Path, kind: str) -> str:
    """Return the hint with the name of the variable that the secret has, or usually has."""
    said = re.search(r"`([A-Z][A-Z0-9_]{0,127})`", kind)
    name = str(path[-1]) if path[0] == "environment" else said[1] if said else _VARIABLES.get(kind)
    listed = f"`secrets: [{name}]`" if name is not None and _VARIABLE.fullmatch(name) else "under `secrets`"
    return f"revoke it, since Git history keeps it; name its variable in the job, {listed}, whose value is not in any file of the job"


def _in_comments(document: Document) -> Iterator[tuple[int, int, int, str]]:
    """Yield line, first and last column, and kind of what has a credential's form outside of all values."""
    found = [(line, *secret) for line, text in enumerate(document.lines()) if "#" in text and (secret := find_in_comment(text))]
    if found:
        inside = {
            line
            for path in document.scalars
            if document.origin(path) is document
            for line in range(document.values[path].line, document.values[path].end_line + 1)
            if document.values[path].end_line > document.values[path].line or path in document.credentials
        }
        yield from (secret for secret in found if secret[0] not in inside)
