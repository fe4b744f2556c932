"""Defines what the folder of a kind exports: its options, its checks and its renderer."""

import importlib
from collections.abc import Callable, ItemsView, Iterator, Mapping, ValuesView
from pathlib import PurePosixPath
from typing import Any, TypeVar, cast

from msgspec import Struct, field
from pydantic import BaseModel

from headway.jobspec.document import Path
from headway.jobspec.plan import ClusterPlan, FabricPlan, JobPlan, MountPlan, SwitchPlan
from headway.jobspec.problem import Problem, Severity
from headway.templates.ports import PortName
from headway.templates.reading import Reading

Files = dict[PurePosixPath, str]

K = TypeVar("K")


class Kinds(Mapping[str, K]):
    """The kinds of a family, by their names. Each is imported when it is first used: a document needs few of them.

    The folder of a kind exports it under its name in upper case: `slurm/` has `SLURM`.
    """

    def __init__(self, family: str, names: tuple[str, ...]) -> None:
        self._family = family
        self._names = names
        self._imported: dict[str, K] = {}

    def __getitem__(self, name: str) -> K:
        if name not in self._imported:
            if name not in self._names:
                raise KeyError(name)
            module = importlib.import_module(f"{self._family}.{name}")
            self._imported[name] = cast("K", getattr(module, name.upper()))
        return self._imported[name]

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


class LazyFiles(Files):
    """Files of which some are made each time that they are read: those of thousands of switches do not fit into memory together."""

    def later(self, path: PurePosixPath, make: Callable[[], str]) -> None:
        """Add a file that `make` returns the text of."""
        super().__setitem__(path, make)  # type: ignore[assignment]

    def moved(self, folder: PurePosixPath) -> "LazyFiles":
        """Return the files below the folder, without making any."""
        return LazyFiles({folder / path: text for path, text in super().items()})

    def __getitem__(self, path: PurePosixPath) -> str:
        found: object = super().__getitem__(path)
        return found() if callable(found) else super().__getitem__(path)

    def items(self) -> ItemsView[PurePosixPath, str]:  # type: ignore[override]
        return ItemsView(self)

    def values(self) -> ValuesView[str]:  # type: ignore[override]
        return ValuesView(self)


# Fields of a job with a single supported value for a trainer, and what it does instead of all others.
Limited = Mapping[tuple[str, ...], tuple[tuple[Any, ...], str]]


class DataKind(Struct, frozen=True):
    """A source of tokens: the runner gets its options unchanged."""

    options: type[BaseModel]


def as_they_are(options: BaseModel, plan: JobPlan) -> Mapping[str, Any]:
    """Return the options unchanged, as a trainer's settings."""
    return options.model_dump(mode="json")


def no_files(options: BaseModel, plan: JobPlan) -> Mapping[Path, str]:
    """Return no files: the trainer reads none of the submitter's."""
    return {}


def no_limits(options: BaseModel) -> Limited:
    """Return no limits: no option restricts this trainer."""
    return {}


def no_problems(options: BaseModel) -> Iterator[Problem]:
    """Return no problems: options of the right form are right."""
    return iter(())


def no_cluster_files(options: BaseModel, cluster: ClusterPlan) -> Files:
    """Return no files: nothing in the scheduler's own configuration follows from the cluster's plan."""
    return {}


def no_cluster_problems(options: BaseModel, cluster: ClusterPlan) -> Iterator[Problem]:
    """Return no problems: options of the right form fit every cluster."""
    return iter(())


def no_container(options: BaseModel, plan: JobPlan) -> tuple[MountPlan, ...] | None:
    """Return that the ranks see all directories of their nodes."""
    return None


class JobKind(Struct, frozen=True):
    """A scheduler or a trainer. `check`, `check_options`, `render`, `settings` and `files` get options that `options` has validated;
    `check_options` needs no plan, and so finds the mistakes of a document by itself.

    Problems name their document by its part (`problem.JOB`). Only for a trainer: `data` are the kinds of data that it
    reads, `needs` the fields of a job that it requires, `only` those with a single supported value, `limits` those that
    its options limit so; `settings`, for a plan without errors, is its part of run.json; `files` are files that it
    starts from, by their path in the spec, with paths that count from the submission directory, and `arguments` those
    that it passes on; `runs_as` is the trainer of run.json that starts it, if that is another; it removes no checkpoint if it
    `keeps_all`. Only for a scheduler:
    `mounted` are the directories of the job's containers besides the run's own; None without containers. `render_cluster` returns
    files for the scheduler itself, and `check_cluster` the problems of its options with the cluster.
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
    check_options: Callable[[Any], Iterator[Problem]] = no_problems
    arguments: Callable[[Any, JobPlan], Mapping[Path, str]] = no_files
    mounted: Callable[[Any, JobPlan], tuple[MountPlan, ...] | None] = no_container
    runs_as: str | None = None
    keeps_all: bool = False
    render_cluster: Callable[[Any, ClusterPlan], Files] = no_cluster_files
    check_cluster: Callable[[Any, ClusterPlan], Iterator[Problem]] = no_cluster_problems


def no_text(text: str) -> Any:
    """Raise ValueError: no file of the site's is merged into such files."""
    raise ValueError("line 1: there is nothing to merge it into")


def no_switch_files(options: BaseModel, switch: SwitchPlan, cluster: ClusterPlan) -> Files:
    """Return no files: something else manages all switches of the fabric together."""
    return {}


def no_fabric_files(options: BaseModel, fabric: FabricPlan, cluster: ClusterPlan) -> Files:
    """Return no files: every switch has its own."""
    return {}


def of_plan(key: str) -> Severity | None:
    """Return that a difference in any setting is an error."""
    return Severity.ERROR


class SwitchKind(Struct, frozen=True):
    """An operating system of switches, or what manages them. `render` returns one switch's files, by their names in its folder.

    `title` is its name in messages. `file` is the file that `read` understands, whose name no other kind has; `read` raises ValueError,
    with the line, on text of another kind. `host_name` is the setting in it that names the switch. `others` are further files; `readers`
    read back those that no other kind reads, by their names.

    Every system states the following, which `templates/switches/limits.py` checks: `host_name_length` and `most_paths` are its bounds, None
    without one; `balancing` are the schemes that its files have, None if it has all of its transports'; `vendor` makes the models that it
    runs on, and `port_name` names their ports; without them it takes every model, and names ports as the plan does. `running` is where a
    switch has the file that `base` may be, and `read_base` returns what the renderer merges of its text. `render_fabric` returns files of
    the fabric as a whole, `transports` are those of the fabrics whose switches it is for. `judge` returns how much it matters that
    a setting is not as the plan has it, by its key: nothing where the site decides it (management, users, time, logging). `loading` is the
    vendor's own way to load the files; empty where `headway push` does it.
    """

    title: str
    options: type[BaseModel]
    file: str
    host_name: str
    check: Callable[[Any, SwitchPlan, ClusterPlan], Iterator[Problem]]
    render: Callable[[Any, SwitchPlan, ClusterPlan], Files]
    read: Callable[[str], Reading]
    others: tuple[str, ...] = ()
    host_name_length: int | None = None
    most_paths: int | None = None
    balancing: tuple[str, ...] | None = ("ecmp",)
    vendor: str | None = None
    port_name: PortName | None = None
    running: str = ""
    read_base: Callable[[str], Any] = no_text
    render_fabric: Callable[[Any, FabricPlan, ClusterPlan], Files] = no_fabric_files
    transports: tuple[str, ...] = ("roce",)
    judge: Callable[[str], Severity | None] = of_plan
    loading: str = ""
    readers: Mapping[str, Callable[[str], Reading]] = field(default_factory=dict)
