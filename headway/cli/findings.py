"""Collects the problems found while documents are read, and the texts that they refer to."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TextIO

from headway.cli.search import Sources
from headway.jobspec.document import Document
from headway.jobspec.parse import AnyParsed
from headway.jobspec.plan import ClusterPlan
from headway.jobspec.problem import CLUSTER, JOB, Problem, at_origin, in_order, locate, show


class Findings:
    """Problems by the files that they are in; one that is found twice counts once.

    `documents` are the texts by their names; `parsed` and `plans` what has come of them, each made once.
    """

    def __init__(self, problems: Iterable[Problem] = (), documents: Mapping[str, Document] | None = None) -> None:
        self.sources = Sources()
        self.documents = dict(documents or {})
        self.parsed: dict[str, AnyParsed | None] = {}
        self.plans: dict[str, ClusterPlan | None] = {}
        self._finders: dict[Problem, dict[str, None]] = {}
        self._errors: Counter[str] = Counter()
        self.add(problems)

    @property
    def problems(self) -> list[Problem]:
        """Each problem once, in the order in which people read them."""
        return in_order(self._finders, self.documents)

    @property
    def errors(self) -> int:
        return sum(problem.is_error for problem in self._finders)

    @property
    def warnings(self) -> int:
        return len(self._finders) - self.errors

    def load(self, path: Path) -> tuple[Document, list[Problem]]:
        """The document in the file, which is read once; its problems are not kept yet."""
        document, problems = self.sources.load(path)
        self.documents.setdefault(document.name, document)
        return document, problems

    def add(self, problems: Iterable[Problem], job: str = JOB, cluster: str = CLUSTER) -> list[Problem]:
        """Keeps the problems and returns them; `job` and `cluster` are the files that checks know only by their part."""
        located = locate(problems, {JOB: job, CLUSTER: cluster})
        for problem in located:
            self._keep(problem)
        return located

    def heirs(self, problem: Problem) -> list[str]:
        """The documents that inherit the problem from the one that it is in."""
        return [name for name in self._finders[problem] if name != problem.document]

    def counts(self, what: str) -> str:
        """How many errors, by the name `what`, and warnings, in words."""
        errors = [counted(self.errors, what)] if self.errors else []
        warnings = [counted(self.warnings, "warning")] if self.warnings else []
        return ", ".join(errors + warnings) or "no problems"

    def errors_in(self, name: str) -> int:
        """Errors in the document `name` and in what it inherits."""
        return self._errors[name]

    def print(self, stream: TextIO, colour: bool = False, warnings: bool = True) -> None:
        """Every problem in order, a blank line after each; errors only where `warnings` say nothing new."""
        for problem in (problem for problem in self.problems if warnings or problem.is_error):
            text = show(problem, self.documents.get(problem.document), colour, self.heirs(problem))
            print(text, end="\n\n", file=stream)

    def _keep(self, problem: Problem) -> None:
        document = self.documents.get(problem.document)
        placed = problem if document is None else at_origin(_without_secrets(problem, document), document)
        finder = placed.heir or placed.document
        finders = self._finders.setdefault(replace(placed, heir=None), {})
        if finder not in finders:
            finders[finder] = None
            self._errors[finder] += placed.is_error


def _without_secrets(problem: Problem, document: Document) -> Problem:
    message, hint = document.starred(problem.message), document.starred(problem.hint)
    return problem if (message, hint) == (problem.message, problem.hint) else replace(problem, message=message or "", hint=hint)


def counted(number: int, what: str) -> str:
    """The number with its noun: 1 file, 2 files."""
    return f"{number} {what}{'' if number == 1 else 's'}"
