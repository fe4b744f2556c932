"""Why a generation ended: what was seen of it -> one cause with a fingerprint that is the same when the same happens again."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    CRASH = "crash"
    OUT_OF_MEMORY = "out of memory"
    HANG = "hang"
    USER_ERROR = "user error"
    NAN = "nan"
    PREEMPTION = "preemption"
    NODE_LOST = "node lost"
    STORAGE = "storage"


@dataclass(frozen=True)
class Ended:
    """A rank that ended. `asked`: we had told it to. `oom`: the kernel's out-of-memory killer ended it."""

    rank: int
    node: int
    code: int
    how: str
    asked: bool
    step: int
    oom: bool = False


@dataclass(frozen=True)
class Raised:
    """An exception as a worker reported it: `type` is the qualified name, `text` its first line, `at` the innermost frame of the user's
    code as `file:line function`, `sample` the first position of the batch that was computed, where the trainer knows it."""

    type: str
    text: str
    at: str | None = None
    step: int | None = None
    sample: int | None = None


@dataclass(frozen=True)
class Cause:
    """`fingerprint` has no ranks, addresses, sizes or times in it, so that two failures of one origin have the same."""

    kind: Kind
    fingerprint: str
    text: str
    rank: int | None
    node: int | None
    host: str | None
    step: int


def cause_of(exits: list[Ended], raised: Mapping[int, Raised], hosts: Mapping[int, str]) -> Cause:
    """The first cause among the ends of a generation's ranks: what was not asked for before what was, a signal before an exit code, an
    error of its own before one that says that a peer has gone. `hosts` is node -> host name."""
    raise NotImplementedError
