"""Decides for the coordinator: events in, actions out; no I/O and no clock.

    gathering -> claiming -> running -> stopping -> surveying -> claiming ... -> ended

Nodes join and slots are bound to them; a claim on the chain makes a generation; its workers run from the claim's base; when one fails
all are stopped, and either the next generation is claimed, from what the nodes still hold in memory or from what was committed, or
the attempt ends with a verdict. A node that does not answer is given up only if something else indicates that it is dead. A
coordinator that comes back presumes that the newest generation runs where it was bound, and continues with it.
"""

from typing import get_args

from headway.runner.contract import RunConfig
from headway.runner.coordinator import ending, evidence, generations, joins, losses, preemption, progress, replicas
from headway.runner.coordinator.events import (
    Action,
    Beat,
    Claimed,
    ClaimRefused,
    Event,
    Evidence,
    Exited,
    Joined,
    Lost,
    Probed,
    Recorded,
    Tick,
)
from headway.runner.coordinator.state import SURVEY_S, Inherited, MakeWatch, Phase, State
from headway.runner.health.watch import Watch

# What a node reports once it has joined.
_HEARD = (Beat, Exited, Probed, Recorded, *get_args(Evidence))
# Between two events, most of them ticks. After a longer gap this process, not the nodes, was stopped.
STALL_S = 2.0


class Coordinator(State):
    """The state machine. `handle(event, now_s)` returns the actions; `now_s` is a monotonic clock."""

    def __init__(self, config: RunConfig, inherited: Inherited, now_s: float, watch: MakeWatch = Watch) -> None:
        super().__init__(config, inherited, now_s, watch)
        if inherited.slots:
            self.roster.presume(inherited.slots, inherited.hosts, now_s)
            if inherited.started:
                joins.presume_running(self)

    def handle(self, event: Event, now_s: float) -> list[Action]:
        self.actions, stalled_s = [], now_s - self.now_s
        self.now_s = now_s
        if stalled_s > STALL_S:
            self._slept(stalled_s)
        if isinstance(event, _HEARD) and (member := self.roster.members.get(event.node)) is not None:
            member.heard_at = now_s
            member.generation = max(member.generation, event.generation)
            self.generation.known |= event.generation == self.generation.number
        if self.phase is not Phase.ENDED:
            self._dispatch(event)
        return self.actions

    def waited_before(self, seconds: float) -> None:
        """Count what earlier coordinators of the attempt have waited for nodes, so that nodes that cannot reach each other, and take
        over again and again, do not wait without a limit."""
        if self.phase is Phase.GATHERING and not self.roster.slots:
            self.phase_since_s -= seconds

    def _dispatch(self, event: Event) -> None:
        match event:
            case Beat():
                progress.beat(self, event)
            case Joined():
                joins.joined(self, event)
            case Lost(node, unanswered):
                self.roster.disconnected(node, self.now_s, unanswered=unanswered)
            case Exited():
                replicas.exited(self, event)
            case Probed() | Recorded():
                progress.looked(self, event)
            case Claimed():
                generations.claimed(self, event)
            case ClaimRefused(exit_code, cause):
                ending.end_without_claim(self, exit_code, cause)
            case Tick():
                self._tick()
            case _:
                evidence.take(self, event)

    def _tick(self) -> None:
        match self.phase:
            case Phase.GATHERING:
                generations.check_gathering(self)
            case Phase.REPLACING:
                generations.check_replacing(self)
            case Phase.SURVEYING if self.waited_s > SURVEY_S:
                generations.make_claim(self)
            case Phase.CLAIMING:
                generations.check_claiming(self)
            case Phase.RUNNING if not self.generation.started:
                losses.check_starting(self)
            case Phase.STOPPING:
                losses.check_stopping(self)
        preemption.check_limit(self)
        preemption.check_preempted(self)
        if self.phase not in (Phase.ENDED, Phase.GATHERING, Phase.REPLACING):
            losses.check_nodes(self)
        if self.phase is Phase.RUNNING and self.generation.started:
            progress.check_progress(self)
            replicas.check(self)

    def _slept(self, stalled_s: float) -> None:
        """Shift all waits: this process was stopped or starved, so that nodes were not silent but unheard."""
        self.vitals.slept(stalled_s)
        if self.watch is not None:
            self.watch.slept(stalled_s)
        self.phase_since_s += stalled_s
        self.enough_since_s = None if self.enough_since_s is None else self.enough_since_s + stalled_s
        for member in self.roster.members.values():
            if member.gone_at is None:
                member.heard_at = self.now_s
            else:
                member.gone_at += stalled_s
