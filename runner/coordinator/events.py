"""Defines the events of a run, and the actions of its coordinator, as values."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from headway.runner.checkpoint.keeper.protocol import Holding
from headway.runner.contract import Base, CheckpointId, Exit
from headway.runner.contract.journal import Entry
from headway.runner.contract.orders import Order
from headway.runner.coordinator.causes import Cause, Ended, Raised
from headway.runner.health.collectives import Collective
from headway.runner.health.watch import Probe, RankBeat

# --- events: what happened --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Joined:
    """An agent is connected. `generation` is the newest it knows, `port` that of its open rendezvous
    socket on `address`, which is the host for an older agent."""

    node: int
    host: str
    generation: int
    running: tuple[int, ...]  # ranks
    domain: str | None = None
    port: int | None = None
    address: str = ""


@dataclass(frozen=True)
class Lost:
    """The connection to a node's agent ended. Its workers may still run. `unanswered`: the node was silent and did not end it."""

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
    """Contents of the flight recorders of a node's ranks, and the findings of NCCL's RAS subsystem."""

    node: int
    generation: int
    ranks: Mapping[int, tuple[Collective, ...]]
    said: str | None = None


@dataclass(frozen=True)
class StopRequested:
    """A scheduler or a person has asked the node to stop, `age_s` seconds ago."""

    node: int
    generation: int
    age_s: float


@dataclass(frozen=True)
class Surveyed:
    """The captures that the node's keeper holds."""

    node: int
    generation: int
    holdings: tuple[Holding, ...]


@dataclass(frozen=True)
class RankLoaded:
    """A rank has verified its state."""

    node: int
    generation: int
    rank: int
    step: int


@dataclass(frozen=True)
class RankReady:
    """A rank of a lost replica group could take the state of another group; `start` is the number of its start."""

    node: int
    generation: int
    rank: int
    start: int


@dataclass(frozen=True)
class RankParted:
    """A collective between the replica groups of `epoch` has failed on a rank: one of the others is gone."""

    node: int
    generation: int
    epoch: int


@dataclass(frozen=True)
class RankRaised:
    """An exception has ended a rank."""

    node: int
    generation: int
    rank: int
    raised: Raised


@dataclass(frozen=True)
class RanksUndead:
    """SIGKILL does not end these ranks; the states of their processes, by rank."""

    node: int
    generation: int
    states: Mapping[int, str]


@dataclass(frozen=True)
class CorruptionFound:
    """These ranks compute or hold wrong numbers. `sound_step`: up to there all was right; None: up to the last comparison."""

    node: int
    generation: int
    ranks: tuple[int, ...]
    found: str
    sound_step: int | None


@dataclass(frozen=True)
class ReplicasEqual:
    """The replicas of a script are equal after `step`."""

    node: int
    generation: int
    step: int | None


@dataclass(frozen=True)
class Reported:
    """A line for the journal from a worker or an agent. `of_generation`: it only counts if its generation still runs."""

    node: int
    generation: int
    entry: Entry
    of_generation: bool = True


@dataclass(frozen=True)
class Claimed:
    """The claim is on the chain. `idle` generations in a row, this one included, have committed nothing."""

    generation: int
    base: Base | None
    idle: int


@dataclass(frozen=True)
class ClaimRefused:
    """The claim was refused: another one is newer, or checkpoints exist and none of them verifies."""

    exit_code: Exit
    cause: str


@dataclass(frozen=True)
class Tick:
    """Time passes."""


Evidence = (
    StopRequested
    | Surveyed
    | RankLoaded
    | RankReady
    | RankParted
    | RankRaised
    | RanksUndead
    | CorruptionFound
    | ReplicasEqual
    | Reported
)
Event = Joined | Lost | Beat | Exited | Probed | Recorded | Evidence | Claimed | ClaimRefused | Tick

# --- actions: what to do ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Send:
    node: int
    generation: int
    order: Order


@dataclass(frozen=True)
class Broadcast:
    """The same to every agent that is connected, spares included."""

    generation: int
    order: Order


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

    generation: int
    entry: Entry


@dataclass(frozen=True)
class Excuse:
    """The attempt has made progress, or was asked to stop: if it ends without a verdict, the batch script does not count it."""

    why: str


@dataclass(frozen=True)
class Finish:
    """The attempt is over."""

    exit_code: Exit
    cause: str
    failure: Cause | None
    suspects: tuple[int, ...]
    step: int
    committed_step: int | None


Action = Send | Broadcast | DropConnection | MakeClaim | Note | Excuse | Finish
