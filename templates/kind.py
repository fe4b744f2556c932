"""What the folder of a kind exports: its options, its checks and its renderer."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

from pydantic import BaseModel

from headway.jobspec.plan import ClusterPlan, JobPlan, SwitchPlan
from headway.jobspec.problem import Problem
from headway.templates.reading import Reading

Files = dict[PurePosixPath, str]


@dataclass(frozen=True)
class DataKind:
    """A source of tokens: its options are handed to the runner as they are."""

    options: type[BaseModel]


@dataclass(frozen=True)
class JobKind:
    """A scheduler or a trainer. `data` are the kinds of data that a trainer reads; a scheduler has none.

    `check` and `render` get options that `options` has validated. Problems name their document by its part (`problem.JOB`).
    """

    options: type[BaseModel]
    check: Callable[[Any, JobPlan, ClusterPlan], Iterator[Problem]]
    render: Callable[[Any, JobPlan, ClusterPlan], Files]
    data: Mapping[str, DataKind] = field(default_factory=dict)


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
