"""Defines the events of a run, and the actions of its coordinator, as values."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from headway.runner.checkpoint.chain import Base, CheckpointId
from headway.runner.contract import Exit
from headway.runner.coordinator.causes import Cause, Ended
from headway.runner.health.collectives import Collective
from headway.runner.health.watch import Probe, RankBeat

# --- events: what happened --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Joined:
    """An agent is connected. `generation` is the newest it knows, `port` that of its open rendezvous socket."""

    node: int
    host: str
    generation: int
    running: tuple[int, ...]  # ranks
    domain: str | None = None
    port: int | None = None


@dataclass(frozen=True)
class Lost:
    """The connection to a node's agent ended. Its workers may well go on. `unanswered`: the node did not end it, and was silent."""

    node: int
    unanswered: bool = False


@dataclass(frozen=True)
class Beat:
    node: int
    generation: int
    port: int | None
    ranks: Mapping[int, RankBeat]


@dataclass(frozen=True)
class Exited:
    """Ends of a node's ranks."""

    node: int
    generation: int
    exits: tuple[Ended, ...]


@dataclass(frozen=True)
class Probed:
    """A look at processes of a node's ranks."""

    node: int
    generation: int
    ranks: Mapping[int, Probe]


@dataclass(frozen=True)
class Recorded:
    """What the flight recorders of a node's ranks say, and what NCCL's own watch over the job has found."""

    node: int
    generation: int
    ranks: Mapping[int, tuple[Collective, ...]]
    said: str | None = None


@dataclass(frozen=True)
class EvidenceEvent:
    """Evidence from a worker or an agent."""

    node: int
    generation: int
    body: Mapping[str, Any]


@dataclass(frozen=True)
class Claimed:
    """The claim stands. `idle` generations in a row, this one included, have committed nothing."""

    generation: int
    base: Base | None
    idle: int


@dataclass(frozen=True)
class ClaimRefused:
    """No claim: somebody else's is newer, or checkpoints exist and none is left that verifies."""

    exit_code: Exit
    cause: str


@dataclass(frozen=True)
class Tick:
    """Time passes."""


Event = Joined | Lost | Beat | Exited | Probed | Recorded | EvidenceEvent | Claimed | ClaimRefused | Tick

# --- actions: what to do ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Send:
    node: int
    kind: str
    generation: int
    body: Mapping[str, Any]


@dataclass(frozen=True)
class Broadcast:
    """The same to every agent that is connected, spares included."""

    kind: str
    generation: int
    body: Mapping[str, Any]


@dataclass(frozen=True)
class DropConnection:
    """End the connection with a node that was given up: if it still lives, it joins again."""

    node: int


@dataclass(frozen=True)
class MakeClaim:
    """Claim the next generation from the newest checkpoint that is not refused in its tier. `held`: what all ranks have in memory, with
    the hash of its manifest. `sound_step`: what was saved after that step does not count any more."""

    refused: frozenset[tuple[CheckpointId, str]]
    held: Mapping[CheckpointId, str] = field(default_factory=dict)
    sound_step: int | None = None


@dataclass(frozen=True)
class Note:
    """A line for the journal of generation `generation`."""

    kind: str
    generation: int
    body: Mapping[str, Any]


@dataclass(frozen=True)
class Finish:
    """The attempt is over."""

    exit_code: Exit
    cause: str
    failure: Cause | None
    suspects: tuple[int, ...]
    step: int
    committed_step: int | None


Action = Send | Broadcast | DropConnection | MakeClaim | Note | Finish
