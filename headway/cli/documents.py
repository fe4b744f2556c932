"""Files as checked documents and plans; every verb that takes documents reads them here."""

import sys
from dataclasses import dataclass
from pathlib import Path as FilePath
from typing import TypeGuard

from pydantic import BaseModel

from headway.cli.findings import Findings
from headway.cli.search import documents_around
from headway.infra.providers import PROVIDERS
from headway.jobspec.check.cluster import check_cluster
from headway.jobspec.check.job import check_job
from headway.jobspec.check.placement import check_placement
from headway.jobspec.choice import choose
from headway.jobspec.document import Document, Path
from headway.jobspec.load import load_file
from headway.jobspec.parse import AnyParsed, Parsed, kind_of, read
from headway.jobspec.plan import ClusterPlan, JobPlan
from headway.jobspec.problem import JOB, Problem
from headway.jobspec.resolve.cluster import resolve_cluster
from headway.jobspec.resolve.job import resolve_job
from headway.jobspec.spec.cluster import Cluster
from headway.jobspec.spec.job import DEFAULT_TRAINER, TrainingJob
from headway.jobspec.suggest import did_you_mean, listed, nearest
from headway.templates.cluster import SwitchOptions, check_switches
from headway.templates.kind import Files
from headway.templates.schedulers import SCHEDULERS
from headway.templates.switches import SWITCHES
from headway.templates.trainers import TRAINERS


@dataclass(frozen=True)
class PlannedJob:
    """A job's plan on one cluster, and what its renderers want besides."""

    plan: JobPlan
    cluster: ClusterPlan
    scheduler: BaseModel
    trainer: BaseModel

    def files(self) -> Files:
        """Every rendered file, below `<job>/<cluster>/`."""
        from headway.templates.job import render_job  # noqa: PLC0415 (only rendering needs jinja2)

        return render_job(self.plan, self.cluster, self.scheduler, self.trainer)


@dataclass(frozen=True)
class PlannedCluster:
    """A cluster's plan, and what its renderers and its provider want besides.

    `switches` are the options of the switches, by fabric and operating system; `provider` is None where the cluster has none.
    """

    plan: ClusterPlan
    switches: SwitchOptions
    provider: BaseModel | None

    def files(self) -> Files:
        """Every rendered file, below `<cluster>/`; none where neither switches nor hosts need one."""
        from headway.templates.cluster import render_cluster  # noqa: PLC0415 (only rendering needs jinja2)

        return render_cluster(self.plan, self.switches)


def load_job_plan(job_file: FilePath, cluster_file: FilePath | None = None) -> PlannedJob | None:
    """The job's plan on the cluster in `cluster_file`, else on the first that it names. Problems go to stderr; None on errors."""
    findings = Findings()
    job = read_job(job_file, findings)
    planned = [] if job is None else plan_job(job, cluster_file, findings, first_only=True)
    findings.print(sys.stderr)
    return None if findings.errors else planned[0]


def plan_job(
    job: Parsed[TrainingJob], cluster_file: FilePath | None, findings: Findings, first_only: bool = False
) -> list[PlannedJob]:
    """The job's plans on the cluster in `cluster_file`, else on each that it names (or the first); problems go to `findings`."""
    if cluster_file is not None:
        clusters = [read_cluster(cluster_file, findings)]
    else:
        clusters = [_find(job, index, findings) for index in _choices(job, first_only)]
    planned = [_plan_on(job, cluster, findings) for cluster in clusters if cluster is not None]
    return [plan for plan in planned if plan is not None]


def plan_cluster(cluster: Parsed[Cluster], findings: Findings) -> PlannedCluster | None:
    """The cluster's plan, where its document allows one; what the kinds have against it goes to `findings`."""
    if not cluster.complete or findings.errors_in(cluster.document.name):
        return None
    plan = resolve_cluster(cluster.spec)
    options = {place: chosen for place, (chosen, _) in _switches(cluster.document).items() if chosen is not None}
    findings.add(check_switches(plan, options), cluster=cluster.document.name)
    return PlannedCluster(plan, options, _provider(cluster.document)[0])


def read_document(path: FilePath, findings: Findings) -> AnyParsed | None:
    """The file's spec, checked against itself. None when its kind or version is unknown."""
    document, parsed, problems = read(path)
    findings.documents[document.name] = document
    findings.add(problems)
    if parsed is None:
        return None
    if is_cluster(parsed):
        findings.add(check_cluster(parsed), cluster=document.name)
        findings.add(_scheduler(document)[1])
        findings.add(_provider(document)[1])
        findings.add(problem for _, problems in _switches(document).values() for problem in problems)
    elif is_job(parsed):
        findings.add(check_job(parsed), job=document.name)
        findings.add(_trainer(document)[1] + _data(document)[1])
    return parsed


def read_job(path: FilePath, findings: Findings) -> Parsed[TrainingJob] | None:
    """The file's TrainingJob; another kind of document is a problem."""
    parsed = read_document(path, findings)
    if parsed is None or is_job(parsed):
        return parsed
    findings.add([_wrong_kind(parsed.document, "TrainingJob")])
    return None


def read_cluster(path: FilePath, findings: Findings) -> Parsed[Cluster] | None:
    """The file's Cluster; another kind of document is a problem."""
    parsed = read_document(path, findings)
    if parsed is None or is_cluster(parsed):
        return parsed
    findings.add([_wrong_kind(parsed.document, "Cluster")])
    return None


def is_cluster(parsed: AnyParsed) -> TypeGuard[Parsed[Cluster]]:
    """Whether the document is a Cluster."""
    return isinstance(parsed.spec, Cluster)


def is_job(parsed: AnyParsed) -> TypeGuard[Parsed[TrainingJob]]:
    """Whether the document is a TrainingJob."""
    return isinstance(parsed.spec, TrainingJob)


def _wrong_kind(document: Document, wanted: str) -> Problem:
    found = kind_of(document)
    return Problem("HW211", document.name, ("kind",), f"this is a {found}; a {wanted} is wanted here", "give another file")


_Options = tuple[BaseModel | None, list[Problem]]


def _scheduler(document: Document) -> _Options:
    return choose(document, ("scheduler",), SCHEDULERS)


def _provider(document: Document) -> _Options:
    return choose(document, ("provider",), PROVIDERS)


def _switches(document: Document) -> dict[tuple[str, str], _Options]:
    """The options of the switches, by fabric and kind of operating system."""
    fabrics = document.value(("fabrics",))
    found: dict[tuple[str, str], _Options] = {}
    for index in range(len(fabrics) if isinstance(fabrics, list) else 0):
        systems = document.value(("fabrics", index, "switches", "os"))
        for number in range(len(systems) if isinstance(systems, list) else 0):
            path: Path = ("fabrics", index, "switches", "os", number)
            place = (str(document.value(("fabrics", index, "name"))), str(document.value((*path, "kind"))))
            found[place] = choose(document, path, SWITCHES)
    return found


def _trainer(document: Document) -> _Options:
    return choose(document, ("trainer",), TRAINERS, DEFAULT_TRAINER)


def _data(document: Document) -> _Options:
    """The options of the data; which kinds there are is the trainer's business."""
    kind = document.value(("trainer", "kind")) if ("trainer",) in document.values else DEFAULT_TRAINER
    known = isinstance(kind, str) and kind in TRAINERS
    return choose(document, ("data",), TRAINERS[kind].data) if known else (None, [])


def _choices(job: Parsed[TrainingJob], first_only: bool) -> range:
    """Which of the job's clusters to plan on, by index."""
    return range(min(1, len(job.spec.cluster)) if first_only else len(job.spec.cluster)) if job.has(("cluster",)) else range(0)


def _find(job: Parsed[TrainingJob], index: int, findings: Findings) -> Parsed[Cluster] | None:
    """The Cluster that the job names: the nearest one of that name, in the job's folder or a parent of it."""
    name, document = job.spec.cluster[index], job.document
    seen: list[str] = []
    unreadable: list[str] = []
    for paths in documents_around(FilePath(document.name)):
        named = _cluster_names(paths)
        found = [path for path, found_name in named.items() if found_name == name]
        if len(found) == 1:
            return read_cluster(found[0], findings)
        if found:
            findings.add([_ambiguous(name, index, found)], document.name)
            return None
        seen += named.values()
        unreadable += [str(path) for path in paths if path not in named and load_file(path)[0].data is None]
    findings.add([_unknown(name, index, seen, unreadable)], document.name)
    return None


def _ambiguous(name: str, index: int, found: list[FilePath]) -> Problem:
    message = f"several Cluster documents are called `{name}`: {listed(map(str, found))}"
    return Problem("HW402", JOB, ("cluster", index), message, "rename all but one")


def _unknown(name: str, index: int, seen: list[str], unreadable: list[str]) -> Problem:
    message = f"no Cluster document called `{name}` in the job's folder or above it"
    hint = did_you_mean(name, seen, "clusters") if seen else "put its Cluster document beside the job"
    if unreadable and nearest(name, seen) is None:
        hint = f"{listed(unreadable)} cannot be read; `headway check` says why"
    return Problem("HW401", JOB, ("cluster", index), message, hint)


def _cluster_names(paths: list[FilePath]) -> dict[FilePath, str]:
    """The names of the Cluster documents among the files."""
    documents = {path: load_file(path)[0] for path in paths}
    return {path: str(found.value(("name",))) for path, found in documents.items() if kind_of(found) == "Cluster"}


def _plan_on(job: Parsed[TrainingJob], cluster: Parsed[Cluster], findings: Findings) -> PlannedJob | None:
    """The plan, where the documents allow one; what the kinds have against it goes to `findings`."""
    job_name, cluster_name = job.document.name, cluster.document.name
    misfits = findings.add(check_placement(job, cluster), job_name, cluster_name)
    scheduler, trainer, data = _scheduler(cluster.document)[0], _trainer(job.document)[0], _data(job.document)[0]
    if misfits or not job.complete or findings.errors_in(cluster_name) or scheduler is None or trainer is None or data is None:
        return None
    plan, cluster_plan = _resolve(job.spec, cluster.spec, data, trainer)
    findings.add(SCHEDULERS[plan.scheduler].check(scheduler, plan, cluster_plan), job_name, cluster_name)
    findings.add(TRAINERS[job.spec.trainer.kind].check(trainer, plan, cluster_plan), job_name, cluster_name)
    return PlannedJob(plan, cluster_plan, scheduler, trainer)


def _resolve(job: TrainingJob, cluster: Cluster, data: BaseModel, trainer: BaseModel) -> tuple[JobPlan, ClusterPlan]:
    cluster_plan = resolve_cluster(cluster)
    return resolve_job(job, cluster_plan, data, trainer), cluster_plan
