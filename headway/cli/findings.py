"""What reading documents brings to light: problems, and the texts that they point into."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TextIO

from headway.jobspec.document import Document
from headway.jobspec.problem import CLUSTER, JOB, Problem, in_order, locate, show


@dataclass
class Findings:
    """Problems by the files that they are in; one that is found twice counts once."""

    problems: list[Problem] = field(default_factory=list)
    documents: dict[str, Document] = field(default_factory=dict)

    @property
    def errors(self) -> int:
        return sum(problem.is_error for problem in set(self.problems))

    @property
    def warnings(self) -> int:
        return len(set(self.problems)) - self.errors

    def add(self, problems: Iterable[Problem], job: str = JOB, cluster: str = CLUSTER) -> list[Problem]:
        """Keeps the problems and returns them; `job` and `cluster` are the files that checks know only by their part."""
        located = locate(problems, {JOB: job, CLUSTER: cluster})
        self.problems += located
        return located

    def counts(self, what: str) -> str:
        """How many errors, by the name `what`, and warnings, in words."""
        errors = [counted(self.errors, what)] if self.errors else []
        warnings = [counted(self.warnings, "warning")] if self.warnings else []
        return ", ".join(errors + warnings) or "no problems"

    def errors_in(self, name: str) -> int:
        """Errors in the document `name`."""
        return sum(problem.is_error for problem in set(self.problems) if problem.document == name)

    def print(self, stream: TextIO, colour: bool = False) -> None:
        """Every problem by file and position, a blank line after each."""
        for problem in in_order(self.problems, self.documents):
            print(show(problem, self.documents.get(problem.document), colour), end="\n\n", file=stream)


def counted(number: int, what: str) -> str:
    """The number with its noun: 1 file, 2 files."""
    return f"{number} {what}{'' if number == 1 else 's'}"
