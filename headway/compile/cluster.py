"""Finds the Cluster documents of a job, and plans a cluster with its inventories."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from msgspec import Struct
from pydantic import BaseModel

import headway.jobspec.catalog
from headway.compile.bases import base_files, read_bases
from headway.compile.document import is_cluster, is_inventory
from headway.compile.inventories import clusters_named_by, read_inventories
from headway.compile.options import provider_options, scheduler_options, switch_options
from headway.compile.problems import NoPlanError, Steps, attempted, collected, located
from headway.compile.sources import Sources, read_document
from headway.jobspec.document import Document
from headway.jobspec.parse import AnyParsed, Parsed
from headway.jobspec.plan import ClusterPlan
from headway.jobspec.problem import JOB, Problem
from headway.jobspec.resolve.cluster import resolve_cluster
from headway.jobspec.resolve.links import FabricShape, shape_of
from headway.jobspec.spec.cluster import Cluster
from headway.jobspec.spec.job import TrainingJob
from headway.jobspec.spec.section import is_name
from headway.jobspec.suggest import Hint, did_you_mean, listed, nearest
from headway.templates.cluster import SwitchOptions, check_switches, render_cluster
from headway.templates.kind import Files
from headway.templates.schedulers import SCHEDULERS


class PlannedCluster(Struct, frozen=True):
    """A cluster's plan, and what its renderers and its provider need in addition.

    `switches` are the options of the switches, by fabric and operating system, `scheduler` those of the scheduler; `provider` is None where
    the cluster has none.
    """

    plan: ClusterPlan
    switches: SwitchOptions
    provider: BaseModel | None
    scheduler: BaseModel | None
    document: Document
    spec: Cluster

    @property
    def shapes(self) -> Mapping[str, FabricShape]:
        """Where everything of each fabric with switches is, by its name."""
        return {each.name: shape_of(each, self.spec.node_groups) for each in self.spec.fabrics if each.switches is not None}

    @property
    def bases(self) -> frozenset[Path]:
        """The files of the site that its switches' are merged with."""
        return frozenset(base_files(self.plan, self.switches, Path(self.document.name)))

    def files(self) -> Files:
        """Every rendered file, below `<cluster>/`; none where neither switches, hosts nor the scheduler need one."""
        return render_cluster(self.plan, self.switches, self.scheduler)


def find_clusters(
    job: Parsed[TrainingJob], file: Path | None, first_only: bool, sources: Sources
) -> Steps[list[Parsed[Cluster]]]:
    """The cluster in the file. Without one, those that the job names, or only the first: for each the nearest document of that name,
    in the job's folder or a parent of it."""
    names = job.spec.cluster if file is None and job.has(("cluster",)) else ()
    files = [file]
    for index, name in enumerate(names[:1] if first_only else names):
        files.append((yield from _find(job, index, name, sources)))
    return (yield from read_clusters([each for each in files if each is not None], sources))


def read_clusters(files: Iterable[Path], sources: Sources) -> Steps[list[Parsed[Cluster]]]:
    """The Clusters in the files; another kind of document, or a base for others, is an error."""
    clusters = []
    for file in files:
        parsed = yield from attempted(read_document(file, ("Cluster",), sources))
        if parsed is not None and is_cluster(parsed):
            clusters.append(parsed)
    return clusters


# This machine, for jobs that name no other; a document of the repository with this name counts more.
LOCAL = Path(headway.jobspec.catalog.__file__).parent / "clusters" / "local.yaml"


def _find(job: Parsed[TrainingJob], index: int, name: str, sources: Sources) -> Steps[Path | None]:
    seen: list[str] = []
    unreadable: list[Path] = []
    misnamed: list[Path] = []
    folders: list[Path] = []
    document = Path(job.document.name)
    for clusters in sources.clusters_around(document, name):
        if name in clusters.named:
            return (yield from _only(job, index, clusters.named[name]))
    # No cluster has the name: all are read, to explain why.
    for clusters in sources.clusters_around(document):
        seen += clusters.named
        misnamed += [path for name, paths in clusters.named.items() if not is_name(name) for path in paths]
        unreadable += clusters.unreadable
        folders.append(clusters.folder)
    # `jobs/` and `clusters/` are often next to each other.
    elsewhere = sources.clusters_beside(document)
    if name in elsewhere:
        return (yield from _only(job, index, elsewhere[name]))
    seen = list(dict.fromkeys([*seen, *elsewhere]))
    if name == LOCAL.stem:
        return LOCAL
    for path in unreadable:
        yield from sources.load(path)[1]
    unusable = [path for folder in folders for path in sources.unusable(folder, name)]
    if unusable:
        yield from _unusable(job, index, unusable[0], sources)
        return None
    where = "in the job's folder, or above it in its Git repository" if not elsewhere else "in the job's repository"
    message = f"no Cluster document called `{name}` {where}"
    # A name that no cluster may have is a problem of its own document.
    usable = [each for each in seen if is_name(each)]
    if misnamed and not usable:
        for path in misnamed:
            yield from sources.read(path).problems
        return None
    hint = did_you_mean(name, usable, "clusters") if usable else Hint("put its Cluster document beside the job")
    if unreadable and nearest(name, seen) is None:
        # Their problems, which come before, are the reason.
        return None
    yield from located([Problem("HW401", JOB, ("cluster", index), message, hint.text, fix=hint.fix)], job)
    return None


def _unusable(job: Parsed[TrainingJob], index: int, path: Path, sources: Sources) -> Iterator[Problem]:
    """The problems of the document that has the cluster's name; of a base for others, that it is one."""
    checked, name = sources.read(path), job.spec.cluster[index]
    if checked.has_errors:
        yield from checked.problems
    else:
        message = f"`{name}` in {path} is `partial`: a base for other documents, on which no job is planned"
        hint = "leave `partial` out there, or name a cluster that extends it"
        yield from located([Problem("HW401", JOB, ("cluster", index), message, hint)], job)


def _only(job: Parsed[TrainingJob], index: int, found: Sequence[Path]) -> Steps[Path | None]:
    """The one file; None, with a problem, for several of one name."""
    if len(found) == 1:
        return found[0]
    message = f"several Cluster documents are called `{job.spec.cluster[index]}`: {listed(map(str, found))}"
    yield from located([Problem("HW402", JOB, ("cluster", index), message, "rename all but one")], job)
    return None


def clusters_of_inventories(documents: Sequence[AnyParsed], sources: Sources) -> Steps[list[Parsed[Cluster]]]:
    """The clusters that inventories among the documents name, without those that are among the documents themselves."""
    inventories = [document for document in documents if is_inventory(document) and document.has(("cluster",))]
    files = yield from clusters_named_by(inventories, sources)
    given = {document.document.name for document in documents}
    return (yield from read_clusters([file for file in files if str(file) not in given], sources))


def plan_cluster(cluster: Parsed[Cluster], broken: Collection[str], sources: Sources) -> Steps[PlannedCluster]:
    """The cluster's plan, checked by the operating systems of its switches."""
    plan = yield from resolve_with_inventories(cluster, broken, sources)
    options: SwitchOptions = {
        place: chosen for place, (chosen, _) in switch_options(cluster.document).items() if chosen is not None
    }
    options, unreadable = read_bases(plan, options, Path(cluster.document.name))
    yield from located(unreadable, cluster=cluster)
    yield from located(check_switches(plan, options), cluster=cluster)
    scheduler = scheduler_options(cluster.document)[0]
    if scheduler is not None:
        yield from located(SCHEDULERS[plan.scheduler].check_cluster(scheduler, plan), cluster=cluster)
    return PlannedCluster(plan, options, provider_options(cluster.document)[0], scheduler, cluster.document, cluster.spec)


def resolve_with_inventories(cluster: Parsed[Cluster], broken: Collection[str], sources: Sources) -> Steps[ClusterPlan]:
    """The plan of a cluster with its inventories; none with errors in either, or if the cluster is one of the `broken` documents."""
    name = cluster.document.name
    if not cluster.complete or name in broken or sources.read(Path(name)).has_errors:
        raise NoPlanError
    plan, problems = sources.once(name, lambda: collected(_resolve(cluster, sources)))
    yield from problems
    if plan is None:
        raise NoPlanError
    return plan


def _resolve(cluster: Parsed[Cluster], sources: Sources) -> Steps[ClusterPlan]:
    inventories = yield from read_inventories(cluster, sources)
    return resolve_cluster(cluster.spec, [inventory.spec for inventory in inventories])
