"""Rejects, at its line, each part of the language that is not implemented yet, so that a run is what was reviewed."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from headway.jobspec.document import Path
from headway.jobspec.parse import Parsed
from headway.jobspec.problem import JOB, Problem
from headway.jobspec.spec.job import TrainingJob


@dataclass(frozen=True)
class Pending:
    """A field that is not implemented yet, by its path without indices, with its fields; `values` are the refused
    values, empty for all of them."""

    field: tuple[str, ...]
    values: str
    yet: str


@dataclass(frozen=True)
class _Pending:
    """`find` gives the places where a job asks for it, each with its subject; `field` and `values` are those of `Pending`."""

    field: tuple[str, ...]
    values: str
    find: Callable[[TrainingJob], Iterator[tuple[Path, str]]]
    yet: str
    hint: str


def check_pending(job: Parsed[TrainingJob]) -> Iterator[Problem]:
    """Yield a problem for each place where the job requests something that is not implemented yet."""
    for row in _TABLE:
        if job.has((row.field[0],)):
            for path, subject in row.find(job.spec):
                message = f"{subject} is not implemented yet: {row.yet}"
                yield Problem("HW214", JOB, path, message, row.hint)


def _commit(job: TrainingJob) -> Iterator[tuple[Path, str]]:
    if job.code.commit != "HEAD":
        yield ("code", "commit"), "a pinned commit"


_TABLE = (
    _Pending(
        ("code", "commit"),
        "all but `HEAD`",
        _commit,
        "a run uses the code in the directory where the job is submitted",
        "check it out there and leave `commit` out",
    ),
)

# By kind of document; those of clusters are found by `check_cluster` and `check_fabrics`.
PENDING: Mapping[str, tuple[Pending, ...]] = {
    "TrainingJob": tuple(Pending(row.field, row.values, row.yet) for row in _TABLE),
    "Cluster": (
        Pending(("health",), "", "nodes are neither checked nor excluded"),
        Pending(("fabrics", "shape"), "with `switches`, all but `rail-optimized`", "their files have that shape"),
        Pending(("fabrics", "pods"), "with `switches`, more than 1", "their files have one pod"),
        Pending(("fabrics", "balancing"), "with `switches`, all but `ecmp`", "their files have `ecmp`"),
        Pending(
            ("fabrics", "congestion"),
            "with `switches`, `trim-lossy` and `nic-managed`",
            "their files have `pfc`, `pfc+ecn` and `ecn-lossy`",
        ),
    ),
}

# Fields that documents, plans and inventories keep for people, and that change no rendered file and no estimate.
RECORDED: Mapping[str, Mapping[tuple[str, ...], str]] = {
    "Cluster": {("fabrics", "oversubscription", "spine"): "estimates and files do not depend on it"},
    "Inventory": {
        ("nodes", "serial"): "it identifies the machine, and no two devices may have the same",
        ("switches", "serial"): "it identifies the machine, and no two devices may have the same",
    },
}
