"""Reads files into checked documents and plans, for every verb that takes documents."""

import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path as FilePath
from typing import TypeGuard

from pydantic import BaseModel

from headway.cli.findings import Findings
from headway.cli.inputs import check_inputs
from headway.cli.inventories import find_clusters, read_inventories
from headway.infra.providers import PROVIDERS
from headway.jobspec.auto import Decisions, with_values
from headway.jobspec.check.cluster import check_cluster
from headway.jobspec.check.environment import check_environment
from headway.jobspec.check.inventory import check_inventory
from headway.jobspec.check.job import check_job
from headway.jobspec.check.layout import sizes_of
from headway.jobspec.check.needs import check_needs
from headway.jobspec.check.placement import check_placement
from headway.jobspec.check.secrets import check_secrets
from headway.jobspec.choice import choose
from headway.jobspec.document import Document, Path
from headway.jobspec.parse import AnyParsed, Parsed, is_partial, kind_of, parse_job, read, said_only
from headway.jobspec.plan import ClusterPlan, JobPlan
from headway.jobspec.problem import JOB, Problem, capped
from headway.jobspec.resolve.cluster import resolve_cluster
from headway.jobspec.resolve.job import resolve_job
from headway.jobspec.resolve.trainer import with_settings
from headway.jobspec.spec.cluster import Cluster
from headway.jobspec.spec.inventory import Inventory
from headway.jobspec.spec.job import DEFAULT_TRAINER, TrainingJob
from headway.jobspec.suggest import did_you_mean, listed, nearest
from headway.templates.cluster import SwitchOptions, check_switches
from headway.templates.kind import Files, JobKind
from headway.templates.schedulers import SCHEDULERS
from headway.templates.switches import SWITCHES
from headway.templates.trainers import TRAINERS


@dataclass(frozen=True)
class PlannedJob:
    """A job's plan on one cluster, and what its renderers want besides.

    `job` is the document that was planned: what it left open (`auto`) is decided there, for the reasons in `decisions`.
    """

    plan: JobPlan
    cluster: ClusterPlan
    scheduler: BaseModel
    trainer: BaseModel
    job: Parsed[TrainingJob]
    decisions: Decisions

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
    plan = _resolve_cluster(cluster, findings)
    if plan is None:
        return None
    options = {place: chosen for place, (chosen, _) in _switches(cluster.document).items() if chosen is not None}
    findings.add(check_switches(plan, options), cluster=cluster.document.name)
    return PlannedCluster(plan, options, _provider(cluster.document)[0])


def read_document(path: FilePath, findings: Findings) -> AnyParsed | None:
    """The file's spec, checked against itself. None when its kind or version is unknown, or a part of its bases is missing."""
    name = str(path)
    if name not in findings.parsed:
        findings.parsed[name] = _read(path, findings)
    return findings.parsed[name]


def read_job(path: FilePath, findings: Findings) -> Parsed[TrainingJob] | None:
    """The file's TrainingJob; another kind of document, or a base for others, is a problem."""
    parsed = read_document(path, findings)
    if parsed is None or refuse_partial(parsed, findings):
        return None
    if is_job(parsed):
        return parsed
    findings.add([wrong_kind(parsed.document, "TrainingJob")])
    return None


def read_cluster(path: FilePath, findings: Findings) -> Parsed[Cluster] | None:
    """The file's Cluster; another kind of document, or a base for others, is a problem."""
    parsed = read_document(path, findings)
    if parsed is None or refuse_partial(parsed, findings):
        return None
    if is_cluster(parsed):
        return parsed
    findings.add([wrong_kind(parsed.document, "Cluster")])
    return None


def refuse_partial(parsed: AnyParsed, findings: Findings) -> bool:
    """Whether the document is only a base for others, which is a problem where it is to be used itself."""
    if not is_partial(parsed.document):
        return False
    message = "this document is partial: it is meant to be extended and has no plan"
    findings.add([Problem("HW211", parsed.document.name, ("partial",), message, "use a document that extends it")])
    return True


def _read(path: FilePath, findings: Findings) -> AnyParsed | None:
    document, parsed, problems = read(path, findings.load)
    findings.documents[document.name] = document
    findings.add(problems)
    findings.add(capped(check_secrets(document), document.name))
    if parsed is not None:
        judged = _judged(parsed)
        findings.add(capped(said_only(judged) if is_partial(document) else judged, document.name), document.name, document.name)
    return parsed


def _judged(parsed: AnyParsed) -> Iterator[Problem]:
    """What is wrong with the document by itself, as rules over several fields and its kinds can tell."""
    document = parsed.document
    if is_cluster(parsed):
        yield from check_cluster(parsed)
        yield from _scheduler(document)[1] + _provider(document)[1]
        for _, problems in _switches(document).values():
            yield from problems
    elif is_job(parsed):
        yield from check_job(parsed)
        yield from _trainer(document)[1] + _data(document)[1]
        yield from check_needs(parsed, _needs(document))
    elif is_inventory(parsed):
        yield from check_inventory(parsed)


def is_cluster(parsed: AnyParsed) -> TypeGuard[Parsed[Cluster]]:
    """Whether the document is a Cluster."""
    return isinstance(parsed.spec, Cluster)


def is_job(parsed: AnyParsed) -> TypeGuard[Parsed[TrainingJob]]:
    """Whether the document is a TrainingJob."""
    return isinstance(parsed.spec, TrainingJob)


def is_inventory(parsed: AnyParsed) -> TypeGuard[Parsed[Inventory]]:
    """Whether the document is an Inventory."""
    return isinstance(parsed.spec, Inventory)


def clusters_of(documents: list[AnyParsed], findings: Findings) -> list[Parsed[Cluster]]:
    """The clusters that inventories among the documents name, without those that are among the documents themselves."""
    inventories = [document for document in documents if is_inventory(document) and document.has(("cluster",))]
    names = {document.document.name for document in documents}
    files = [file for file in find_clusters(inventories, findings) if str(file) not in names]
    clusters = [read_cluster(file, findings) for file in files]
    return [cluster for cluster in clusters if cluster is not None]


def wrong_kind(document: Document, wanted: str) -> Problem:
    """That a document of known kind is not of the kind `wanted`."""
    found = {"Inventory": "an Inventory"}.get(kind := str(kind_of(document)), f"a {kind}")
    return Problem("HW211", document.name, ("kind",), f"this is {found}; expected a {wanted}", "use another file")


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
    trainer = _trainer_kind(document)
    return choose(document, ("data",), trainer.data) if trainer else (None, [])


def _needs(document: Document) -> tuple[str, ...]:
    """The fields that the job's trainer cannot do without."""
    trainer = _trainer_kind(document)
    return trainer.needs if trainer else ()


def _trainer_kind(document: Document) -> JobKind | None:
    kind = document.value(("trainer", "kind")) if ("trainer",) in document.values else DEFAULT_TRAINER
    return TRAINERS.get(kind) if isinstance(kind, str) else None


def _choices(job: Parsed[TrainingJob], first_only: bool) -> range:
    """Which of the job's clusters to plan on, by index."""
    return range(min(1, len(job.spec.cluster)) if first_only else len(job.spec.cluster)) if job.has(("cluster",)) else range(0)


def _find(job: Parsed[TrainingJob], index: int, findings: Findings) -> Parsed[Cluster] | None:
    """The Cluster that the job names: the nearest one of that name, in the job's folder or a parent of it."""
    name, document = job.spec.cluster[index], job.document
    seen: list[str] = []
    unreadable: list[FilePath] = []
    for clusters in findings.sources.clusters_around(FilePath(document.name)):
        found = clusters.named.get(name, [])
        if len(found) == 1:
            return read_cluster(found[0], findings)
        if found:
            findings.add([_ambiguous(name, index, found)], document.name)
            return None
        seen += clusters.named
        unreadable += clusters.unreadable
    for path in unreadable:
        findings.add(findings.load(path)[1])
    findings.add([_unknown(name, index, seen, list(map(str, unreadable)))], document.name)
    return None


def _ambiguous(name: str, index: int, found: list[FilePath]) -> Problem:
    message = f"several Cluster documents are called `{name}`: {listed(map(str, found))}"
    return Problem("HW402", JOB, ("cluster", index), message, "rename all but one")


def _unknown(name: str, index: int, seen: list[str], unreadable: list[str]) -> Problem:
    message = f"no Cluster document called `{name}` in the job's folder or above it"
    hint = did_you_mean(name, seen, "clusters") if seen else "put its Cluster document beside the job"
    if unreadable and nearest(name, seen) is None:
        hint = f"{listed(unreadable)} cannot be read; run `headway check` to see why"
    return Problem("HW401", JOB, ("cluster", index), message, hint)


@dataclass(frozen=True)
class _Kinds:
    """The options of what a job and its cluster choose."""

    scheduler: BaseModel
    trainer: BaseModel
    data: BaseModel | None


def _kinds(job: Parsed[TrainingJob], cluster: Parsed[Cluster]) -> _Kinds | None:
    """None where one of them cannot be used."""
    scheduler, trainer, data = _scheduler(cluster.document)[0], _trainer(job.document)[0], _data(job.document)[0]
    if scheduler is None or trainer is None or (data is None and job.spec.data is not None):
        return None
    return _Kinds(scheduler, trainer, data)


def _plan_on(job: Parsed[TrainingJob], cluster: Parsed[Cluster], findings: Findings) -> PlannedJob | None:
    """The plan, where the documents allow one; what the kinds have against it goes to `findings`."""
    misfits = findings.add(check_placement(job, cluster), job.document.name, cluster.document.name)
    kinds = _kinds(job, cluster) if job.complete or job.undecided else None
    if kinds is None or _has_errors(misfits) or findings.errors_in(cluster.document.name):
        return None
    plan = _resolve_cluster(cluster, findings)
    if plan is None:
        return None
    if job.complete:
        return _plan(job, {}, cluster, plan, kinds, findings)
    decisions = _decide(job, plan, kinds.trainer, findings)
    decided = None if decisions is None else _decided(job, decisions, cluster, findings)
    return None if decisions is None or decided is None else _plan(decided, decisions, cluster, plan, kinds, findings)


def _decide(job: Parsed[TrainingJob], cluster: ClusterPlan, trainer: BaseModel, findings: Findings) -> Decisions | None:
    """A value for each `auto`; None where one cannot be decided, and where the job has errors that its rules tell."""
    if _has_errors(_judged(job)):
        return None
    from headway.jobspec.estimate.decide import decide  # noqa: PLC0415 (most jobs leave nothing open)

    kind = TRAINERS[job.spec.trainer.kind]
    limits = {path: values for path, (values, _) in {**kind.only, **kind.limits(trainer)}.items()}
    decisions, problems = decide(job, cluster, limits)
    return None if _has_errors(findings.add(problems, job.document.name)) else decisions


def _decided(
    job: Parsed[TrainingJob], decisions: Decisions, cluster: Parsed[Cluster], findings: Findings
) -> Parsed[TrainingJob] | None:
    """The job with these values, checked like any other; None where it has errors then."""
    values = {path: decision.value for path, decision in decisions.items()}
    parsed, problems = parse_job(with_values(job.document, values))
    judged = findings.add(
        [*problems, *_judged(parsed), *check_placement(parsed, cluster)], job.document.name, cluster.document.name
    )
    return None if _has_errors(judged) else parsed


def _plan(
    job: Parsed[TrainingJob],
    decisions: Decisions,
    cluster: Parsed[Cluster],
    cluster_plan: ClusterPlan,
    kinds: _Kinds,
    findings: Findings,
) -> PlannedJob | None:
    """The plan of a whole job that fits its cluster; None where the trainer cannot carry it out."""
    job_name, cluster_name = job.document.name, cluster.document.name
    plan = resolve_job(job.spec, cluster_plan, sizes_of(job), kinds.data)
    findings.add(check_environment(plan), job_name)
    findings.add(SCHEDULERS[plan.scheduler].check(kinds.scheduler, plan, cluster_plan), job_name, cluster_name)
    kind = TRAINERS[job.spec.trainer.kind]
    if _has_errors(findings.add(kind.check(kinds.trainer, plan, cluster_plan), job_name, cluster_name)):
        return None
    if plan.model is not None and plan.gpus_per_slot:
        findings.add(_check_memory(plan, cluster_plan), job_name)
    if plan.run.checkpoint.tiers:
        findings.add(_check_captures(plan, cluster_plan), job_name)
    findings.add(check_inputs(kind.files(kinds.trainer, plan), plan, FilePath(job_name)), job_name)
    settings = kind.settings(kinds.trainer, plan)
    return PlannedJob(with_settings(plan, settings), cluster_plan, kinds.scheduler, kinds.trainer, job, decisions)


def _check_memory(plan: JobPlan, cluster: ClusterPlan) -> Iterator[Problem]:
    from headway.jobspec.check.memory import check_memory  # noqa: PLC0415 (only a job that names its model has a ledger)

    return check_memory(plan, cluster)


def _check_captures(plan: JobPlan, cluster: ClusterPlan) -> Iterator[Problem]:
    from headway.jobspec.check.captures import check_captures  # noqa: PLC0415 (only a job that names its model has a size)

    return check_captures(plan, cluster)


def _has_errors(problems: Iterable[Problem]) -> bool:
    return any(problem.is_error for problem in problems)


def _resolve_cluster(cluster: Parsed[Cluster], findings: Findings) -> ClusterPlan | None:
    """The plan of a cluster without errors, with its inventories, where these allow one."""
    name = cluster.document.name
    if name not in findings.plans:
        inventories = read_inventories(cluster, read_document, findings)
        findings.plans[name] = None if inventories is None else resolve_cluster(cluster.spec, inventories)
    return findings.plans[name]
