"""Finds the problems that a document accepts: each entry of its `ignore` names a code, and the reason why the problem may stay."""

import re
from collections.abc import Iterable, Iterator

from msgspec import Struct
from msgspec.structs import replace

from headway.jobspec.codes import CODES, WARNING
from headway.jobspec.document import Document, Path, dotted
from headway.jobspec.flow import flow
from headway.jobspec.problem import Problem, Severity, not_passed
from headway.jobspec.suggest import nearest

_ENTRIES = "ignore"
_MAX = 100

# Errors about which the author of a document can know better: rules of caution, tables that can be out of date and files that are made
# later. All other errors mean that there is no plan.
JUDGEMENTS = frozenset({"HW215", "HW216", "HW221", "HW412", "HW413"})
# Codes that are an error in some documents and a warning in others, of which only the warning can be ignored.
_BOTH = frozenset(
    [
        "HW210",
        "HW214",
        "HW218",
        "HW232",
        "HW233",
        "HW307",
        "HW310",
        "HW320",
        "HW330",
        "HW433",
        "HW504",
        "HW505",
        "HW509",
        "HW513",
        "HW520",
        "HW525",
        "HW703",
        "HW708",
    ]
)
# Problems of files in force, which belong to no document.
_IN_FORCE = "HW8"
# What `run` is short for.
_LONG, _ARGV = re.compile(r"^run(?=$|\[)"), "trainer.options.argv"
# The warnings of a cluster by itself; others appear only together with certain jobs.
_OF_CLUSTERS = ("HW23", "HW5", "HW606")


class Ignored(Struct, frozen=True):
    """One entry: problems with this code at the field `at` or below it, anywhere in the document if `at` is empty."""

    path: Path
    code: str
    at: str
    reason: str

    def covers(self, problem: Problem) -> bool:
        """Return whether the entry accepts the problem."""
        return problem.code == nearest_code(self.code) and (
            not self.at or self._is_around(dotted(problem.path)) or self._covers_all(problem.fields)
        )

    def covered(self, problem: Problem) -> tuple[str, ...]:
        """Return those of the fields that the problem lists which the entry accepts by themselves."""
        return tuple(field for field in problem.fields if problem.code == self.code and self.at and self._is_around(field))

    def _covers_all(self, fields: tuple[str, ...]) -> bool:
        return bool(fields) and all(map(self._is_around, fields))

    def _is_around(self, where: str) -> bool:
        at = _LONG.sub(_ARGV, self.at)
        return where == at or where.startswith((f"{at}.", f"{at}["))


def entries(document: Document) -> list[Ignored]:
    """Return the document's entries, those of its bases included.

    An entry with a code that does not exist counts for the nearest, and one without a reason too: each is a problem itself, and what it
    is for is known.
    """
    written = document.value((_ENTRIES,))
    return [
        Ignored((_ENTRIES, index), each["code"], str(each.get("field", "")), str(each.get("reason") or "no reason"))
        for index, each in enumerate(written[:_MAX] if isinstance(written, list) else [])
        if isinstance(each, dict) and isinstance(each.get("code"), str)
    ]


def nearest_code(code: str) -> str:
    """Return the code itself, or the one that it is meant to be."""
    return code if code in CODES else nearest(code, CODES) or code


def accepted(problems: Iterable[Problem], document: Document, part: str) -> list[Problem]:
    """Return the problems, each one of the document (which problems know by its `part`) that an entry covers with the entry's reason."""
    found = entries(document)
    if not found:
        return list(problems)
    return [each for problem in problems for each in (_parted(problem, found) if problem.document == part else [problem])]


def may_be_ignored(code: str) -> bool:
    """Return whether some problem with this code can be accepted."""
    is_warning = CODES[code].endswith(WARNING) and not code.startswith(_IN_FORCE)
    return is_warning or code in JUDGEMENTS or code in _BOTH


def only_as_warning(code: str) -> bool:
    """Return whether the code is usually an error, which cannot be accepted, and elsewhere a warning, which can."""
    return code in _BOTH and not CODES[code].endswith(WARNING)


def check_codes(document: Document) -> Iterator[Problem]:
    """Yield a problem for each entry whose code does not exist, or whose problem is an error that leaves no plan."""
    for entry in entries(document):
        path = (*entry.path, "code")
        if entry.code not in CODES:
            meant = nearest(entry.code, CODES)
            text = "remove the entry, or write the code with which `headway check` prints the problem"
            text = text if meant is None else f"did you mean `{meant}`?"
            yield Problem("HW239", document.name, path, f"`{entry.code}` is not the code of a problem", text, fix=meant)
        elif not may_be_ignored(entry.code):
            message = f"{entry.code} cannot be ignored: it is an error, {CODES[entry.code]}"
            yield Problem(
                "HW239",
                document.name,
                path,
                message,
                "remove the entry, and mend what it is about; docs/guide.md lists the errors that can be ignored",
            )


def check_unused(document: Document, problems: Iterable[Problem], of_job: bool) -> Iterator[Problem]:
    """Yield a warning for each entry of the document itself that accepted none of the problems.

    A cluster's entries are judged only where no job is needed to find their problem.
    """
    ignored = [problem for problem in problems if problem.ignored is not None and problem.document == document.name]
    for entry in entries(document):
        own = document.origin(entry.path) is document
        if own and (of_job or entry.code.startswith(_OF_CLUSTERS)) and not any(map(entry.covers, ignored)):
            where = f" at `{entry.at}`" if entry.at else ""
            message = f"there is no {entry.code}{where} to ignore"
            elsewhere = [dotted(problem.path) for problem in problems if problem.code == entry.code and problem.path]
            near = nearest(entry.at, elsewhere) if entry.at and elsewhere else None
            if near is not None:
                at, hint = (*entry.path, "field"), f"did you mean `{near}`?"
                yield Problem("HW238", document.name, at, message, hint, Severity.WARNING, fix=flow(near))
                continue
            yield Problem("HW238", document.name, (*entry.path, "code"), message, "remove the entry", Severity.WARNING)


def _parted(problem: Problem, found: list[Ignored]) -> Iterator[Problem]:
    """Yield the problem; if entries accept only some of the fields that it lists, those by themselves and then the others."""
    accepted_whole = _accepted(problem, found)
    if accepted_whole.ignored is None:
        for entry in found:
            if covered := entry.covered(problem):
                yield replace(_of_fields(problem, covered), ignored=entry.reason)
                problem = _of_fields(problem, tuple(field for field in problem.fields if field not in covered))
    if problem.fields or not accepted_whole.fields:
        yield problem if accepted_whole.ignored is None else accepted_whole


def _of_fields(problem: Problem, fields: tuple[str, ...]) -> Problem:
    return replace(problem, message=not_passed(fields), fields=fields)


def _accepted(problem: Problem, found: Iterable[Ignored]) -> Problem:
    entry = next((each for each in found if each.covers(problem)), None)
    may = problem.severity is Severity.WARNING or problem.code in JUDGEMENTS
    return replace(problem, ignored=entry.reason) if entry is not None and may else problem
