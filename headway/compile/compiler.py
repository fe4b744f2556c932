"""Compiles documents to plans and problems: the steps in their order.

Each step is a generator: it yields the problems that it finds and returns its result, and raises `NoPlanError` where errors leave
none. Load, parse and check document are in `sources.py` and `document.py`, find cluster in `cluster.py`, the others in `job.py`.
"""

from collections import Counter
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import TypeVar

from msgspec import Struct
from msgspec.structs import replace

from headway.compile.cluster import (
    PlannedCluster,
    clusters_of_inventories,
    find_clusters,
    plan_cluster,
    resolve_with_inventories,
)
from headway.compile.document import check_spec, is_cluster, is_job
from headway.compile.inventories import is_stray
from headway.compile.job import PlannedJob, check_fit, check_plan, decide_auto
from headway.compile.problems import NoPlanError, Problems, Steps, collected, located, passed
from headway.compile.sources import Sources, read_document
from headway.jobspec.check.layout import sizes_of
from headway.jobspec.document import Path as ValuePath
from headway.jobspec.document import dotted
from headway.jobspec.flow import flow
from headway.jobspec.ignore import check_unused
from headway.jobspec.parse import AnyParsed, Parsed, parse_job
from headway.jobspec.problem import Problem
from headway.jobspec.resolve.job import cluster_of_job, resolve_job
from headway.jobspec.resolve.trainer import with_settings
from headway.jobspec.short import with_node_range
from headway.jobspec.spec.cluster import Cluster
from headway.jobspec.spec.job import TrainingJob
from headway.jobspec.sweep import Point, at_point, is_swept, points
from headway.templates.trainers import TRAINERS

T = TypeVar("T")


class Compiled(Struct, frozen=True):
    """The result of a compilation.

    `documents` are those that could be parsed, in the order of their files, and `plans` what is planned of them, in the same order.
    With errors among the `problems` plans are missing, or are not to be used.
    """

    documents: tuple[AnyParsed, ...]
    plans: tuple[PlannedJob | PlannedCluster, ...]
    problems: Problems

    @property
    def jobs(self) -> tuple[PlannedJob, ...]:
        """The plans of jobs, one for each cluster that a job is planned on."""
        return tuple(plan for plan in self.plans if isinstance(plan, PlannedJob))

    @property
    def clusters(self) -> tuple[PlannedCluster, ...]:
        """The plans of the Cluster documents; those of jobs' clusters are in `jobs`."""
        return tuple(plan for plan in self.plans if isinstance(plan, PlannedCluster))


def compile_documents(
    files: Iterable[Path],
    cluster: Path | None = None,
    *,
    kinds: Collection[str] = (),
    first_only: bool = False,
    of_inventories: bool = False,
    sources: Sources | None = None,
) -> Compiled:
    """Compile the documents in the files: jobs on each cluster that they name, and clusters with their inventories.

    * `cluster` is a Cluster document that jobs are planned on instead of those that they name.
    * `kinds`, if there are any, are the kinds of documents that are accepted; another kind, or a base for others, is an error.
    * With `first_only` a job is planned only on the first cluster that it names.
    * With `of_inventories` the clusters that inventories among the files name are planned as well.
    * `sources` reads the files; pass one to several calls, and each file is read once.

    A file that cannot be read is an error among the problems. Raises nothing for what a document contains.
    """
    sources, files, problems = sources or Sources(), list(files), list[Problem]()

    def done(steps: Steps[T]) -> T | None:
        result, found = collected(steps)
        problems.extend(found)
        return result

    # Load, parse, check document.
    documents = [document for file in files if (document := done(read_document(file, kinds, sources))) is not None]
    more = done(clusters_of_inventories(documents, sources)) if of_inventories else None
    plans: list[PlannedJob | PlannedCluster | None] = []
    for document in (*documents, *(more or [])):
        if is_cluster(document):
            plans.append(done(plan_cluster(document, _broken(problems), sources)))
        elif is_job(document):
            # Find cluster, then check fit, decide auto, resolve, check plan: for each run of a sweep.
            clusters = done(find_clusters(document, cluster, first_only, sources)) or []
            found: list[list[Problem]] = []
            for run in done(_runs(document)) or []:
                results = [collected(_plan_job(run, each, _broken(problems), sources)) for each in clusters]
                plans.extend([plan for plan, _ in results])
                found.append([problem for _, several in results for problem in several])
            problems.extend(_of_runs(document, found))
    if cluster is None and not first_only:
        unused = _unused(plans, documents, problems)
        problems = [*_without_misplaced(problems, unused, documents), *unused]
    problems = _without_partial(problems, documents)
    # An inventory that is compiled itself gets no warning for the cluster that it does not have.
    given = {str(file) for file in files}
    kept = tuple(problem for problem in problems if not (is_stray(problem) and problem.document in given))
    return Compiled(tuple(documents), tuple(plan for plan in plans if plan is not None), Problems(kept, sources.documents))


def _runs(job: Parsed[TrainingJob]) -> Steps[list[Parsed[TrainingJob]]]:
    """The job, or a job for each point of its sweep, each checked by itself."""
    if not job.has(("sweep",)) or job.spec.sweep is None:
        return [job]
    runs: list[Parsed[TrainingJob]] = []
    first: list[Problem] = []
    for point in points(job.document):
        if not all(map(is_swept, point.values)):
            # The check of the document names them.
            raise NoPlanError
        run, invalid = parse_job(with_node_range(at_point(job.document, point)))
        found = located([*invalid, *check_spec(run)], run)
        first = found if not runs else first
        yield from passed(problem if problem in first else _at_point(problem, point) for problem in found)
        runs.append(run)
    return runs


def _of_runs(job: Parsed[TrainingJob], found: list[list[Problem]]) -> list[Problem]:
    """The problems of each run of a job; those that not all runs of a sweep have are at the values of their point."""
    if len(found) <= 1:
        return [problem for problems in found for problem in problems]
    shared = set(found[0]).intersection(*found[1:])
    every = [(point, problem) for point, problems in zip(points(job.document), found, strict=True) for problem in problems]
    # What several runs have at a field that their points do not set is one problem, of the job.
    own = Counter((problem.code, problem.path) for point, problem in every if not _sets(point, problem.path))
    placed: dict[tuple[str, ValuePath], Problem] = {}
    told: set[tuple[object, ...]] = set()
    result = []
    for point, problem in every:
        key = (problem.code, problem.path)
        if problem in shared or problem.document != job.document.name:
            result.append(problem)
        elif own[key] > 1 and not _sets(point, problem.path):
            result.append(placed.setdefault(key, problem))
        else:
            placed_at = _at_point(problem, point)
            # The same value in several runs is one mistake.
            twin = (problem.code, placed_at.path, problem.message, problem.hint)
            if twin not in told:
                result.append(placed_at)
            told.add(twin)
    return result


def _sets(point: Point, path: ValuePath) -> bool:
    """Return whether the point has a value in the section of the problem, which may be its cause."""
    return any(field.partition(".")[0] == path[0] for field in point.values) if path else False


def _at_point(problem: Problem, point: Point) -> Problem:
    """The problem at the point's value of its field, or else at the value nearest to it, with the point's name."""
    path = problem.path

    def shared_names(field: str) -> int:
        names = field.split(".")
        return next((at for at, name in enumerate(names) if path[at : at + 1] != (name,)), len(names))

    field = max(point.values, key=shared_names)
    place, names = point.values[field][1], tuple(field.split("."))
    message = f"{problem.message}; in the run `{point.name}`"
    if path[: len(names)] == names:
        return replace(problem, path=(*place, *path[len(names) :]), message=message)
    hint = problem.hint and f"use another value of `{field}` there; or, for this run alone: {problem.hint}"
    return replace(problem, path=place, message=message, hint=hint, fix=None)


def _plan_job(job: Parsed[TrainingJob], cluster: Parsed[Cluster], broken: Collection[str], sources: Sources) -> Steps[PlannedJob]:
    options = yield from check_fit(job, cluster)
    whole = yield from resolve_with_inventories(cluster, broken, sources)
    cluster_plan = cluster_of_job(job.spec, whole)
    decided, decisions = yield from decide_auto(job, cluster, cluster_plan, options.trainer)
    plan = resolve_job(decided.spec, whole, sizes_of(decided), options.data)
    settings = yield from check_plan(plan, decided, cluster, cluster_plan, options)
    scheduler, trainer = options.scheduler, options.trainer
    runs_as = TRAINERS[decided.spec.trainer.kind].runs_as
    return PlannedJob(
        with_settings(plan, settings, runs_as), cluster_plan, scheduler, trainer, decided, decisions, cluster.document
    )


def _unused(
    plans: Iterable[PlannedJob | PlannedCluster | None], documents: Iterable[AnyParsed], problems: Collection[Problem]
) -> list[Problem]:
    """Warnings for the entries of `ignore` in the planned documents that accept nothing. Other problems of a document count more."""
    planned, broken = {plan.document.name for plan in plans if plan is not None}, _broken(problems)
    return [
        problem
        for parsed in documents
        if parsed.document.name in planned - broken
        for problem in check_unused(parsed.document, problems, of_job=is_job(parsed))
    ]


def _without_misplaced(problems: Iterable[Problem], unused: Iterable[Problem], documents: Iterable[AnyParsed]) -> list[Problem]:
    """The problems without those that a misspelt `field` of `ignore` is meant to accept."""
    named = {parsed.document.name: parsed.document for parsed in documents}
    meant = {
        (each.document, named[each.document].value((*each.path[:-1], "code")), each.fix)
        for each in unused
        if each.fix is not None
    }
    return [problem for problem in problems if (problem.document, problem.code, flow(dotted(problem.path))) not in meant]


# What is missing from a base and in its heirs.
_OF_INCOMPLETE = frozenset({"HW202", "HW312"})


def _without_partial(problems: list[Problem], documents: Iterable[AnyParsed]) -> list[Problem]:
    """The problems, with one for each base that is checked as a job and is incomplete without what its heirs add."""
    heirs: dict[str, str] = {}
    for parsed in documents:
        for base in parsed.document.origins.values():
            heirs.setdefault(base.name, parsed.document.name)
    for parsed in documents:
        name = parsed.document.name
        lacking = [each for each in problems if each.document == name and each.code in _OF_INCOMPLETE]
        if name not in heirs or not is_job(parsed) or not lacking:
            continue
        # A mistake in the base is one in its heirs too.
        shared = {(each.code, each.path) for each in problems if each.document == heirs[name]}
        lacking = [each for each in lacking if (each.code, each.path) not in shared]
        if not lacking:
            continue
        more = f", and {len(lacking) - 1} more" if len(lacking) > 1 else ""
        message = f"`{heirs[name]}` extends this document, which is incomplete by itself: {lacking[0].message}{more}"
        hint = "write `partial: true` in it, so that only the documents that extend it are run; or add what is missing"
        found = Problem("HW202", name, ("name",), message, hint, at_key=True)
        problems = [*(each for each in problems if each not in lacking), found]
    return problems


def _broken(problems: Iterable[Problem]) -> set[str]:
    """The documents with errors. Nothing more is planned on such a cluster."""
    return {problem.heir or problem.document for problem in problems if problem.is_error}
