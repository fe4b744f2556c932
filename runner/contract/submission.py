"""Defines the outcome of a submission (`SubmissionOutcome`): which job of the scheduler it made, if any."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

# The scheduler's answer, or the decision that none will come. One of them is written, once.
Kind = Literal["job", "refused", "void"]


@dataclass(frozen=True)
class SubmissionOutcome:
    """`submissions/<number>/outcome`: `job` with the scheduler's name of the job; `refused` or `void` with the reason that there is none.

    The file is created once, by the first of: the submission itself, the job that has started, a client that gives the submission up.
    """

    kind: Kind
    text: str

    @property
    def job(self) -> str | None:
        """The scheduler's name of the job; None if the submission has none."""
        return self.text if self.kind == "job" else None

    def __str__(self) -> str:
        return f"{self.kind} {self.text}\n"


def parse_outcome(text: str, where: str) -> SubmissionOutcome | None:
    """Return the outcome in a file's text; None for a text that its writer has not completed. Raises ValueError for another content."""
    if not text.endswith("\n"):
        return None
    kind, _, rest = text.strip().partition(" ")
    for known in get_args(Kind):
        if kind == known:
            return SubmissionOutcome(known, rest)
    raise ValueError(f"{where}: `{kind}` is not an outcome; expected one of {', '.join(get_args(Kind))}")


def read_outcome(path: Path) -> SubmissionOutcome | None:
    """Return the outcome in the file; None without a file. Raises ValueError for a file with another content."""
    try:
        return parse_outcome(path.read_text(errors="replace"), str(path))
    except FileNotFoundError:
        return None
