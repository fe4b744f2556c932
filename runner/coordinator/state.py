"""Holds the coordinator's state: what it knows of its nodes, its generation, and the attempt.

The other modules of this package change it: `joins`, `progress` and `evidence` handle events, `generations` binds, claims and starts,
`losses` and `failures` decide what a loss or a failure leads to, `ending` writes the verdict. They append actions; nothing here does I/O
or reads a clock.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum

from headway.runner.checkpoint.keeper.protocol import Holding
from headway.runner.contract import (
    CAPTURED_TIERS,
    DEFAULT_TIMEOUTS,
    Base,
    CheckpointId,
    Exit,
    Members,
    RunConfig,
    Timeout,
    journal,
)
from headway.runner.contract.journal import Entry
from headway.runner.contract.orders import Order, StartRanks
from headway.runner.coordinator.causes import AGREED, Cause, Ended, Raised
from headway.runner.coordinator.events import Action, Broadcast, Excuse, Note, Send
from headway.runner.coordinator.policy import Policy, RestartDecision
from headway.runner.coordinator.roster import Roster
from headway.runner.coordinator.vitals import Vitals
from headway.runner.health.watch import Hang, Watch

# Of the grace period, for a save that all ranks agree on; the rest is for ending what hangs.
GRACE_SHARE = 0.7
# Of the grace period: then the attempt ends, whatever still runs.
LAST_SHARE = 0.9
# A node counts as present for so long after its last message; at least three heartbeats, where they are rare.
HEARD_S = 3.0
# How long a node is unreachable whose connection has ended, and how long no rank anywhere makes progress where one is silent: with the
# other, the node is lost.
ENDED_S, QUIET_S = 1.0, 2.0
# For all nodes to come to a new coordinator; at least three heartbeats, where they are rare.
REJOIN_S = 5.0
# For the nodes to report what their keepers hold; a node that does not is taken to hold nothing.
SURVEY_S = 5.0


class Phase(Enum):
    # Nodes join until the slots can be bound.
    GATHERING = "gathering"
    # Too few nodes are left; another may come.
    REPLACING = "replacing"
    SURVEYING = "surveying"
    CLAIMING = "claiming"
    RUNNING = "running"
    STOPPING = "stopping"
    ENDED = "ended"


@dataclass
class LostReplica:
    """A replica group that was lost at `since_s`, by `exits`. `ending` are its ranks that are to end before it starts again; `started` is
    the number of its start, 0 before. Since then these ranks are `ready` to be members, or `gone` again."""

    since_s: float
    exits: list[Ended]
    ending: set[int]
    started: int = 0
    ready: set[int] = field(default_factory=set)
    gone: set[int] = field(default_factory=set)


@dataclass
class ReplicaGroups:
    """The replica groups of a generation, of `size` consecutive ranks each: those that train, and those that were lost."""

    size: int
    members: Members
    lost: dict[int, LostReplica] = field(default_factory=dict)
    # Of lost groups.
    starts: int = 0
    # Nodes that have taken a lost one's slot, and have no order on it yet.
    untold: set[int] = field(default_factory=set)
    # The newest members of which one has found another one gone; -1: none.
    parted: int = -1

    @classmethod
    def of_new_generation(cls, config: RunConfig) -> "ReplicaGroups | None":
        """Return the groups of a generation that starts; None where a lost one stops all ranks."""
        count = config.mesh.dp_replicate
        if not config.replica_recovery or count == 1:
            return None
        return cls(config.mesh.world_size // count, Members.everyone(count))

    @classmethod
    def of_earlier_coordinator(cls, config: RunConfig, members: Members | None) -> "ReplicaGroups | None":
        """Return the groups of a generation that an earlier coordinator started; None if one was lost then and was not back."""
        found = cls.of_new_generation(config)
        if found is None or members is None:
            return found
        return cls(found.size, members) if len(members.replicas) == config.mesh.dp_replicate else None

    def of(self, rank: int) -> int:
        """Return the rank's group."""
        return rank // self.size

    def ranks(self, replica: int) -> range:
        return range(replica * self.size, (replica + 1) * self.size)


@dataclass
class Generation:
    """One gang start: its base, and the state of its ranks.

    `order` is the start that its agents got, for one that missed it. `known`: an agent has the order, or has reported this generation.
    `failed_nodes`: where a rank ended without an order. `unread`: reports that the base could not be read, by node.
    `corrupted`: the first report of corruption, as in the journal. `undead`: ranks that SIGKILL has not ended, with their process states.
    `regroups`: it ends so that the next one can be larger. `replicas` is None where the loss of one stops all ranks; `decision` is what
    was decided on the failure that stops them, if it was.
    """

    number: int
    base: Base | None
    world_size: int = 0
    alive: set[int] = field(default_factory=set)
    started: bool = False
    known: bool = False
    order: StartRanks | None = None
    loaded: set[int] = field(default_factory=set)
    exits: list[Ended] = field(default_factory=list)
    failed_nodes: set[int] = field(default_factory=set)
    raised: dict[int, Raised] = field(default_factory=dict)
    refused: list[journal.Refused] = field(default_factory=list)
    unread: dict[int, journal.Unread] = field(default_factory=dict)
    corrupted: journal.Corruption | None = None
    committed: set[int] = field(default_factory=set)
    best_step: int = 0
    hang: Hang | None = None
    undead: dict[int, str] = field(default_factory=dict)
    regroups: bool = False
    replicas: ReplicaGroups | None = None
    decision: RestartDecision | None = None

    def dissolve_replicas(self) -> None:
        """Count the processes of lost groups among those that are to end: all ranks stop."""
        replicas, self.replicas = self.replicas, None
        for replica, lost in () if replicas is None else replicas.lost.items():
            assert replicas is not None  # noqa: S101  there is none without
            self.alive |= set(replicas.ranks(replica)) - lost.gone if lost.started else lost.ending


@dataclass(frozen=True)
class Inherited:
    """State of an attempt that a coordinator finds in chain and journal; empty if it is the first.

    `generation` is the newest that was claimed (0: none) and `base` its base; `slots` (slot -> node), `hosts` (by node), `started` and
    `corrupted` are the journal's lines on that generation. `barred` nodes must not compute in this attempt any more, and those with
    `undying` ranks not until these have ended. `proven_step` is the last commit of a script's run before its replicas were last equal.
    `remaining_s` is the time to the run's next `limit`; None without one. `members` are the replica groups that train, if that has changed.
    `fruitless` attempts in a row before this one ended without progress, and `excluded` are the hosts that earlier verdicts suspect;
    `is_excused` is whether this attempt has shown progress.
    """

    generation: int = 0
    base: Base | None = None
    committed_step: int | None = None
    restarts: int = 0
    slots: Mapping[int, int] = field(default_factory=dict)
    hosts: Mapping[int, str] = field(default_factory=dict)
    started: bool = False
    corrupted: journal.Corruption | None = None
    barred: frozenset[int] = frozenset()
    undying: Mapping[int, frozenset[int]] = field(default_factory=dict)
    proven_step: int | None = None
    remaining_s: float | None = None
    limit: str = ""
    members: Members | None = None
    fruitless: int = 0
    excluded: frozenset[str] = frozenset()
    is_excused: bool = False


@dataclass(frozen=True)
class PendingEnd:
    """A verdict that waits for the claim that undoes unsound checkpoints."""

    exit_code: Exit
    why: str
    cause: Cause | None
    suspects: tuple[int, ...]


MakeWatch = Callable[[int, Mapping[str, Timeout], float], Watch]


class State:
    """The state of one attempt; `now_s` is a monotonic clock, in seconds."""

    def __init__(self, config: RunConfig, inherited: Inherited, now_s: float, watch: MakeWatch = Watch) -> None:
        self.config = config
        # A script may end with any code and means none of the runner's by it.
        self.is_script = config.trainer.kind == "script"
        # No rank needs to be stopped after one of these, and what the others still report is wanted.
        self.agreed_codes = frozenset({Exit.COMPLETED}) if self.is_script else AGREED | {Exit.COMPLETED}
        # A script may save without the chain.
        self.saves_on_chain = bool(config.checkpoint.tiers) and not self.is_script
        self.keeps_copies = any(config.checkpoint.has(kind) for kind in CAPTURED_TIERS)
        self.timeouts = {**DEFAULT_TIMEOUTS, **config.timeouts}

        self.now_s = self.phase_since_s = now_s
        self.phase = Phase.GATHERING
        # When as many nodes had joined as are needed.
        self.enough_since_s: float | None = None
        # A generation of an earlier coordinator is presumed to run until its nodes say otherwise.
        self.adopting = False

        self.roster = Roster(config)
        self.roster.barred = set(inherited.barred)
        # By node: the ranks there that SIGKILL does not end.
        self.undying = {node: set(ranks) for node, ranks in inherited.undying.items()}
        self.roster.unfit = set(self.undying)
        # Nodes that were lost since the last start, and why.
        self.gave_up: dict[int, str] = {}

        self.generation = Generation(inherited.generation, inherited.base, corrupted=inherited.corrupted)
        self.inherited_members = inherited.members
        # The newest generation is a claim of this coordinator's.
        self.claim_stands = False
        # Nodes that were asked what their keepers hold and have not answered, and the answers.
        self.unsurveyed: set[int] = set()
        self.holdings: dict[int, tuple[Holding, ...]] = {}
        # Checkpoints that failed verification, with the tier where they did.
        self.refused: set[tuple[CheckpointId, str]] = set()
        self.committed_step = inherited.committed_step
        begins_at = 0 if inherited.base is None else inherited.base.step
        # What a run begins with is taken as it is.
        known = inherited.proven_step is not None or inherited.generation == 0
        self.proven_step = inherited.proven_step if known else begins_at

        self.vitals = Vitals(config, now_s)
        self.make_watch = watch
        self.watch: Watch | None = None
        self.best_step = 0
        # The furthest step before a failure.
        self.reached = 0

        self.policy = Policy(
            config.restart,
            script=self.is_script,
            restarts=inherited.restarts,
            batch_samples=config.batch.global_sequences if config.batch else None,
        )
        # The first failure since the last start.
        self.failure: Cause | None = None
        # When a limit of the run is reached, and which.
        self.limit_at_s = None if inherited.remaining_s is None else now_s + inherited.remaining_s
        self.limit = inherited.limit
        self.preempting = False
        # The exit code and the cause if it is asked to stop.
        self.asked: tuple[Exit, str] = Exit.PREEMPTED, "asked to stop"
        self.preempted_at_s: float | None = None
        self.pending_end: PendingEnd | None = None
        self.is_excused = inherited.is_excused
        self.fruitless = inherited.fruitless
        self.excluded = inherited.excluded
        self.verdict: Exit | None = None
        self.cause = ""
        # What the event that is being handled has led to so far.
        self.actions: list[Action] = []

    def enter(self, phase: Phase) -> None:
        self.phase, self.phase_since_s = phase, self.now_s

    @property
    def waited_s(self) -> float:
        """Seconds in this phase."""
        return self.now_s - self.phase_since_s

    def timeout_s(self, name: str) -> float:
        return self.timeouts[name].floor_s

    @property
    def misses_replicas(self) -> bool:
        """Whether an earlier coordinator had lost a replica group that was not back."""
        found = self.inherited_members
        return found is not None and len(found.replicas) < self.config.mesh.dp_replicate

    def tell(self, node: int, order: Order) -> None:
        self.actions.append(Send(node, self.generation.number, order))

    def tell_all(self, order: Order) -> None:
        self.actions.append(Broadcast(self.generation.number, order))

    def note(self, entry: Entry) -> None:
        """Add a line to the journal."""
        self.actions.append(Note(self.generation.number, entry))

    def excuse(self, why: str) -> None:
        """Record that the attempt counts as no failed start, however it ends. The first reason is enough."""
        if not self.is_excused:
            self.is_excused = True
            self.actions.append(Excuse(why))

    def ranks_and_nodes(self, ranks: Iterable[int]) -> tuple[list[int], list[int]]:
        """Those of `ranks` that this generation has, and their nodes."""
        known = [rank for rank in ranks if 0 <= rank < self.generation.world_size]
        return known, sorted({self.roster.node_of(rank) for rank in known})
