"""Finds secrets in a document, which anyone who reads the spec, its plan or the repository's history could use."""

import re
from collections.abc import Iterator

from headway.jobspec.credentials import find_in_comment
from headway.jobspec.document import Document, Path, Span, dotted
from headway.jobspec.problem import Problem

_REVOKE = "revoke it, since Git history keeps it"
_HINT = f"{_REVOKE}; name the variable that holds it in the job's `secrets`, for example `secrets: [HF_TOKEN]`"
_WEBHOOK = ("resilience", "notify", "webhook_env")
# Variables are in capitals; in a line of a shell they are assigned.
_VARIABLE = re.compile(r"[A-Z][A-Z0-9_]{2,}")
_ASSIGNED = re.compile(r"(?:^|\s)([A-Z][A-Z0-9_]*(?:TOKEN|KEY|SECRET|PASSWORD|PASS)[A-Z0-9_]*)=")
_LONGEST = 8192
# What libraries read by themselves, by a word of the option that people pass.
_OPTION = re.compile(r"--?([A-Za-z][\w.-]*)")
_READ = {"wandb": "WANDB_API_KEY", "comet": "COMET_API_KEY", "hf": "HF_TOKEN", "hugging": "HF_TOKEN"}
_ARGV = ("trainer", "options", "argv")


def check_secrets(document: Document) -> Iterator[Problem]:
    """Yield a problem for each; the value itself is in none of them."""
    for path, kind in document.credentials.items():
        # The trainer's arguments that `run` is short for are at the same place.
        if path[:3] == _ARGV and ("run", *path[3:]) in document.credentials:
            continue
        yield Problem(
            "HW215", document.name, path, f"`{dotted(path)}` holds a secret in clear text: {kind}", _hint(document, path)
        )
    for line, start, end, kind in _in_comments(document):
        message = f"the comment holds a secret in clear text: {kind}"
        yield Problem("HW215", document.name, (), message, _HINT, span=Span(line, start, line, end))


def _hint(document: Document, path: Path) -> str:
    """Return the hint with the name of the secret's variable, if the document has it."""
    if path == _WEBHOOK:
        return f"{_REVOKE}; write the name of a variable, for example `webhook_env: RUN_WEBHOOK`, which has the address at submission"
    if path[-1] == "url":
        return f"{_REVOKE}; leave it out of the address, and name the variable that holds it: `secrets: [AWS_SECRET_ACCESS_KEY]`"
    if path[:2] == ("provider", "options") or "login" in path:
        return f"{_REVOKE}; leave it out: there are no passwords, and `identity` names the file of a key: `identity: ~/.ssh/id_ed25519`"
    key, assigned = str(path[-1]), _ASSIGNED.search(str(document.value(path))[:_LONGEST])
    name = key if _VARIABLE.fullmatch(key) else assigned[1] if assigned else None
    option = _OPTION.match(str(document.value(path))[:_LONGEST])
    if name is None and option is not None:
        name = next((variable for word, variable in _READ.items() if word in option[1].lower()), None)
    if name is None and key == "value":
        # An entry of Kubernetes' `env`.
        named = document.value((*path[:-1], "name"))
        name = named if isinstance(named, str) and _VARIABLE.fullmatch(named) else None
    return _HINT if name is None else f"{_REVOKE}; leave it out here, and write `secrets: [{name}]` in the job"


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
