"""Finds secrets in a document, which anyone who reads the spec, its plan or the repository's history could use."""

from collections.abc import Iterator

from headway.jobspec.document import Document, dotted
from headway.jobspec.problem import Problem

_HINT = (
    "revoke it, since Git history keeps it; pass it in a file that only the job's user can read, or in an "
    "environment variable set where the job is submitted"
)


def check_secrets(document: Document) -> Iterator[Problem]:
    """Yield a problem for each; the value itself is in none of them."""
    for path, kind in document.credentials.items():
        yield Problem("HW215", document.name, path, f"`{dotted(path)}` holds a secret in clear text: {kind}", _HINT)
