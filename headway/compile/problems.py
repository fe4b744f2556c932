"""Holds the problems that were found, each once, and the documents that they are in."""

import types
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from functools import cached_property
from typing import TypeVar

from msgspec import Struct, field
from msgspec.structs import replace

from headway.jobspec.document import Document, dotted
from headway.jobspec.document import Path as ValuePath
from headway.jobspec.ignore import accepted
from headway.jobspec.parse import AnyParsed, kind_of
from headway.jobspec.problem import CLUSTER, JOB, Misfit, Problem, at_origin, in_order, locate

T = TypeVar("T")

Steps = Generator[Problem, None, T]
"""Steps of a compile: they yield problems and return a result. They raise NoPlanError where errors leave none."""


class NoPlanError(Exception):
    """There is no plan; the problems that were yielded before say why."""


class Problems(Struct, frozen=True, dict=True):
    """Problems at the places where their causes are written, in the order in which people read them; one found twice counts once.

    `found` are the problems as checks yield them, `documents` the texts that they refer to, by name.
    """

    found: tuple[Problem, ...] = ()
    documents: Mapping[str, Document] = field(default_factory=dict)

    def __iter__(self) -> Iterator[Problem]:
        return iter(self._in_order)

    def plus(self, more: Iterable[Problem], documents: Mapping[str, Document] = types.MappingProxyType({})) -> "Problems":
        """These problems and more of them, in these documents or in others."""
        return Problems((*self.found, *more), {**self.documents, **documents})

    def without(self, is_settled: Callable[[Problem], bool]) -> "Problems":
        """These problems but for those that are settled otherwise."""
        return Problems(tuple(problem for problem in self.found if not is_settled(problem)), self.documents)

    @property
    def ignored(self) -> list[Problem]:
        """The problems that their documents accept, in order; they are none of the others."""
        return [problem for problem in self._sorted if problem.ignored is not None]

    @property
    def errors(self) -> int:
        """The number of errors."""
        return sum(problem.is_error for problem in self._in_order)

    @property
    def warnings(self) -> int:
        """The number of warnings."""
        return len(self._in_order) - self.errors

    def heirs(self, problem: Problem) -> list[str]:
        """The documents that inherit the problem from the one that it is in."""
        return [name for name in self._finders[problem] if name != problem.document]

    @cached_property
    def _in_order(self) -> list[Problem]:
        return _without_consequences([problem for problem in self._sorted if problem.ignored is None], self.documents)

    @cached_property
    def _sorted(self) -> list[Problem]:
        return in_order(self._finders, self.documents)

    @cached_property
    def _finders(self) -> Mapping[Problem, Mapping[str, None]]:
        """Each problem with the documents in which it was found."""
        finders: dict[Problem, dict[str, None]] = {}
        for problem in locate(self.found, {}):
            document = self.documents.get(problem.document)
            placed = problem if document is None else at_origin(_without_secrets(problem, document), document)
            finders.setdefault(replace(placed, heir=None), {})[placed.heir or placed.document] = None
        return finders


# Problems that another one on the same value explains: it has to change anyway.
_EXPLAINED: Mapping[str, tuple[str, ...]] = {
    # A password of hosts, which have none.
    "HW201": ("HW215",),
    "HW203": ("HW215", "HW703"),
    "HW204": ("HW215", "HW703"),
    # The degrees that HW413 names divide the heads too.
    "HW314": ("HW301", "HW306", "HW413"),
    "HW315": ("HW301", "HW306", "HW314", "HW413"),
    "HW311": ("HW306",),
    "HW313": ("HW210",),
    "HW210": ("HW306",),
    "HW230": ("HW216",),
    "HW318": ("HW301",),
    "HW319": ("HW306",),
    "HW321": ("HW210",),
    "HW326": ("HW317", "HW318", "HW319"),
    "HW413": ("HW301",),
    "HW424": ("HW215",),
    "HW516": ("HW214",),
    "HW531": ("HW232",),
    "HW703": ("HW312", "HW418", "HW433"),
    "HW713": ("HW428",),
    "HW716": ("HW701",),
}
# Problems that another one in the same document explains: degrees and batches that do not fit ranks which are not there.
_EXPLAINED_ANYWHERE: Mapping[str, tuple[str, ...]] = {
    "HW301": ("HW403", "HW434"),
    # Heads that divide `hidden` are chosen first.
    "HW303": ("HW302",),
    # A sequence that the layout does not divide.
    "HW323": ("HW316",),
    # A schedule that the run is too short for.
    "HW324": ("HW308",),
    "HW305": ("HW403", "HW434"),
    "HW314": ("HW302", "HW303"),
    "HW214": ("HW504",),
    "HW235": ("HW515",),
    "HW414": ("HW301", "HW321", "HW403"),
    "HW501": ("HW504",),
    "HW510": ("HW502",),
    "HW508": ("HW503", "HW506"),
    "HW509": ("HW506",),
    "HW515": ("HW236",),
    "HW516": ("HW504", "HW506"),
    "HW518": ("HW526",),
    "HW523": ("HW521",),
    "HW531": ("HW504",),
    "HW716": ("HW427",),
}
# Problems of a job that one of its cluster explains.
_EXPLAINED_BY_CLUSTER: Mapping[str, tuple[str, ...]] = {"HW414": ("HW233",)}
# Warnings of cables and GUIDs that no inventory has.
_OF_INVENTORIES = ("HW513", "HW524")
# Problems of a model that its trainer does not build: they follow from the model.
_EXPLAINED_BY_MODEL = ("HW210", "HW315", "HW322")
# Of several with this code at one place, the last one has the mend that is right for all.
_ONCE = ("HW215", "HW232", "HW321")
# Fields of the layout that follow from an axis, which a trainer does not have.
_OF_AXIS = {"sequence_parallel": "tp", "schedule": "pp", "virtual_stages": "pp"}
# Fields of a fabric that InfiniBand alone has.
_OF_INFINIBAND = ("service_level", "sharp")
# How many names of a path are one thing: the switches of one fabric.
_NEAR = 3


def _without_consequences(problems: list[Problem], documents: Mapping[str, Document]) -> list[Problem]:
    """Return the problems without those that another one of them explains."""
    there = {(problem.document, problem.code) for problem in problems}
    codes = {problem.code for problem in problems}
    unbuilt = {problem.document for problem in problems if problem.code == "HW306" and problem.path[:1] == ("model",)}
    unknown = {(problem.document, problem.path[:_NEAR]) for problem in problems if problem.code == "HW513"}
    # A mapping of secrets' values in place of a list of their names.
    secrets = {
        (problem.document, problem.path[:1])
        for problem in problems
        if problem.code == "HW215" and problem.path[:1] == ("secrets",)
    }
    first_kept: dict[tuple[str, ValuePath], Problem] = {}
    for problem in problems:
        if "keep_ports" in problem.path:
            first_kept.setdefault((problem.document, problem.path), problem)
    last = {(problem.document, problem.path, problem.code): problem for problem in problems if problem.code in _ONCE}
    causes = [
        problem
        for problem in problems
        if not any((problem.document, code) in there for code in _EXPLAINED_ANYWHERE.get(problem.code, ()))
        and codes.isdisjoint(_EXPLAINED_BY_CLUSTER.get(problem.code, ()))
        and not (problem.document in unbuilt and _is_of_model(problem))
        and not (problem.code == "HW231" and (problem.document, problem.path[:_NEAR]) in unknown)
        and not (problem.code == "HW203" and (problem.document, problem.path) in secrets)
        and not _follows(problem, problems, documents.get(problem.document))
        and last.get((problem.document, problem.path, problem.code), problem) is problem
        # A port that several switches cannot keep is one mistake.
        and first_kept.get((problem.document, problem.path), problem) is problem
    ]
    if _lacks_inventory(problems, documents):
        causes = [problem for problem in causes if problem.is_error or problem.code not in _OF_INVENTORIES]
    here = {(problem.document, problem.path, problem.code) for problem in causes}
    return [
        problem
        for problem in causes
        if not any((problem.document, problem.path, code) in here for code in _EXPLAINED.get(problem.code, ()))
    ]


def _lacks_inventory(problems: Iterable[Problem], documents: Mapping[str, Document]) -> bool:
    """Return whether a document that is, or may be meant as, an inventory has an error: it may have what clusters do not have."""
    broken = {problem.document for problem in problems if problem.is_error}
    kinds = [kind_of(documents[name]) for name in broken if name in documents]
    return any(kind in (None, "Inventory") for kind in kinds)


def _follows(problem: Problem, problems: list[Problem], document: Document | None) -> bool:
    """Return whether it is about what another problem of the document is about already: the axis of a field, the model's heads, or fields
    that have no effect."""
    others = [each for each in problems if each.document == problem.document]
    if problem.code == "HW306" and problem.path[:1] == ("layout",) and (axis := _OF_AXIS.get(str(problem.path[-1]))):
        is_written = document is None or problem.path in document.values
        return not is_written and any(each.code == "HW306" and each.path == ("layout", axis) for each in others)
    if problem.code == "HW306" and problem.path in (("model",), ("model", "preset"), ("layout", "tp")):
        return any(each.code in ("HW302", "HW303") for each in others)
    if problem.code in ("HW201", "HW202"):
        # The fields of a base whose kind is wrong.
        return any(each.code == "HW114" and each.path == ("kind",) for each in others)
    if problem.code == "HW313":
        unused = {dotted(each.path) for each in others if each.code == "HW210"}
        return bool(problem.fields) and unused.issuperset(problem.fields)
    if problem.code == "HW316":
        # The ranks of an axis whose degree is wrong.
        return any(each.code == "HW301" and each.path[-1] in ("cp", "tp") for each in others)
    if problem.code == "HW235":
        # Adapters for a number of GPUs that no node has.
        return any(each.code == "HW232" and each.path == (*problem.path[:-1], "gpus") for each in others)
    if problem.code in ("HW503", "HW504", "HW505") and problem.path[:1] == ("fabrics",):
        # Settings of a network for RDMA whose transport is wrong.
        fabric = None if document is None else document.value(problem.path[:2])
        fabric = fabric if isinstance(fabric, dict) else {}
        is_tcp = fabric.get("role") == "scale-out" and fabric.get("transport") == "tcp"
        is_meant_as_roce = is_tcp and bool(fabric.get("classes") or fabric.get("congestion"))
        if is_meant_as_roce and any(each.code == "HW530" and each.path[-1:] == ("nics",) for each in others):
            return True
    if problem.code == "HW521":
        # A cable to a leaf of another rail, where another adapter's is.
        return any(each.code == "HW522" and each.path == (*problem.path[:-1], "switch") for each in others)
    return _follows_in_fabric(problem, [each for each in others if each.path[:1] == ("fabrics",)])


def _follows_in_fabric(problem: Problem, others: list[Problem]) -> bool:
    """Return whether it follows from one of the problems of fabrics: their role, their transport, or the vendor of their switches."""
    roles = {each.path[:2] for each in others if each.code == "HW503" and each.path[-1] == "role"}
    transports = {each.path[:2] for each in others if each.code == "HW503" and each.path[-1] == "transport"}
    wrong_classes = {each.path for each in others if each.code == "HW503" and "classes" in each.path}
    fabric = problem.path[:2]
    match problem.code:
        case "HW601":
            return bool(roles)
        case "HW530":
            # Adapters on a fabric whose transport is wrong.
            return bool(transports)
        case "HW504":
            return fabric in transports
        case "HW503" | "HW510" | "HW515":
            # What is on a fabric, and how many switches it needs, follows from its role.
            is_second = any(each.code == "HW519" and each.path[:2] == fabric for each in others)
            return is_second or (problem.code == "HW510" and fabric in roles)
        case "HW513":
            # Settings of an operating system that does not run on the switches.
            is_cause = problem.path[:1] != ("fabrics",) or problem.misfit is Misfit.OTHER_VENDOR
            return not is_cause and any(each.misfit is Misfit.OTHER_VENDOR and each.path[:2] == fabric for each in others)
        case "HW526":
            # The fabric's transport is what is wrong.
            of_infiniband = {each.path[:2] for each in others if each.code == "HW504" and each.path[-1] in _OF_INFINIBAND}
            return problem.misfit is Misfit.OTHER_TRANSPORT and fabric in of_infiniband
        case "HW532":
            # A class that does not belong on the fabric.
            return any(path[: len(problem.path)] == problem.path for path in wrong_classes)
        case "HW501":
            # What its class carries is what is wrong.
            return any(path[:2] == fabric for path in wrong_classes)
    return False


def _is_of_model(problem: Problem) -> bool:
    return problem.code in _EXPLAINED_BY_MODEL and (problem.code != "HW210" or problem.path[:1] == ("model",))


def located(problems: Iterable[Problem], job: AnyParsed | None = None, cluster: AnyParsed | None = None) -> list[Problem]:
    """The problems with the names of the files in place of the parts by which checks know them; those that the files accept marked so."""
    parts = {part: parsed.document for part, parsed in ((JOB, job), (CLUSTER, cluster)) if parsed is not None}
    found = list(problems)
    for part, document in parts.items():
        found = accepted(found, document, part)
    return locate(found, {part: document.name for part, document in parts.items()})


def passed(problems: Iterable[Problem]) -> Steps[None]:
    """Yield the problems. Raises NoPlanError if one of them is an error."""
    found = list(problems)
    yield from found
    if any(problem.is_error for problem in found):
        raise NoPlanError


def attempted(steps: Steps[T]) -> Steps[T | None]:
    """Yield the problems of the steps; return their result, None if errors leave none."""
    try:
        return (yield from steps)
    except NoPlanError:
        return None


def collected(steps: Steps[T]) -> tuple[T | None, list[Problem]]:
    """The result of the steps, None if errors leave none, and their problems."""
    problems, attempt = list[Problem](), attempted(steps)
    while True:
        try:
            problems.append(next(attempt))
        except StopIteration as end:
            return end.value, problems


def _without_secrets(problem: Problem, document: Document) -> Problem:
    message, hint = document.starred(problem.message), document.starred(problem.hint)
    fix = problem.fix if document.starred(problem.fix) == problem.fix else None
    same = (message, hint, fix) == (problem.message, problem.hint, problem.fix)
    return problem if same else replace(problem, message=message or "", hint=hint, fix=fix)
