"""Compiles documents to plans and problems: the steps in their order."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

from headway.compile.cluster import (
    PlannedCluster,
    clusters_of_inventories,
    find_clusters,
    plan_cluster,
    read_clusters,
    resolve_with_inventories,
)
from headway.compile.document import is_cluster, is_job
from headway.compile.inventories import is_stray
from headway.compile.job import PlannedJob, check_fit, check_plan, decide_auto
from headway.compile.problems import Problems, Steps, attempted, collected
from headway.compile.sources import Sources, read_document
from headway.jobspec.check.layout import sizes_of
from headway.jobspec.parse import AnyParsed, Parsed
from headway.jobspec.problem import Problem
from headway.jobspec.resolve.job import resolve_job
from headway.jobspec.resolve.trainer import with_settings
from headway.jobspec.spec.cluster import Cluster
from headway.jobspec.spec.job import TrainingJob


@dataclass(frozen=True)
class Compiled:
    """What documents compile to.

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
    """Compile the documents in the files: jobs on each cluster that they name, clusters with their inventories.

    `cluster` is a Cluster document that jobs are planned on instead. Documents that are not of one of the `kinds`, or that are
    only a base for others, are errors if there are `kinds`. With `first_only` a job is planned only on the first cluster that it
    names, with `of_inventories` the clusters that inventories among the files name are planned as well. `sources` reads the files.
    A file that cannot be read is a problem too; nothing is raised.
    """
    sources, files = sources or Sources(), list(files)
    documents, problems = list[AnyParsed](), list[Problem]()
    for file in files:
        # Load, parse, check document.
        document, found = collected(read_document(file, kinds, sources))
        documents += [] if document is None else [document]
        problems += found
    more, found = collected(clusters_of_inventories(documents if of_inventories else [], sources))
    problems += found
    plans: list[PlannedJob | PlannedCluster] = []
    for document in (*documents, *(more or [])):
        broken = {problem.heir or problem.document for problem in problems if problem.is_error}
        planned, found = collected(_plan(document, cluster, first_only, broken, sources))
        plans += planned or []
        problems += found
    # A warning of an inventory without a cluster is for those that are not compiled themselves.
    given = {str(file) for file in files}
    kept = tuple(problem for problem in problems if not (is_stray(problem) and problem.document in given))
    return Compiled(tuple(documents), tuple(plans), Problems(kept, sources.documents))


def _plan(
    document: AnyParsed, cluster_file: Path | None, first_only: bool, broken: Collection[str], sources: Sources
) -> Steps[list[PlannedJob | PlannedCluster]]:
    """A job's plan on each cluster on which it can be planned, or a cluster's plan."""
    if is_cluster(document):
        return [(yield from plan_cluster(document, broken, sources))]
    if not is_job(document):
        return []
    found = find_clusters(document, first_only, sources) if cluster_file is None else read_clusters([cluster_file], sources)
    plans: list[PlannedJob | PlannedCluster] = []
    for cluster in (yield from found):
        plan = yield from attempted(_plan_on(document, cluster, broken, sources))
        plans += [] if plan is None else [plan]
    return plans


def _plan_on(job: Parsed[TrainingJob], cluster: Parsed[Cluster], broken: Collection[str], sources: Sources) -> Steps[PlannedJob]:
    """The job's plan on one cluster: check fit, decide auto, resolve, check plan."""
    options = yield from check_fit(job, cluster)
    cluster_plan = yield from resolve_with_inventories(cluster, broken, sources)
    decided, decisions = yield from decide_auto(job, cluster, cluster_plan, options.trainer)
    plan = resolve_job(decided.spec, cluster_plan, sizes_of(decided), options.data)
    settings = yield from check_plan(plan, decided, cluster, cluster_plan, options)
    return PlannedJob(with_settings(plan, settings), cluster_plan, options.scheduler, options.trainer, decided, decisions)
