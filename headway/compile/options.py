"""Reads the options of what documents choose by kind: scheduler, provider, switches, trainer and data."""

from msgspec.structs import replace
from pydantic import BaseModel

from headway.infra.providers import PROVIDERS
from headway.jobspec.choice import choose
from headway.jobspec.document import Document, Path
from headway.jobspec.problem import Problem
from headway.jobspec.short import is_unclear
from headway.jobspec.spec.fields import field_names
from headway.jobspec.spec.job import DEFAULT_TRAINER
from headway.jobspec.suggest import joined_or
from headway.templates.kind import JobKind
from headway.templates.schedulers import SCHEDULERS
from headway.templates.switches import SWITCHES
from headway.templates.trainers import TRAINERS

# The options, None where they cannot be used, and what is wrong with them.
Options = tuple[BaseModel | None, list[Problem]]


def scheduler_options(cluster: Document) -> Options:
    """The options of the cluster's scheduler."""
    return choose(cluster, ("scheduler",), SCHEDULERS)


def provider_options(cluster: Document) -> Options:
    """The options of the cluster's provider."""
    return choose(cluster, ("provider",), PROVIDERS)


def switch_options(cluster: Document) -> dict[tuple[str, str], Options]:
    """The options of the cluster's switches, by fabric and kind of operating system."""
    fabrics = cluster.value(("fabrics",))
    found: dict[tuple[str, str], Options] = {}
    for index in range(len(fabrics) if isinstance(fabrics, list) else 0):
        systems = cluster.value(("fabrics", index, "switches", "os"))
        for number in range(len(systems) if isinstance(systems, list) else 0):
            path: Path = ("fabrics", index, "switches", "os", number)
            place = (str(cluster.value(("fabrics", index, "name"))), str(cluster.value((*path, "kind"))))
            found[place] = choose(cluster, path, SWITCHES)
    return found


def trainer_options(job: Document) -> Options:
    """The options of the job's trainer."""
    if is_unclear(job):
        return None, []
    return choose(job, ("trainer",), TRAINERS, _default_trainer(job))


def data_options(job: Document) -> Options:
    """The options of the job's data; its trainer defines the kinds."""
    trainer = _trainer(job)
    if trainer is None:
        return None, []
    options, problems = choose(job, ("data",), trainer.data)
    return options, [_of_another_trainer(each, job, trainer) for each in problems]


def _of_another_trainer(problem: Problem, job: Document, trainer: JobKind) -> Problem:
    """Return the problem of a kind of data that other trainers read with the hint to name one of them."""
    kind = job.value(("data", "kind"))
    others = [name for name, each in TRAINERS.items() if kind in each.data]
    if problem.code != "HW208" or not trainer.data or not others:
        return problem
    own = f"or write a kind of this trainer: {joined_or([f'`{each}`' for each in trainer.data])}"
    options = job.value(("data", "options"))
    fitting = [
        name
        for name, each in trainer.data.items()
        if isinstance(options, dict) and options.keys() <= field_names(each.options).keys()
    ]
    if ("trainer",) in job.values and options and len(fitting) == 1:
        # Its options show that the trainer is meant, and not the kind.
        other = joined_or([f"`{each}`" for each in others])
        hint = f"write `{fitting[0]}`, whose options these are; `{kind}` is a kind of the trainer {other}"
        return replace(problem, hint=hint, fix=fitting[0])
    if ("trainer",) in job.values:
        hint = f"it is a kind of the trainer {joined_or([f'`{each}`' for each in others])}: name that as `trainer.kind`, {own}"
    else:
        hint = f"add `trainer: {{kind: {others[0]}}}`, which reads it, {own}"
        if len(others) > 1:
            hint = f"add the trainer that reads it, for example `trainer: {{kind: {others[0]}}}`, {own}"
    return replace(problem, hint=hint, fix=None)


def fields_needed(job: Document) -> tuple[str, ...]:
    """The fields of a job that its trainer requires."""
    trainer = _trainer(job)
    return trainer.needs if trainer else ()


def _trainer(job: Document) -> JobKind | None:
    if is_unclear(job):
        return None
    kind = job.value(("trainer", "kind")) if ("trainer",) in job.values else _default_trainer(job)
    return TRAINERS.get(kind) if isinstance(kind, str) else None


def _default_trainer(job: Document) -> str | None:
    """Return the trainer of a job that names none: the only one that reads `data`."""
    return DEFAULT_TRAINER if job.value(("data",)) is not None else None
