"""Decides for the coordinator: events in, actions out; no I/O and no clock.

    gathering -> claiming -> running -> stopping -> surveying -> claiming ... -> ended

Nodes join and slots are bound to them; a claim on the chain makes a generation; its workers run from the claim's base; when one fails
all are stopped, and either the next generation is claimed, from what the nodes still hold in memory or from what was committed, or
the attempt ends with a verdict. A node that does not answer is given up only where something else speaks for its death. A
coordinator that comes back presumes that the newest generation runs where it was bound, and goes on with it.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import xxhash

from headway.runner.checkpoint.chain import Base, CheckpointId
from headway.runner.checkpoint.commit import memory_manifest
from headway.runner.contract import DEFAULT_TIMEOUTS, Exit, RunConfig, Timeout, set_by
from headway.runner.coordinator.causes import (
    NODE_LOST,
    STARTED_ANEW,
    Cause,
    CauseKind,
    Ended,
    Raised,
    cause_of,
    corruption_cause,
    hang_cause,
)
from headway.runner.coordinator.events import (
    Action,
    Beat,
    Broadcast,
    Claimed,
    ClaimRefused,
    DropConnection,
    Event,
    EvidenceEvent,
    Exited,
    Finish,
    Joined,
    Lost,
    MakeClaim,
    Note,
    Probed,
    Recorded,
    Send,
    Tick,
)
from headway.runner.coordinator.policy import FAULTY, Policy, RestartDecision
from headway.runner.coordinator.roster import Member, Roster
from headway.runner.coordinator.vitals import Vitals
from headway.runner.health.watch import Hang, Watch


class Phase(Enum):
    GATHERING = "gathering"  # nodes join until the slots can be bound
    REPLACING = "replacing"  # too few nodes are left; another may come
    SURVEYING = "surveying"
    CLAIMING = "claiming"
    RUNNING = "running"
    STOPPING = "stopping"
    ENDED = "ended"


@dataclass
class Generation:
    """One gang start: what it began from and what has become of its ranks. `order` is what its agents were told, for one that missed it."""

    number: int
    base: Base | None
    world_size: int = 0
    alive: set[int] = field(default_factory=set)
    started: bool = False
    known: bool = False  # an agent was told to start it, or has spoken of it
    order: Mapping[str, Any] | None = None
    loaded: set[int] = field(default_factory=set)
    exits: list[Ended] = field(default_factory=list)
    failed_nodes: set[int] = field(default_factory=set)  # where a rank has ended without being told to
    raised: dict[int, Raised] = field(default_factory=dict)
    refused: list[Mapping[str, Any]] = field(default_factory=list)
    unread: dict[int, Mapping[str, Any]] = field(default_factory=dict)  # by node: what a rank there could not read of the base
    corrupted: Mapping[str, Any] | None = None  # what a rank has said of it, as the journal has it
    committed: set[int] = field(default_factory=set)
    best_step: int = 0
    hang: Hang | None = None
    undead: dict[int, str] = field(default_factory=dict)  # ranks that SIGKILL has not ended, and the state of their processes
    regroups: bool = False  # it ends so that the next one can be larger


# Exit codes that all ranks reach by agreement: nobody needs to be stopped, and what the others still have to say is wanted.
_TOGETHER = frozenset({Exit.COMPLETED, Exit.PREEMPTED, Exit.UNVERIFIED, Exit.SUPERSEDED})
_HEARD = (Beat, Exited, EvidenceEvent, Probed, Recorded)  # what a node says once it has joined


SURVEY_S = 5.0  # for the nodes to say what their keepers hold; one that does not is taken to hold nothing
GRACE_SHARE = 0.7  # of the grace, for a save that all ranks agree on; the rest is for ending what hangs
LAST_SHARE = 0.9  # of the grace: then the attempt ends, whatever still runs
HEARD_S = 3.0  # since its last word a node is heard; at least three beats, where they beat seldom
# How long a node is unreachable whose connection has ended, and how long nobody goes on where one is silent: with the other, it is lost.
ENDED_S, QUIET_S = 1.0, 2.0
NODES_LISTED = 256  # with their hosts in the journal; of more, those that have moved
REJOIN_S = 5.0  # for all nodes to come to a new coordinator; at least three beats, where they beat seldom
STALL_S = 2.0  # between two events, of which ticks are most: whoever was not heard in it was not listened to


class Coordinator:
    """The state machine. `handle(event, now_s)` returns the actions; `now_s` is a monotonic clock."""

    def __init__(
        self,
        config: RunConfig,
        newest_generation: int,
        now_s: float,
        base: Base | None = None,
        committed_step: int | None = None,
        restarts: int = 0,
        slots: Mapping[int, int] | None = None,
        *,
        hosts: Mapping[int, str] | None = None,
        started: bool = False,
        corrupted: Mapping[str, Any] | None = None,
        barred: Iterable[int] = (),
        undying: Mapping[int, Iterable[int]] | None = None,
        sound_step: int | None = None,
        watch: Callable[[int, Mapping[str, Timeout], float], Watch] = Watch,
    ) -> None:
        """`newest_generation` and its `base` are what the chain says of this attempt, `slots` (slot -> node), `hosts` (by node),
        `started` and `corrupted` what the journal says of that generation; 0 and None when there is none. `barred` nodes must not compute
        in this attempt any more, and those with `undying` ranks not until these have ended. `sound_step` is what the run
        of a script had committed when its replicas were last equal."""
        self.config = config
        self.phase = Phase.GATHERING
        self.roster = Roster(config)
        self.generation = Generation(newest_generation, base, corrupted=corrupted)
        self.refused: set[tuple[CheckpointId, str]] = set()
        self.holdings: dict[int, list[dict[str, Any]]] = {}  # node -> what its keeper holds, as far as it was asked and has said
        self._unsurveyed: set[int] = set()  # nodes that were asked and have not said
        self.policy = Policy(
            config.restart,
            script=config.trainer.kind == "script",
            restarts=restarts,
            batch_samples=config.batch.global_sequences if config.batch else None,
        )
        self.vitals = Vitals(config, now_s)
        self.watch: Watch | None = None
        self.best_step = 0
        self.reached = 0  # the furthest step before a failure
        self.committed_step = committed_step
        self.roster.barred = set(barred)
        self._undying = {node: set(ranks) for node, ranks in (undying or {}).items()}  # on nodes that were given up for them
        self.roster.unfit = set(self._undying)
        begun_at = 0 if base is None else base.step  # what a run begins with is taken as it is
        self._sound_step = sound_step if sound_step is not None or newest_generation == 0 else begun_at
        self._ending: tuple[Exit, str, Cause | None, tuple[int, ...]] | None = (
            None  # once the claim stands that undoes what is not sound
        )
        self.preempting = False
        self.verdict: Exit | None = None
        self.cause = ""
        # Somebody's script may end with any code, and means nothing of ours by it.
        self._is_script = config.trainer.kind == "script"
        self._together = frozenset({Exit.COMPLETED}) if self._is_script else _TOGETHER
        self._keeps_copies = not {"memory", "peer"}.isdisjoint(tier.kind for tier in config.checkpoint.tiers)
        self._make_watch = watch
        self._timeouts = {**DEFAULT_TIMEOUTS, **config.timeouts}
        self._phase_s = self._now_s = now_s  # when the phase began; now
        self._enough_s: float | None = None  # when as many nodes had joined as are needed
        self._preempted_s: float | None = None
        self._adopting = False
        self._claim_stands = False  # the newest generation is a claim of this coordinator's
        self._gave_up: dict[int, str] = {}  # nodes that were lost since the last start, and why
        self.failure: Cause | None = None  # since the last start
        self._out: list[Action] = []
        if slots:
            self.roster.presume(slots, hosts or {}, now_s)
            if started:
                self._presume_running()

    def handle(self, event: Event, now_s: float) -> list[Action]:
        self._out, stalled_s = [], now_s - self._now_s
        self._now_s = now_s
        if stalled_s > STALL_S:
            self._slept(stalled_s)
        if isinstance(event, _HEARD) and (member := self.roster.members.get(event.node)) is not None:
            member.heard_at = now_s
            member.generation = max(member.generation, event.generation)
            self.generation.known |= event.generation == self.generation.number
        if self.phase is not Phase.ENDED:
            self._dispatch(event)
        return self._out

    def _dispatch(self, event: Event) -> None:
        match event:
            case Beat():
                self._beat(event)
            case Joined():
                self._joined(event)
            case Lost(node, unanswered):
                self.roster.disconnected(node, self._now_s, unanswered=unanswered)
            case Exited():
                self._exited(event)
            case EvidenceEvent():
                self._said(event)
            case Probed() | Recorded():
                self._looked(event)
            case Claimed():
                self._claimed(event)
            case ClaimRefused(exit_code, cause):
                _, _, failure, suspects = self._ending or (exit_code, cause, None, ())
                self._end(exit_code, cause, failure, suspects)
            case Tick():
                self._tick()

    def _enter(self, phase: Phase) -> None:
        self.phase, self._phase_s = phase, self._now_s

    # --- who is there -------------------------------------------------------------------------------------------------

    def _presume_running(self) -> None:
        """The newest generation was started: until its nodes say otherwise, it runs."""
        self.phase, self._adopting = Phase.RUNNING, True
        self.generation.started = True
        self.generation.world_size = self.roster.world_size
        self.generation.alive = set(range(self.generation.world_size))
        self._watch_generation()

    def _joined(self, event: Joined) -> None:
        if event.generation > self.generation.number and event.running and self.generation.number:
            return  # a newer coordinator has started it: the chain will say so, and nothing of ours counts there
        before = self.roster.members.get(event.node)
        self.roster.joined(event, self._now_s)
        if gone := self._undying.get(event.node, set()) - set(event.running):
            self._died_after_all(event.node, gone)
        if event.port is not None:
            self._listens(event.node)
        is_bound, is_newest = event.node in self.roster.slot_of, event.generation == self.generation.number
        self.generation.known |= is_newest
        if event.running and not (is_newest and is_bound and self.generation.started and not (before and before.lost)):
            self._out.append(Send(event.node, "stop", event.generation, {}))
        if self.phase is Phase.GATHERING:
            self._gather()
            return
        self._assign(event.node)
        if self.phase is Phase.REPLACING:
            self._go_on()
        elif is_bound:
            self._welcome_back(event, None if before is None else before.generation)
        elif self._could_be_larger():
            self.generation.regroups = True
            self._note("regroup", {"node": event.node, "host": event.host})
            self._stop_workers()

    def _assign(self, node: int) -> None:
        self._out.append(Send(node, "assign", self.generation.number, {"slot": self.roster.slot_of.get(node)}))

    def _welcome_back(self, event: Joined, knew: int | None) -> None:
        """A node with a slot is connected again: what it has missed is said again; what it has lost counts as ended. `knew`: the newest
        generation that it had spoken of before."""
        if self.generation.started and event.generation < self.generation.number:
            never_told = knew is not None and knew < self.generation.number
            if never_told and self.phase is Phase.RUNNING and self.generation.order is not None:
                self._start_again(event.node, self.generation.order)
            else:
                self._ended_with_node(event.node, STARTED_ANEW)
        if self.phase is Phase.SURVEYING and event.node not in self.holdings:
            if event.node in self.roster.slot_of:  # the slots may have been bound anew just now
                self._unsurveyed.add(event.node)
            self._out.append(Send(event.node, "survey", self.generation.number, {}))
        if self.phase is Phase.STOPPING:
            self._out.append(Send(event.node, "stop", self.generation.number, self._stop_body()))
        elif self.phase is Phase.RUNNING and self.generation.started and self.preempting:
            self._out.append(Send(event.node, "save", self.generation.number, {}))
        elif self.phase is Phase.RUNNING and not self.generation.started:
            self._start()
        self._adopt(event)

    def _lend_port(self, member: Member) -> None:
        if not self.config.ports.store:  # one that was given is the next rendezvous' too
            member.lends_port()

    def _start_again(self, node: int, order: Mapping[str, Any]) -> None:
        """The order to start got lost with the connection that it was sent on."""
        if node == self.roster.slots[0]:
            self._lend_port(self.roster.members[node])
        self._out.append(Send(node, "start", self.generation.number, order))

    def _adopt(self, event: Joined) -> None:
        """The generation of a coordinator before us runs everywhere, once all nodes have said so."""
        if set(event.running) != set(self.roster.ranks(event.node)):
            self._adopting = False
        if self._adopting and not self.roster.away and self.phase is Phase.RUNNING:
            self._adopting = False
            self._note("adopted", {})

    def _could_be_larger(self) -> bool:
        running = self.phase is Phase.RUNNING and self.generation.started and not self.preempting
        return running and len(self.roster.slots) < self.config.slots and self.roster.can_grow()

    def _ended_with_node(self, node: int, how: str, *, asked: bool = False) -> None:
        """The node's ranks are gone, or as good as gone, and nobody else will say so."""
        step = self.generation.best_step
        ranks = sorted(self.generation.alive.intersection(self.roster.ranks(node)))
        self._ended([Ended(rank, node, -9, how, asked=asked, step=step) for rank in ranks])

    # --- slots and their nodes ----------------------------------------------------------------------------------------

    def _gather(self) -> None:
        """Binds the slots once each one's own node is there; after the last call, whatever can be bound. A coordinator before us may
        have bound them, and then nothing runs that is waited for."""
        if self.roster.slots:
            self._all_there()
        if self.phase is not Phase.GATHERING or len(self.roster.members) < self.roster.least_slots:
            return
        if self._enough_s is None and self.roster.can_bind():
            self._enough_s = self._now_s
        called = self._enough_s is not None and self._now_s - self._enough_s >= self._timeout("last_call")
        if called or (len(self.roster.members) >= self.config.slots and self.roster.is_at_home()):
            self._all_there()

    def _all_there(self) -> None:
        if not self._note_moves():  # some of those that were enough have gone again
            self._enough_s = None
            return
        for node in self.roster.members:
            self._assign(node)
        self._next_generation()

    def _note_moves(self) -> bool:
        """Binds the slots; False where too few nodes are left."""
        first = not self.roster.slots
        moved = self.roster.bind()
        if moved is None:
            return False
        for move in moved:
            if not first or move.slot != move.node:
                body = {"slot": move.slot, "from": move.before, "to": move.node, "outside": move.outside}
                self._note("rebound", {**body, "host": self.roster.host(move.node)})
        return True

    def _go_on(self) -> None:
        """The next generation, or the start of the one that was claimed, on the nodes that are there; waits for one where they are too
        few."""
        if not self._note_moves():
            if self.phase is not Phase.REPLACING:
                self._enter(Phase.REPLACING)
                self._tick_replacing()
        elif self._claim_stands and not self.generation.started:
            self._enter(Phase.RUNNING)
            self._start()
        else:
            self._next_generation()

    # --- signs of life ------------------------------------------------------------------------------------------------

    def _beat(self, event: Beat) -> None:
        member = self.roster.members.get(event.node)
        if member is None:
            return
        member.listens_at(event.port)
        if member.port is not None:
            self._listens(event.node)
        if not self.generation.started:
            if self.phase is Phase.RUNNING:
                self._start()
            return
        if event.generation != self.generation.number or self.watch is None:
            return
        own = self.roster.ranks(event.node)
        if any(rank not in own for rank in event.ranks):
            return
        self.vitals.beat(event.ranks, self._now_s)
        self.watch.beat(event.ranks, self._now_s)
        self.generation.best_step = max(self.generation.best_step, self.vitals.step)
        self.best_step = max(self.best_step, self.generation.best_step)

    def _tick(self) -> None:
        match self.phase:
            case Phase.GATHERING:
                self._tick_gathering()
            case Phase.REPLACING:
                self._tick_replacing()
            case Phase.SURVEYING if self._waited_s > SURVEY_S:
                self._make_claim()
            case Phase.CLAIMING:
                self._tick_claiming()
            case Phase.RUNNING if not self.generation.started:
                self._tick_starting()
            case Phase.STOPPING:
                self._tick_stopping()
        self._tick_preempted()
        if self.phase not in (Phase.ENDED, Phase.GATHERING, Phase.REPLACING):
            self._tick_nodes()
        if self.phase is Phase.RUNNING and self.generation.started:
            self._tick_watch()

    def _slept(self, stalled_s: float) -> None:
        """This process was stopped or starved: what was not heard meanwhile says nothing, and nobody was waited for."""
        self.vitals.slept(stalled_s)
        if self.watch is not None:
            self.watch.slept(stalled_s)
        self._phase_s += stalled_s
        self._enough_s = None if self._enough_s is None else self._enough_s + stalled_s
        for member in self.roster.members.values():
            if member.gone_at is None:
                member.heard_at = self._now_s
            else:
                member.gone_at += stalled_s

    def _tick_gathering(self) -> None:
        self._gather()
        joined, patience_s = len(self.roster.members), self._timeout("join")
        if self.phase is Phase.GATHERING and self._waited_s > patience_s:
            silent = sorted(set(range(self.config.slots)) - {n for n, m in self.roster.members.items() if m.connected})
            node = silent[0] if silent else None
            self._give_up(f"{joined} of {self.config.slots} nodes joined; silent: {silent}", node, silent)

    def _tick_replacing(self) -> None:
        if self._waited_s >= self._timeout("replace"):
            node = min(self._gave_up, default=None)
            self._give_up("too few nodes are left", node, self._gave_up)

    def _tick_claiming(self) -> None:
        if self._waited_s > self._timeout("store"):
            _, _, failure, suspects = self._ending or (None, "", None, ())
            why = (
                f"the store has not answered for {self._timeout('store'):.0f} s ({set_by('store')}), and there is no valid claim"
            )
            self._end(Exit.RETRY_ELSEWHERE, why, failure, suspects)

    def _tick_starting(self) -> None:
        """A generation is claimed, and its rendezvous store has no place: on another node it may have one."""
        first = self.roster.slots[0]
        member = self.roster.members[first]
        if member.connected and member.port is None and self._waited_s > self._timeout("listen"):
            self.roster.unfit.add(first)
            where = f"on its own name, {member.host}" if member.host else "on its own name"
            self._lose(first, f"it could not listen {where}, for {self._timeout('listen'):.0f} s ({set_by('listen')})")

    def _listens(self, node: int) -> None:
        if node in self.roster.unfit and node not in self._undying:
            self._is_fit_again(node)

    def _is_fit_again(self, node: int) -> None:
        self.roster.unfit.discard(node)
        if self.phase is Phase.REPLACING:
            self._go_on()

    @property
    def _waited_s(self) -> float:
        """In this phase."""
        return self._now_s - self._phase_s

    def _give_up(self, why: str, node: int | None, suspects: Iterable[int]) -> None:
        """Nodes are missing, and none has come in their place."""
        if self.failure is None:
            fingerprint = str(CauseKind.NODE_LOST)
            self._note_failure(Cause(CauseKind.NODE_LOST, fingerprint, why, None, node, self.roster.host(node), self.best_step))
        assert self.failure is not None  # noqa: S101  noted just now, if not before
        # What began it is the first cause; a node may have been given up for something else since.
        lost = {node: reason for node, reason in self._gave_up.items() if reason not in self.failure.text}
        reasons = [f"{self.roster.host(node) or f'node {node}'}: {reason}" for node, reason in lost.items()]
        self._end(Exit.RETRY_ELSEWHERE, "; ".join([self.failure.text, *reasons]), self.failure, tuple(sorted(suspects)))

    def _tick_preempted(self) -> None:
        if self._preempted_s is None or self.phase is Phase.ENDED:
            return
        spent_s = self._now_s - self._preempted_s
        if spent_s > LAST_SHARE * self.config.grace_s:
            self._end(Exit.PREEMPTED, "asked to stop")
        elif spent_s > GRACE_SHARE * self.config.grace_s and self.phase is Phase.RUNNING:
            self._stop_workers()  # a rank cannot save; what is committed stands

    # --- nodes that are lost ------------------------------------------------------------------------------------------

    def _tick_nodes(self) -> None:
        for node, since_s in self._unreachable():
            if (why := self._why_lost(node, since_s)) is not None:
                self._lose(node, why)

    def _unreachable(self) -> list[tuple[int, float]]:
        """Nodes with a slot that cannot be reached, and since when; none while nobody can be: then this coordinator is cut off."""
        found, heard = [], False
        silent_before_s = self._heard_since_s
        for node, member in self.roster.members.items():
            if member.gone_at is None and member.heard_at >= silent_before_s:
                heard = True
            elif node in self.roster.slot_of and not member.lost:
                found.append((node, member.heard_at if member.gone_at is None else member.gone_at))
        return found if heard else []

    @property
    def _heard_since_s(self) -> float:
        """Whoever has said something after that is there."""
        return self._now_s - max(min(HEARD_S, self._timeout("node"), self._timeout("node_spare")), 3 * self.vitals.beat_s)

    def _silent_s(self) -> float:
        """How long a node may be silent where somebody goes on no more. One that a spare can replace at once is given up sooner."""
        return max(self._timeout("node_spare" if self.roster.spares() else "node"), 3 * self.vitals.beat_s)

    def _why_lost(self, node: int, since_s: float) -> str | None:
        """Why the node is given up; None while it may come back. It never is while steps go on."""
        member = self.roster.members[node]
        gone_s, ended = self._now_s - since_s, member.gone_at is not None and not member.unanswered
        if self._adopting and member.presumed:
            return self._why_not_back(node, gone_s)
        how = "its connection ended" if ended else "it stopped sending heartbeats"
        enough_s = ENDED_S if ended else self._silent_s()
        if self.generation.started and self.phase in (Phase.RUNNING, Phase.STOPPING):
            running = self.phase is Phase.RUNNING
            if self.generation.failed_nodes - {node} and gone_s > enough_s:
                return f"{how}, and ranks elsewhere have ended"
            if (
                running
                and self.vitals.is_training
                and gone_s > enough_s
                and self.vitals.quiet_s(self._now_s) > self._quiet_s(ended)
            ):
                return f"{how}, and no rank anywhere makes progress"
            if running and self.vitals.moved_since(since_s) and self.vitals.quiet_s(self._now_s) <= self._timeout("agent"):
                return None
        elif gone_s > max(QUIET_S, enough_s) and self.roster.spares():
            return f"{how}, and a spare is there"
        patience_s = self._timeout("agent")
        return f"{how}, and it has not reconnected for {patience_s:.0f} s" if gone_s > patience_s else None

    def _why_not_back(self, node: int, gone_s: float) -> str | None:
        """Of a node that the coordinator before us knew, and that has not found this one yet."""
        if self.generation.failed_nodes - {node} and gone_s > max(ENDED_S, 2 * self.vitals.beat_s):
            return "it has not connected to this coordinator, and ranks elsewhere have ended"
        patience_s = max(REJOIN_S, 3 * self.vitals.beat_s)
        if gone_s > patience_s and self.vitals.quiet_s(self._now_s) > patience_s:
            return f"it has not connected to this coordinator for {patience_s:.0f} s, and no rank anywhere makes progress"
        return None

    def _quiet_s(self, ended: bool) -> float:
        return max(ENDED_S if ended else QUIET_S, self.vitals.usual_quiet_s)

    # --- ranks that nothing ends --------------------------------------------------------------------------------------

    def _tick_stopping(self) -> None:
        """Ranks were told to end, and some have not: their nodes are there, and of no use. Who cannot be reached is judged elsewhere."""
        grace_s = self._stop_body().get("grace_s", self._timeout("terminate") if self._is_script else 0.0)
        if self._waited_s <= grace_s + self._timeout("kill"):
            return
        for node in sorted({self.roster.node_of(rank) for rank in self.generation.alive}):
            member = self.roster.members[node]
            if member.connected and member.heard_at >= self._heard_since_s:
                self._lose_undying(node)

    def _lose_undying(self, node: int) -> None:
        ranks = self.generation.alive.intersection(self.roster.ranks(node))
        states = {rank: self.generation.undead.get(rank) for rank in sorted(ranks)}
        who = ", ".join(f"rank {rank}{f' (state {state})' if state else ''}" for rank, state in states.items())
        why = f"{who} does not exit on SIGKILL, for {self._timeout('kill'):.0f} s ({set_by('kill')})"
        self._undying[node] = ranks
        self.roster.unfit.add(node)
        self._lose(node, why, undying=states)

    def _undead(self, body: Mapping[str, Any]) -> None:
        """A supervisor has killed ranks, and they are still there."""
        said = {each["rank"]: str(each.get("state") or "") for each in body["workers"]}
        new = {rank: state for rank, state in said.items() if self.generation.undead.get(rank) != state}
        self.generation.undead |= new
        ranks, nodes = self._named(sorted(new))
        if ranks:
            self._note("undead", {"ranks": ranks, "states": [new[rank] for rank in ranks], "nodes": nodes})
        # A coordinator before this one told them to end, and did not live to see them go.
        if ranks and self.phase is Phase.RUNNING and self.generation.started:
            self._stop_workers()

    def _died_after_all(self, node: int, ranks: Iterable[int]) -> None:
        """What held the ranks has let go of them: the node can compute again."""
        if (left := self._undying.get(node)) is None:
            return
        left.difference_update(ranks)
        if not left:
            del self._undying[node]
            self._is_fit_again(node)

    def _lose(self, node: int, why: str, undying: Mapping[int, str | None] | None = None) -> None:
        """Gives a node up. Its ranks count as ended; `undying` ones, with the states of their processes, were told to and are there."""
        if self.phase is Phase.ENDED:
            return
        more = {} if undying is None else {"undying": list(undying)}
        self._note("lost", {"node": node, "host": self.roster.host(node), "why": why, **more})
        if self.roster.members[node].gone_at is None:
            self._out.append(DropConnection(node))
        self.roster.lose(node)
        self._gave_up[node] = why
        if self.generation.started and self.phase in (Phase.RUNNING, Phase.STOPPING):
            if undying is None:
                self._ended_with_node(node, f"{NODE_LOST}: {why}")
            else:  # whatever they were stopped for came first
                self._ended_with_node(node, "does not exit on SIGKILL", asked=True)
        elif self.phase is Phase.RUNNING:  # claimed, and not started yet
            self._go_on()
        elif self.phase is Phase.SURVEYING:
            self._surveyed(node)

    # --- hangs and stragglers -----------------------------------------------------------------------------------------

    def _watch_generation(self) -> None:
        base_step = self.generation.base.step if self.generation.base is not None and not self._is_script else 0
        self.vitals.begin(self._now_s, base_step, adopted=self._adopting)
        self.watch = self._make_watch(self.generation.world_size, self._timeouts, self._now_s)

    def _tick_watch(self) -> None:
        if self.watch is None:
            return
        findings = self.watch.tick(self._now_s)
        for found in findings.stragglers:
            node = self.roster.node_of(found.rank)
            self._note("straggler", {**vars(found), "node": node, "host": self.roster.host(node)})
        self._probe(findings.probe)
        if findings.hang is not None:
            self._hangs(findings.hang)

    def _probe(self, ranks: Iterable[int]) -> None:
        by_node: dict[int, list[int]] = {}
        for rank in sorted(ranks):
            by_node.setdefault(self.roster.node_of(rank), []).append(rank)
        self._out += [Send(node, "probe", self.generation.number, {"ranks": each}) for node, each in by_node.items()]

    def _looked(self, event: Probed | Recorded) -> None:
        if self.watch is None or event.generation != self.generation.number:
            return
        if isinstance(event, Probed):
            self.watch.probed(event.ranks, self._now_s)
        else:
            self.watch.recorded(event.ranks, event.said)

    def _hangs(self, hang: Hang) -> None:
        self.generation.hang = hang
        self._note("hang", {**vars(hang), "ranks": list(hang.ranks)})
        self._stop_workers()

    # --- a generation -------------------------------------------------------------------------------------------------

    def _next_generation(self) -> None:
        """Claims the next generation; before it, where captures are kept in memory, asks what is left of the one that ended."""
        if not self._keeps_copies or self.generation.number == 0:
            self._make_claim()
            return
        self.holdings = {}
        self._unsurveyed = {node for node in self.roster.slot_of if not self.roster.members[node].lost}
        self._enter(Phase.SURVEYING)
        self._tell_all("survey", {})

    def _held(self, node: int, holdings: list[dict[str, Any]]) -> None:
        if self.phase is Phase.SURVEYING:
            self.holdings[node] = holdings
            self._surveyed(node)

    def _surveyed(self, node: int) -> None:
        """Nothing is waited for from this node any more."""
        self._unsurveyed.discard(node)
        if not self._unsurveyed:
            self._make_claim()

    def _make_claim(self) -> None:
        self._enter(Phase.CLAIMING)
        whole = whole_captures(self.config, self.holdings.values())
        held = {checkpoint: hashed for checkpoint, hashed in whole.items() if (checkpoint, "memory") not in self.refused}
        self._out.append(MakeClaim(frozenset(self.refused), held, self._sound()))

    def _sound(self) -> int | None:
        """The step after which nothing counts that the generation which has ended saved, or those before it; None: all does."""
        return None if self.generation.corrupted is None else int(self.generation.corrupted["sound_step"])

    def _claimed(self, event: Claimed) -> None:
        self.generation, self._claim_stands, self.watch = Generation(event.generation, event.base), True, None
        self.committed_step = event.base.step if event.base else None
        begins_at = self.committed_step or 0
        self._sound_step = begins_at if self._sound_step is None else min(self._sound_step, begins_at)
        base = {"step": event.base.step, "generation": event.base.generation, "tier": event.base.tier} if event.base else None
        self._note("claim", {"base": base})
        if self._ending is not None:
            self._end(*self._ending)
            return
        # What a script saves is its own business, and need not be on the chain.
        saves = bool(self.config.checkpoint.tiers) and not self._is_script
        if saves and event.idle > self.config.restart.no_progress + self.config.restart.budget:
            self._end(Exit.STOP, f"{event.idle - 1} generations in a row have saved nothing")
            return
        if any(self.roster.members[node].lost for node in self.roster.away):
            self._go_on()
            return
        self._enter(Phase.RUNNING)
        self._start()

    def _start(self) -> None:
        """Starts every slot, once all are connected and slot 0's node has opened the socket of this generation's rendezvous store."""
        first = self.roster.members[self.roster.slots[0]]
        if first.port is None or self.roster.away or self.generation.started:
            return
        base = self.generation.base
        moved = self.roster.moved
        order = {
            "base": vars(base) if base else None,
            "slots": len(self.roster.slots),
            "moved": moved,
            "master_addr": first.host,
            "master_port": first.port,
            "restarts": self.policy.restarts,
        }
        self._lend_port(first)
        self.generation.started, self.generation.known, self.generation.order = True, True, order
        self.generation.world_size = self.roster.world_size
        self.generation.alive = set(range(self.generation.world_size))
        self._gave_up, self.failure, self._adopting = {}, None, False
        self._watch_generation()
        self._note_start(moved)
        self._tell_all("start", order)
        if self.preempting:
            self._tell_all("save", {})

    def _note_start(self, moved: list[list[int]]) -> None:
        """The line that a coordinator after us learns the binding from; a few nodes are listed for people too."""
        listed = self.roster.slots.items() if len(self.roster.slots) <= NODES_LISTED else [(slot, node) for slot, node in moved]
        nodes = [{"slot": slot, "node": node, "host": self.roster.host(node)} for slot, node in listed]
        facts = {"slots": len(self.roster.slots), "moved": moved, "world_size": self.generation.world_size}
        self._note("start", {"nodes": nodes, **facts, "restarts": self.policy.restarts})

    def _said(self, event: EvidenceEvent) -> None:
        what = event.body["what"]
        if what == "preempted":
            self._preempt(float(event.body.get("age_s") or 0.0))
        elif what == "held":
            self._held(event.node, event.body["holdings"])
        elif what == "note":
            self._note(event.body["kind"], {"node": event.node, **event.body, **self._hosts_named(event)})
        elif event.generation == self.generation.number:
            self._said_of_generation(what, event.body)

    def _said_of_generation(self, what: str, body: Mapping[str, Any]) -> None:
        match what:
            case "loaded":
                self._loaded(body)
            case "committed":
                self._committed(body)
            case "refused":
                self._refused(body)
            case "unread":
                self._unread(body)
            case "corrupted":
                self._corrupted(body)
            case "compared":
                self._sound_step = self.committed_step or 0
                self._note("compared", {"step": body.get("step"), "sound_step": self._sound_step})
            case "exception":
                self._raised(body)
            case "undead":
                self._undead(body)
            case "section" | "finished" | "retired" | "waited":
                self._note(what, body)

    def _raised(self, body: Mapping[str, Any]) -> None:
        known = {name: body.get(name) for name in ("at", "step", "sample")}
        self.generation.raised[body["rank"]] = Raised(body.get("type", ""), body["text"], **known)

    def _loaded(self, body: Mapping[str, Any]) -> None:
        if body["rank"] not in self.generation.loaded:
            self.generation.loaded.add(body["rank"])
            if len(self.generation.loaded) == self.generation.world_size:
                self._note("loaded", {"step": body["step"]})

    def _committed(self, body: Mapping[str, Any]) -> None:
        if body["step"] not in self.generation.committed:
            self.generation.committed.add(body["step"])
            self.committed_step = max(self.committed_step or 0, body["step"])
            self._note("committed", body)

    def _refused(self, body: Mapping[str, Any]) -> None:
        """A checkpoint failed verification: its generation's base, which the next claim then leaves out."""
        if body not in self.generation.refused:
            self.generation.refused.append(body)
            self.refused.add((CheckpointId(body["step"], body["generation"]), body["tier"]))
            self._note("refused", body)

    def _unread(self, body: Mapping[str, Any]) -> None:
        """The base could not be read on a node, which is no damage: no claim may leave it out."""
        node = self.roster.node_of(body["rank"])
        if node not in self.generation.unread:
            self.generation.unread[node] = body
            self._note("unread", {**body, "node": node, "host": self.roster.host(node)})

    def _corrupted(self, body: Mapping[str, Any]) -> None:
        """Numbers are wrong that a rank computes or holds. What was saved since all were last shown to be right goes too."""
        if self.generation.corrupted is not None:
            return
        ranks, nodes = self._named(body["ranks"])
        sound = body.get("sound_step")
        facts = {"ranks": ranks, "found": body["found"], "sound_step": (self._sound_step or 0) if sound is None else sound}
        self.generation.corrupted = facts
        self._note("corruption", {**facts, "nodes": nodes, "hosts": [self.roster.host(node) for node in nodes]})

    def _named(self, ranks: Iterable[int]) -> tuple[list[int], list[int]]:
        """The ranks of this generation among those that somebody names, and their nodes."""
        known = [rank for rank in ranks if 0 <= rank < self.generation.world_size]
        return known, sorted({self.roster.node_of(rank) for rank in known})

    def _hosts_named(self, event: EvidenceEvent) -> dict[str, list[str | None]]:
        """Where the ranks are that a note is about."""
        named = event.body.get("ranks", ()) if event.generation == self.generation.number else ()
        _, nodes = self._named(named)
        return {"hosts": [self.roster.host(node) for node in nodes]} if nodes else {}

    # --- asked to stop ------------------------------------------------------------------------------------------------

    def _preempt(self, age_s: float) -> None:
        """`age_s`: how long ago the agent was signalled, where it could not say so at once."""
        if self.preempting:
            return
        self.preempting = True
        self._preempted_s = self._now_s - age_s
        self._note("preempted", {})
        if self._ending is not None:
            self._ending = Exit.PREEMPTED, "asked to stop", *self._ending[2:]
        elif self.phase is Phase.RUNNING and self.generation.alive:
            self._save_or_stop()
        elif self.phase is not Phase.STOPPING:
            self._end(Exit.PREEMPTED, "asked to stop")

    def _save_or_stop(self) -> None:
        """A script is not known to hear "save"; the builtin trainer saves at the end of its step and exits, unless it has not yet begun:
        then there is nothing to save."""
        has_begun = self._adopting or len(self.generation.loaded) == self.generation.world_size
        if self._is_script or not has_begun:
            self._stop_workers()
        else:
            self._tell_all("save", {})

    # --- how a generation ends ----------------------------------------------------------------------------------------

    def _exited(self, event: Exited) -> None:
        self._died_after_all(event.node, (each.rank for each in event.exits))
        if event.generation == self.generation.number and event.node in self.roster.slot_of:
            self._ended(event.exits)

    def _ended(self, exits: Iterable[Ended]) -> None:
        new = [each for each in exits if each.rank in self.generation.alive]
        for each in new:
            self.generation.alive.discard(each.rank)
            self.generation.exits.append(each)
            self.generation.best_step = max(self.generation.best_step, each.step)
            if not each.asked and each.code not in self._together:
                self.generation.failed_nodes.add(each.node)
        self.best_step = max(self.best_step, self.generation.best_step)
        if self.watch is not None and self.phase is Phase.RUNNING:
            self.watch.ended(each.rank for each in new)
        failed = any(each.code not in self._together for each in new)
        if self.phase is Phase.RUNNING and failed and self.generation.alive:
            self._stop_workers()
        if new and not self.generation.alive and self.phase in (Phase.RUNNING, Phase.STOPPING):
            self._generation_over()

    def _stop_workers(self) -> None:
        self._enter(Phase.STOPPING)
        self._tell_all("stop", self._stop_body())

    def _stop_body(self) -> dict[str, Any]:
        """How long a script may take to save by itself when it is the run that is asked to stop; one that hangs has nothing to save."""
        if self._is_script and self._preempted_s is not None:
            return {"grace_s": max(0.0, GRACE_SHARE * self.config.grace_s - (self._now_s - self._preempted_s))}
        return {"grace_s": 0.0} if self.generation.hang is not None else {}

    def _generation_over(self) -> None:
        codes = {each.code for each in self.generation.exits}
        if codes == {0} and not (self.preempting and self._is_script):  # a script may well end with 0 when it is told to stop
            self._end(Exit.COMPLETED, "all ranks finished")
        elif Exit.SUPERSEDED in codes & self._together:
            self._end(Exit.SUPERSEDED, "a newer generation has claimed the run")
        elif self.generation.corrupted is not None:
            self._decide(self._cause())
        elif self.preempting:
            self._end(Exit.PREEMPTED, "asked to stop")
        elif self.generation.unread and len(self.generation.loaded) < self.generation.world_size:
            self._end_unread()
        elif (
            self.generation.refused
            or not self.generation.known
            or (self.generation.regroups and not self.generation.failed_nodes)
        ):
            self._go_on()
        else:
            self._decide(self._cause())

    def _end_unread(self) -> None:
        """Another attempt finds the chain as it is; where only some nodes could not read, it leaves them out."""
        nodes = sorted(self.generation.unread)
        node, body = nodes[0], self.generation.unread[nodes[0]]
        host = self.roster.host(node)
        elsewhere = f" (and {len(nodes) - 1} more)" if len(nodes) > 1 else ""
        what = f"step {body['step']} of generation {body['generation']} on {body['tier']}: {body['name']}: {body['reason']}"
        text = f"{host or f'node {node}'}{elsewhere} could not read {what}; this is not treated as damage, and nothing is deleted"
        cause = Cause(
            CauseKind.STORAGE, f"{CauseKind.STORAGE}: unread", text, body["rank"], node, host, self.best_step, outside=True
        )
        self._note_failure(cause)
        everywhere = 1 < len(self.roster.slots) == len(nodes)
        self._end(Exit.RETRY_ELSEWHERE, text, cause, () if everywhere else tuple(nodes))

    def _cause(self) -> Cause:
        hosts = {node: member.host for node, member in self.roster.members.items() if member.host}
        if (found := self.generation.corrupted) is not None:
            nodes = {rank: self.roster.node_of(rank) for rank in found["ranks"]}
            return corruption_cause(found["found"], found["ranks"], nodes, hosts, self.generation.best_step)
        if (hang := self.generation.hang) is not None:
            nodes = {rank: self.roster.node_of(rank) for rank in hang.ranks}
            return hang_cause(hang, nodes, hosts, self.generation.best_step, self.generation.exits)
        return cause_of(self.generation.exits, self.generation.raised, hosts, script=self._is_script)

    def _decide(self, cause: Cause) -> None:
        """What follows from a failure: the next generation, perhaps without a suspect, or the verdict."""
        self._note_failure(cause)
        self.policy.progressed(self._new_steps(cause))
        decision = self.policy.failed(cause, spare_nodes=self.roster.spares())
        if cause.kind in FAULTY and cause.node is not None and self.policy.judges:
            self.roster.barred.add(cause.node)
        if self.preempting:
            decision = RestartDecision(Exit.PREEMPTED, "asked to stop")
        if decision.verdict is not None:
            suspects = self._suspects(cause) if decision.verdict in (Exit.RETRY_ELSEWHERE, Exit.PREEMPTED) else ()
            self._end_soundly(decision.verdict, decision.why, cause, suspects)
            return
        for node in decision.exclude:
            self.roster.members[node].excluded = True
            self._note("excluded", {"node": node, "host": self.roster.host(node), "why": decision.why})
        self._go_on()

    def _suspects(self, cause: Cause) -> tuple[int, ...]:
        if cause.node is not None or self.generation.corrupted is None:
            return () if cause.node is None else (cause.node,)
        return tuple(sorted({self.roster.node_of(rank) for rank in self.generation.corrupted["ranks"]}))

    def _end_soundly(self, exit_code: Exit, why: str, cause: Cause | None, suspects: tuple[int, ...]) -> None:
        """Ends the attempt; before that a claim undoes what is not sound, so that no later attempt goes on from it."""
        if self.generation.corrupted is None:
            self._end(exit_code, why, cause, suspects)
            return
        self._ending, self.holdings = (exit_code, why, cause, suspects), {}
        self._make_claim()

    def _new_steps(self, cause: Cause) -> int:
        """Steps that no generation before had reached. A script's own count begins anew with each start, so all of its steps count."""
        if self._is_script:
            return self.generation.best_step
        before = max(self.reached, self.generation.base.step if self.generation.base else 0)
        self.reached = max(before, cause.step, self.generation.best_step)
        return self.reached - before

    def _note_failure(self, cause: Cause) -> None:
        self.failure = cause
        facts = {"fingerprint": cause.fingerprint, "cause": cause.text, "rank": cause.rank, "node": cause.node}
        where = {"host": cause.host, "step": cause.step, "sample": cause.sample}
        self._note("failure", {"cause_kind": str(cause.kind), **facts, **where})

    def _end(self, exit_code: Exit, cause: str, failure: Cause | None = None, suspects: tuple[int, ...] = ()) -> None:
        self._enter(Phase.ENDED)
        self.verdict, self.cause = exit_code, cause
        self._note("end", {"verdict": exit_code.name.lower(), "exit_code": int(exit_code), "cause": cause})
        named = tuple(sorted({*suspects, *self.roster.barred, *self._undying})) if exit_code is not Exit.COMPLETED else suspects
        self._out.append(Finish(exit_code, cause, failure, named, self.best_step, self.committed_step))
        self._tell_all("stop", {"exit_code": int(exit_code)})

    # --- ways to speak ------------------------------------------------------------------------------------------------

    def _tell_all(self, kind: str, body: Mapping[str, Any]) -> None:
        self._out.append(Broadcast(kind, self.generation.number, body))

    def _note(self, kind: str, body: Mapping[str, Any]) -> None:
        self._out.append(Note(kind, self.generation.number, body))

    def _timeout(self, name: str) -> float:
        return self._timeouts[name].floor_s


def whole_captures(config: RunConfig, holdings: Iterable[Iterable[Mapping[str, Any]]]) -> dict[CheckpointId, str]:
    """The captures of which some node holds every rank's part, with the hash of the manifest that follows from the parts."""
    parts: dict[CheckpointId, dict[int, str]] = {}
    for held in holdings:
        for capture in held:
            checkpoint = CheckpointId(capture["step"], capture["generation"])
            parts.setdefault(checkpoint, {})[capture["rank"]] = capture["part_xxh3_128"]
    found = {}
    for checkpoint, by_rank in parts.items():
        if by_rank.keys() == set(range(config.mesh.world_size)) and config.run is not None:
            manifest = memory_manifest(config.run, checkpoint, config.mesh, [by_rank[rank] for rank in sorted(by_rank)])
            found[checkpoint] = xxhash.xxh3_128_hexdigest(manifest)
    return found
