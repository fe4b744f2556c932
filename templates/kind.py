"""Defines what the folder of a kind exports: its options, its checks and its renderer."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

from pydantic import BaseModel

from headway.jobspec.document import Path
from headway.jobspec.plan import ClusterPlan, JobPlan, SwitchPlan
from headway.jobspec.problem import Problem
from headway.templates.reading import Reading

Files = dict[PurePosixPath, str]

# Fields of a job that a trainer takes one way only: the values that say so, and what it does instead of all others.
Limited = Mapping[tuple[str, ...], tuple[tuple[Any, ...], str]]


@dataclass(frozen=True)
class DataKind:
    """A source of tokens: its options are handed to the runner as they are."""

    options: type[BaseModel]


def as_they_are(options: BaseModel, plan: JobPlan) -> Mapping[str, Any]:
    """Settings of a trainer that takes its options as the spec has them."""
    return options.model_dump(mode="json")


def no_files(options: BaseModel, plan: JobPlan) -> Mapping[Path, str]:
    """Of a trainer that reads nothing of the submitter's."""
    return {}


def no_limits(options: BaseModel) -> Limited:
    """Of a trainer that can do with any options what it can do at all."""
    return {}


@dataclass(frozen=True)
class JobKind:
    """A scheduler or a trainer. `check`, `render`, `settings` and `files` get options that `options` has validated.

    Problems name their document by its part (`problem.JOB`). Of a trainer only: `data` are the kinds of data that it reads, `needs`
    the fields of a job that it cannot do without, `only` those that it takes one way, `limits` those that its options let it take one
    way; `settings`, for a plan without errors, is what run.json tells it; `files` are files that it starts from, by where the spec names
    them, with paths that count from where the job is submitted.
    """

    options: type[BaseModel]
    check: Callable[[Any, JobPlan, ClusterPlan], Iterator[Problem]]
    render: Callable[[Any, JobPlan, ClusterPlan], Files]
    data: Mapping[str, DataKind] = field(default_factory=dict)
    needs: tuple[str, ...] = ()
    settings: Callable[[Any, JobPlan], Mapping[str, Any]] = as_they_are
    files: Callable[[Any, JobPlan], Mapping[Path, str]] = no_files
    only: Limited = field(default_factory=dict)
    limits: Callable[[Any], Limited] = no_limits


@dataclass(frozen=True)
class SwitchKind:
    """An operating system of switches. `render` gives one switch's files, by their names in its folder.

    `file` is the one that `read` understands; `read` raises ValueError, with the line, on text that is none of its kind.
    """

    options: type[BaseModel]
    file: str
    check: Callable[[Any, SwitchPlan, ClusterPlan], Iterator[Problem]]
    render: Callable[[Any, SwitchPlan, ClusterPlan], Files]
    read: Callable[[str], Reading]
