"""Who has stopped: heartbeats and probes of all ranks in, suspicion and culprits out; no I/O and no clock of its own.

A rank that gives no sign of life is suspected early, which costs nothing but a probe of its process. It is named as hung only when what
the probes show speaks for it (`Hang.why`), or when its section's timeout has passed.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from headway.runner.contract import Timeout


@dataclass(frozen=True)
class RankBeat:
    """What a rank's heartbeat page shows. `age_s` is the time since its last sign of life, null before the first; `own_s` the time that it
    has spent outside of waits for others since it started, null where that is not measured."""

    step: int
    section: str
    pulse: int
    age_s: float | None
    own_s: float | None = None


@dataclass(frozen=True)
class Probe:
    """A look at a rank's process from outside. `state` is proc(5)'s letter; `cpu_s` and `io_bytes` are totals of the process and what it
    has started; `stack` is the main thread's, innermost frame first, each `file:line function`, empty where it could not be had; `where`
    says what that stack is in: one of contract.SECTIONS, or null."""

    state: str
    cpu_s: float
    io_bytes: int
    stack: tuple[str, ...] = ()
    where: str | None = None


@dataclass(frozen=True)
class Hang:
    """A generation that goes no further. `ranks` are the culprits, none when nobody differs from the others; `silent_s` is how long."""

    ranks: tuple[int, ...]
    section: str
    silent_s: float
    why: str


@dataclass(frozen=True)
class Straggler:
    """A rank whose own time per step has been `ratio` times the others' median over the last windows."""

    rank: int
    ratio: float
    own_step_s: float


@dataclass(frozen=True)
class Findings:
    """`probe`: ranks whose processes should be looked at now; `stragglers`: those found since the last call."""

    probe: frozenset[int] = frozenset()
    hang: Hang | None = None
    stragglers: tuple[Straggler, ...] = ()


class Watch:
    """One generation under watch. Times are seconds of any monotonic clock, the same for all calls."""

    def __init__(self, ranks: int, timeouts: Mapping[str, Timeout], now_s: float) -> None:
        raise NotImplementedError

    def beat(self, ranks: Mapping[int, RankBeat], now_s: float) -> None:
        """Heartbeats of one node's ranks."""
        raise NotImplementedError

    def probed(self, ranks: Mapping[int, Probe], now_s: float) -> None:
        """Probes of one node's ranks."""
        raise NotImplementedError

    def tick(self, now_s: float) -> Findings:
        """What the coordinator should do now."""
        raise NotImplementedError

    def moved_since(self, then_s: float) -> bool:
        """Whether any rank has given a sign of life since."""
        raise NotImplementedError
