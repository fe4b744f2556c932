"""Plans a job on one cluster: whether it fits, a value for each `auto`, and what scheduler, trainer and memory allow."""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct
from pydantic import BaseModel

from headway.compile.corpora import check_corpora
from headway.compile.document import check_spec
from headway.compile.inputs import check_inputs
from headway.compile.options import data_options, scheduler_options, trainer_options
from headway.compile.problems import NoPlanError, Steps, located, passed
from headway.jobspec.auto import Decisions, with_values
from headway.jobspec.check.environment import check_environment
from headway.jobspec.check.placement import check_placement
from headway.jobspec.document import Document, dotted
from headway.jobspec.parse import Parsed, parse_job
from headway.jobspec.plan import ClusterPlan, JobPlan
from headway.jobspec.problem import JOB, Problem, Severity
from headway.jobspec.spec.cluster import Cluster
from headway.jobspec.spec.job import DEFAULT_TRAINER, TrainingJob
from headway.templates.kind import Files, Limited
from headway.templates.schedulers import SCHEDULERS
from headway.templates.schedulers.containers import check_arguments
from headway.templates.trainers import TRAINERS


class PlannedJob(Struct, frozen=True):
    """A job's plan on one cluster, and what its renderers need in addition.

    `job` is the document that was planned: each `auto` has its value there, for the reasons in `decisions`.
    """

    plan: JobPlan
    cluster: ClusterPlan
    scheduler: BaseModel
    trainer: BaseModel
    job: Parsed[TrainingJob]
    decisions: Decisions
    cluster_document: Document

    @property
    def document(self) -> Document:
        """The document of which this is the plan."""
        return self.job.document

    def files(self) -> Files:
        """Every rendered file, below `<job>/<cluster>/`."""
        from headway.templates.job import render_job  # noqa: PLC0415 (only rendering needs jinja2)

        return render_job(self.plan, self.cluster, self.scheduler, self.trainer)


class JobOptions(Struct, frozen=True):
    """The options of the kinds that a job and its cluster choose."""

    scheduler: BaseModel
    trainer: BaseModel
    data: BaseModel | None


def check_fit(job: Parsed[TrainingJob], cluster: Parsed[Cluster]) -> Steps[JobOptions]:
    """The options of a job that fits its cluster, and whose document has no errors but perhaps some of values that are `auto`."""
    yield from passed(located(_fitting(job, cluster), job, cluster))
    if not (job.complete or job.undecided):
        raise NoPlanError
    scheduler, trainer = scheduler_options(cluster.document)[0], trainer_options(job.document)[0]
    data = data_options(job.document)[0]
    if scheduler is None or trainer is None or (data is None and job.spec.data is not None):
        raise NoPlanError
    return JobOptions(scheduler, trainer, data)


def _fitting(job: Parsed[TrainingJob], cluster: Parsed[Cluster]) -> Iterator[Problem]:
    """Check whether the job fits; an axis that its trainer does not have is the problem, not what it makes of the others."""
    found = list(check_placement(job, cluster))
    refused = list(_refused_axes(job)) if any(problem.code == "HW301" for problem in found) else []
    for problem in found:
        if not refused or problem.path[0] not in ("layout", "batch"):
            yield problem
    yield from refused


def _refused_axes(job: Parsed[TrainingJob]) -> Iterator[Problem]:
    """Report each axis of the layout that the job's trainer does not have."""
    kind = TRAINERS.get(job.spec.trainer.kind) if job.has(("layout", "trainer")) else None
    for path, (allowed, why) in (kind.only if kind is not None else {}).items():
        degree = getattr(job.spec.layout, path[-1], None) if path[:1] == ("layout",) and len(path) == 2 else None
        if allowed == (1,) and isinstance(degree, int) and degree > 1:
            message = f"the trainer `{job.spec.trainer.kind}` {why}"
            yield Problem("HW306", JOB, path, message, f"set `{path[-1]}: 1`, or leave it out")


def decide_auto(
    job: Parsed[TrainingJob], cluster: Parsed[Cluster], plan: ClusterPlan, trainer: BaseModel
) -> Steps[tuple[Parsed[TrainingJob], Decisions]]:
    """The job with a value for each `auto`, checked like any other, and the reasons for these values."""
    if job.complete:
        return job, {}
    if any(problem.is_error for problem in located(check_spec(job), job)):
        raise NoPlanError
    from headway.planner.decide import decide  # noqa: PLC0415 (most jobs leave nothing open)

    kind = TRAINERS[job.spec.trainer.kind]
    limits = {path: values for path, (values, _) in {**kind.only, **kind.limits(trainer)}.items()}
    yield from located(_without_effect(job, kind.limits(trainer)), job)
    decisions, undecided = decide(job, plan, limits)
    yield from passed(located(undecided, job))
    decided, invalid = parse_job(with_values(job.document, {path: each.value for path, each in decisions.items()}))
    problems: Iterable[Problem] = [*invalid, *check_spec(decided), *check_placement(decided, cluster)]
    yield from passed(located(problems, job, cluster))
    return decided, decisions


def _without_effect(job: Parsed[TrainingJob], limits: Limited) -> Iterator[Problem]:
    """Warn of each `auto` whose value no argument passes to the script: it is decided as if it were left out."""
    for path in job.undecided:
        name = dotted(path)
        if path in limits:
            message = f"`{name}: auto` has no effect: no argument passes it to the script"
            hint = f"add an argument with its value, for example `--{path[-1]}={{{name}}}`, or leave it out"
            yield Problem("HW313", JOB, path, message, hint, Severity.WARNING)


def check_plan(
    plan: JobPlan, job: Parsed[TrainingJob], cluster: Parsed[Cluster], cluster_plan: ClusterPlan, options: JobOptions
) -> Steps[Mapping[str, Any]]:
    """Yield the problems of a plan: trainer, variables, scheduler, memory and files."""
    trainer = TRAINERS[job.spec.trainer.kind]
    yield from located(check_environment(plan, None if cluster_plan.scale_out is None else cluster_plan.scale_out.transport), job)
    yield from located(SCHEDULERS[plan.scheduler].check(options.scheduler, plan, cluster_plan), job, cluster)
    yield from passed(located(trainer.check(options.trainer, plan, cluster_plan), job, cluster))
    if job.spec.model is not None and job.spec.model.preset is not None and plan.model is None:
        # The catalogue does not have it, which is a problem of its own: no trainer can be set up for it.
        raise NoPlanError
    limits = {**trainer.only, **trainer.limits(options.trainer)}
    yield from located(_check_estimates(plan, cluster_plan, limits, keeps_all=trainer.keeps_all), job, cluster)
    yield from located(check_inputs(trainer.files(options.trainer, plan), plan, Path(job.document.name)), job)
    yield from located(check_corpora(plan, Path(job.document.name)), job)
    settings = trainer.settings(options.trainer, plan)
    mounted = SCHEDULERS[plan.scheduler].mounted(options.scheduler, plan)
    if mounted is not None:
        yield from located(check_arguments(trainer.arguments(options.trainer, plan), plan, cluster_plan, mounted), job)
    return settings


def _check_estimates(plan: JobPlan, cluster: ClusterPlan, limits: Limited, *, keeps_all: bool) -> Iterator[Problem]:
    """Memory of GPUs and hosts, the framework's layout, checkpoints, the length of the run. The ledger is only imported for a job that
    has one. `limits` are what the trainer's options allow; it removes no checkpoint if it `keeps_all`."""
    if plan.model is not None and plan.gpus_per_slot:
        from headway.planner.check.length import check_length  # noqa: PLC0415
        from headway.planner.check.memory import check_host_memory, check_memory  # noqa: PLC0415

        too_large = list(check_memory(plan, cluster, {path: allowed for path, (allowed, _) in limits.items()}))
        # A step that does not fit has no time.
        yield from too_large or check_length(plan, cluster)
        yield from check_host_memory(plan, cluster, [group.name for group in cluster.groups].index(plan.group))
    if plan.spec["trainer"]["kind"] != DEFAULT_TRAINER:
        from headway.planner.check.framework import check_framework  # noqa: PLC0415
        from headway.planner.from_plan import states_framework  # noqa: PLC0415

        if states_framework(plan):
            yield from check_framework(plan)
    if plan.run.checkpoint.tiers:
        from headway.planner.check.checkpoints import check_checkpoints  # noqa: PLC0415

        yield from check_checkpoints(plan, cluster, keeps_all=keeps_all)
        from headway.planner.check.captures import check_captures  # noqa: PLC0415

        yield from check_captures(plan, cluster)
