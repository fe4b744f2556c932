"""Tests coordinators over one chain in memory, with nodes that die, disconnect and return, undying workers and sockets that do not open:
generations never overlap, only computing lasts, and every run ends."""

from collections import deque
from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from headway.runner.contract import (
    DEFAULT_TIMEOUTS,
    Base,
    Checkpoint,
    CheckpointId,
    Exit,
    Mesh,
    Restart,
    RunConfig,
    Tier,
    Timeout,
    Trainer,
    journal,
    orders,
)
from headway.runner.coordinator.causes import Ended
from headway.runner.coordinator.events import (
    Action,
    Beat,
    Broadcast,
    Claimed,
    ClaimRefused,
    DropConnection,
    Event,
    Exited,
    Finish,
    Joined,
    Lost,
    MakeClaim,
    Note,
    Send,
    Tick,
)
from headway.runner.coordinator.machine import Coordinator
from headway.runner.coordinator.state import ENDED_S, SURVEY_S, Inherited, Phase
from headway.runner.health.watch import Findings, Hang, RankBeat, Watch
from tests.support.coordinator import evidence

pytestmark = pytest.mark.slow

STEPS = 100
# Far more rounds than any run here needs from any state, its timeouts included.
ROUNDS, ROUND_S = 600, 0.5
AGENT_S, JOIN_S, REPLACE_S = 5.0, 50.0, 20.0
TERMINATE_S, KILL_S, LISTEN_S, STORE_S = 5.0, 8.0, 8.0, 30.0
GRACE_S = 10.0
SILENT_S = DEFAULT_TIMEOUTS["node"].floor_s
rarely = st.integers(0, 7).map(lambda n: n == 7)  # for what ends most runs
anywhere = st.integers(0, 9)


class Watching(Watch):
    """Finds the hang that it is given."""

    hang: Hang | None = None

    def tick(self, now_s: float) -> Findings:
        found, self.hang = self.hang, None
        return Findings(hang=found)


@dataclass
class Worker:
    """A worker process: its exit code is None while it runs. `killed`: its agent was ordered to end it."""

    generation: int
    step: int = 0
    moved_s: float = 0.0
    end: int | None = None
    killed: bool = False
    saves: bool = False
    # SIGKILL does not end it, and it does not notice its peers.
    undying: bool = False

    @property
    def runs(self) -> bool:
        return self.end is None


@dataclass
class Seat:
    """A coordinator in its term, and the nodes that joined it. It continues until it learns of its successor."""

    term: int
    machine: Coordinator
    links: "dict[int, Wire]" = field(default_factory=dict)
    claiming: MakeClaim | None = None
    heard_steps_s: float = float("-inf")  # a heartbeat last showed a new step
    furthest: int = 0
    over: bool = False


@dataclass(eq=False)
class Wire:
    """A connection of a node with a coordinator, and its messages in flight."""

    node: int
    seat: Seat
    ended: bool = False
    outbox: deque[Event] = field(default_factory=deque)
    inbox: deque[Send] = field(default_factory=deque)


@dataclass
class Agent:
    """A node: `dead` with all its processes, or `cut` off from every coordinator while its workers continue."""

    node: int
    wire: Wire | None = None
    dead: bool = False
    cut: bool = False
    stopping: bool = False
    over: bool = False
    generation: int = 0
    port: int = 4000
    deaf: bool = False  # its socket does not open
    captures: list[dict[str, object]] = field(default_factory=list)  # in its keeper's memory
    workers: dict[int, Worker] = field(default_factory=dict)

    @property
    def open_port(self) -> int | None:
        return None if self.deaf else self.port

    def say(self, event: Event) -> None:
        if self.wire is not None:
            self.wire.outbox.append(event)

    def exited(self, *ranks: int) -> Exited:
        ends = []
        for rank in ranks:
            worker = self.workers[rank]
            assert worker.end is not None
            ends.append(Ended(rank, self.node, worker.end, f"ended with {worker.end}", worker.killed, worker.step))
        return Exited(self.node, self.generation, tuple(ends))


class CoordinatorMachine(RuleBasedStateMachine):
    @initialize(
        slots=st.integers(1, 3),
        spares=st.integers(0, 2),
        procs=st.integers(1, 2),
        kind=st.sampled_from(["builtin", "script"]),
        budget=st.integers(0, 4),
        no_progress=st.integers(1, 4),
        goes_well=st.integers(0, 4).map(bool),
        in_memory=st.booleans(),
        elastic=st.booleans(),
        replaces=st.booleans(),
        resets=st.booleans(),
    )
    def begin(
        self,
        slots: int,
        spares: int,
        procs: int,
        kind: str,
        budget: int,
        no_progress: int,
        goes_well: bool,
        in_memory: bool,
        elastic: bool,
        replaces: bool,
        resets: bool,
    ) -> None:
        # Whether ranks notice that a peer's node is gone, or stall.
        self.resets = resets
        tiers = (Tier("memory", 5), Tier("shared", 10)) if in_memory else (Tier("shared", 10),)
        self.config = RunConfig(
            slots=slots,
            spares=spares,
            min_slots=1 if elastic and kind == "script" else None,
            procs_per_slot=procs,
            mesh=Mesh(dp_shard=slots * procs),
            trainer=Trainer(kind),
            spec_hash="",
            checkpoint=Checkpoint(tiers if kind == "builtin" else ()),
            run="run-1",
            restart=Restart(budget, refill_steps=20, no_progress=no_progress),
            timeouts={
                "join": Timeout(JOIN_S),
                "agent": Timeout(AGENT_S),
                "replace": Timeout(REPLACE_S if replaces else 0.0),
                "terminate": Timeout(TERMINATE_S),
                "kill": Timeout(KILL_S),
                "listen": Timeout(LISTEN_S),
                "store": Timeout(STORE_S),
            },
            grace_s=GRACE_S,
        )
        self.now_s, self.ports = 0.0, 4000
        self.agents = [Agent(node) for node in range(slots + spares)]
        self.claimed = 0  # the newest generation on the chain
        self.bases: dict[int, Base | None] = {}
        self.commits: list[Base] = []  # the valid ones, oldest first
        self.idle = 0
        # From the journal: generation, slot -> node.
        self.starts: list[tuple[int, dict[int, int]]] = []
        self.failures = 0  # from the journal
        # The newest generation that any agent was ordered to start.
        self.started = 0
        self.worlds: dict[int, int] = {}  # generation -> ranks
        # From the journal: ranks for which nodes were given up.
        self.undying: dict[int, tuple[int, ...]] = {}
        # Nodes that were given up or ordered to end their ranks.
        self.let_go: set[int] = set()
        self.preempted_s: float | None = None
        self.superseded = False
        self.verdict: Finish | None = None
        self.terms = 0
        self.seats: list[Seat] = []
        self.take_seat()
        if goes_well:
            self.every_process_acts()

    # --- the coordinators ---------------------------------------------------------------------------------------------

    def take_seat(self) -> Seat:
        """A coordinator starts: it takes the next term and reads chain and journal."""
        self.terms += 1
        if self.claimed == 0:
            machine = Coordinator(self.config, Inherited(), self.now_s, Watching)
        else:
            generation, slots = self.starts[-1] if self.starts else (0, None)
            inherited = Inherited(
                self.claimed,
                self.bases[self.claimed],
                restarts=self.failures,
                slots=slots or {},
                started=generation == self.claimed,
                undying={node: frozenset(ranks) for node, ranks in self.undying.items()},
            )
            machine = Coordinator(self.config, inherited, self.now_s, Watching)
        self.seats.append(Seat(self.terms, machine))
        return self.seats[-1]

    @property
    def seat(self) -> Seat:
        """The one in charge."""
        return self.seats[-1]

    def leave(self, seat: Seat) -> None:
        seat.over, seat.claiming = True, None
        self.seats.remove(seat)
        for agent in self.agents:
            if agent.wire is not None and agent.wire.seat is seat:
                agent.wire.ended, agent.wire = True, None

    def is_in_charge(self, seat: Seat) -> bool:
        """The store check before each claim and verdict; a superseded coordinator ends."""
        if seat.term == self.terms:
            return True
        self.leave(seat)
        return False

    def handle(self, seat: Seat, event: Event) -> None:
        if seat.over:
            return
        if isinstance(event, Beat):
            step = max((beat.step for beat in event.ranks.values()), default=0)
            if step > seat.furthest and event.generation == seat.machine.generation.number:
                seat.furthest, seat.heard_steps_s = step, self.now_s
        actions = seat.machine.handle(event, self.now_s)
        if isinstance(event, Tick):
            self.check_bound(seat.machine)
        notes = {action.entry.KIND for action in actions if isinstance(action, Note)}
        for action in actions:
            self.act(seat, action, notes)

    def check_bound(self, machine: Coordinator) -> None:
        """Only a computing generation lasts; a coordinator without heartbeats gives up no node."""
        members, bound_s = machine.roster.members.values(), float("inf")
        hears = any(member.connected and member.heard_at > self.now_s - ENDED_S for member in members)
        match machine.phase:
            case Phase.GATHERING:
                bound_s = JOIN_S
            case Phase.REPLACING:
                bound_s = REPLACE_S
            case Phase.SURVEYING:
                bound_s = SURVEY_S
            case Phase.CLAIMING:
                bound_s = STORE_S
            case Phase.RUNNING if not machine.generation.started and hears:
                bound_s = max(LISTEN_S, SILENT_S) + AGENT_S
            case Phase.STOPPING if hears:
                bound_s = max(TERMINATE_S, GRACE_S) + KILL_S + max(AGENT_S, SILENT_S)
        assert self.now_s - machine.phase_since_s <= bound_s, f"{machine.phase} lasts"

    def act(self, seat: Seat, action: Action, notes: set[str]) -> None:
        match action:
            case Send(node, generation, order):
                self.send(seat, node, generation, order)
            case Broadcast(generation, order):
                self.check_order(seat, action, notes)
                for node in list(seat.links):
                    self.send(seat, node, generation, order)
            case DropConnection(node):
                self.end_wire(seat.links.pop(node, None))
            case Note():
                self.note(seat, action)
            case MakeClaim():
                assert seat.claiming is None
                seat.claiming = action
            case Finish():
                if self.is_in_charge(seat) and self.verdict is None:
                    self.verdict = action

    def send(self, seat: Seat, node: int, generation: int, order: orders.Order) -> None:
        if isinstance(order, orders.Stop):
            self.let_go.add(node)
        if (wire := seat.links.get(node)) is not None and not wire.ended:
            wire.inbox.append(Send(node, generation, order))

    def note(self, seat: Seat, note: Note) -> None:
        match note.entry:
            case journal.Start(slots=count, moved=moved):
                slots = dict(seat.machine.roster.slots)
                assert slots == {slot: slot for slot in range(count or 0)} | dict(moved or ())
                self.starts.append((note.generation, slots))
            case journal.Failure():
                self.failures += 1
            case journal.LostNode(node=int(node), undying=undying):
                self.let_go.add(node)
                if undying is not None:
                    self.undying[node] = undying
                if seat.machine.phase is Phase.RUNNING and seat.machine.generation.number == self.started and self.whole():
                    assert self.now_s - seat.heard_steps_s >= ENDED_S, "a node is lost while steps go on"

    def check_order(self, seat: Seat, told: Broadcast, notes: set[str]) -> None:
        order = told.order
        if isinstance(order, orders.StartRanks):
            assert 0 < told.generation <= self.claimed, "a generation is started before its claim"
            roster = seat.machine.roster
            assert not roster.unfit.intersection(roster.slot_of), "a node computes that cannot"
            running = {
                agent.node for agent in self.agents for w in agent.workers.values() if w.runs and w.generation < told.generation
            }
            if seat is self.seat:
                assert running <= self.let_go, "an earlier generation still runs on a node that was not let go"
            self.worlds[told.generation] = order.slots * self.config.procs_per_slot
        if isinstance(order, orders.Stop) and order.exit_code is None and told.generation == self.started and seat is self.seat:
            why = notes & {"lost", "hang", "regroup", "preempted"} or self.preempted_s is not None
            assert why or not self.whole(), "a generation that runs everywhere is stopped for no reason"

    def answer_claim(self, seat: Seat) -> None:
        """The handling of MakeClaim in coordinator/main.py."""
        assert seat.claiming is not None
        wanted, seat.claiming = seat.claiming, None
        if not self.is_in_charge(seat):
            return
        base, had = self.base_of(wanted), bool(self.commits)
        if self.superseded:
            self.handle(seat, ClaimRefused(Exit.SUPERSEDED, "somebody else claimed"))
        elif base is None and had:
            self.handle(seat, ClaimRefused(Exit.UNVERIFIED, "none verifies"))
        else:
            self.append_claim(base)
            seat.furthest = 0
            self.handle(seat, Claimed(self.claimed, base, self.idle))

    def base_of(self, claim: MakeClaim) -> Base | None:
        """The newest commit that is not refused, or a newer capture in memory of the generation that counts."""
        stored = next((b for b in reversed(self.commits) if (b.checkpoint, "shared") not in claim.refused), None)
        kept = [Base(c.step, c.generation, hashed, "memory") for c, hashed in claim.held.items() if c.generation == self.claimed]
        return max([*kept, *([stored] if stored else [])], key=lambda base: base.step, default=None)

    def append_claim(self, base: Base | None) -> None:
        self.claimed, self.idle = self.claimed + 1, self.idle + 1
        self.bases[self.claimed] = base
        self.commits = [commit for commit in self.commits if base is not None and commit.step <= base.step]

    # --- the agents ---------------------------------------------------------------------------------------------------

    def connect(self, agent: Agent) -> None:
        """Connects to the coordinator that published itself last."""
        agent.wire = Wire(agent.node, self.seat)
        running = tuple(rank for rank, worker in agent.workers.items() if worker.runs)
        agent.say(Joined(agent.node, f"host-{agent.node}", agent.generation, running, None, agent.open_port))
        if ended := [rank for rank, worker in agent.workers.items() if not worker.runs]:
            agent.say(agent.exited(*ended))
        if agent.stopping:
            agent.say(evidence(agent.node, agent.generation, {"what": "preempted"}))

    def end_wire(self, wire: Wire | None) -> None:
        """Its messages in flight are lost."""
        if wire is not None:
            wire.ended = True
            wire.outbox.clear()
            wire.inbox.clear()
            agent = self.agents[wire.node]
            agent.wire = None if agent.wire is wire else agent.wire

    def disconnect(self, agent: Agent) -> None:
        wire = agent.wire
        self.end_wire(wire)
        if wire is not None and wire.seat.links.get(wire.node) is wire:
            del wire.seat.links[wire.node]
            self.handle(wire.seat, Lost(wire.node))

    def deliver(self, agent: Agent) -> None:
        wire = agent.wire
        assert wire is not None
        event = wire.outbox.popleft()
        if isinstance(event, Joined):
            wire.seat.links[agent.node] = wire
        self.handle(wire.seat, event)

    def obey(self, agent: Agent) -> None:
        assert agent.wire is not None
        sent = agent.wire.inbox.popleft()
        match sent.order:
            case orders.StartRanks() as order if sent.generation > agent.generation:
                self.start(agent, sent.generation, order)
            case orders.Save():
                for worker in agent.workers.values():
                    worker.saves = True
            case orders.Survey():
                agent.say(evidence(agent.node, agent.generation, {"what": "held", "holdings": list(agent.captures)}))
            case orders.Stop(exit_code=code):
                for worker in agent.workers.values():
                    worker.killed |= worker.runs and worker.generation <= sent.generation
                agent.over |= code is not None

    def start(self, agent: Agent, generation: int, order: orders.StartRanks) -> None:
        """End remaining ranks and, with a slot, start new ones."""
        slot_of = {slot: slot for slot in range(order.slots)} | dict(order.moved)
        slots = [slot for slot, node in slot_of.items() if node == agent.node]
        base, procs = self.bases[generation], self.config.procs_per_slot
        step = base.step if base else 0
        agent.generation, agent.workers = generation, {}
        self.started = max(self.started, generation)
        self.let_go.discard(agent.node)
        for slot in slots:
            agent.workers = {slot * procs + i: Worker(generation, step, self.now_s) for i in range(procs)}
        if 0 in slots:
            self.ports += 1
            agent.port = self.ports
        self.beat(agent)

    def beat(self, agent: Agent) -> None:
        seen = {rank: RankBeat(w.step, "compute", w.step, self.now_s - w.moved_s) for rank, w in agent.workers.items() if w.runs}
        agent.say(Beat(agent.node, agent.generation, agent.open_port, seen))
        if stay := [{"rank": rank, "state": "D"} for rank, w in agent.workers.items() if w.runs and w.killed and w.undying]:
            agent.say(evidence(agent.node, agent.generation, {"what": "undead", "workers": stay}))

    # --- the workers --------------------------------------------------------------------------------------------------

    def gang(self) -> dict[int, Worker]:
        """All workers of the newest generation that was started, by rank."""
        found = {
            rank: worker for agent in self.agents for rank, worker in agent.workers.items() if worker.generation == self.started
        }
        return found if self.started else {}

    def whole(self) -> bool:
        gang = self.gang()
        return 0 < len(gang) == self.worlds.get(self.started) and all(w.runs and not w.killed for w in gang.values())

    def end(self, rank: int, code: int) -> None:
        for agent in self.agents:
            worker = agent.workers.get(rank)
            stays = worker is not None and worker.undying and code == 1  # the consequence of its peers' ends
            if worker is not None and worker.runs and worker.generation == self.started and not stays:
                worker.end = code
                agent.say(agent.exited(rank))

    def report_of(self, rank: int, what: str, **facts: object) -> None:
        for agent in self.agents:
            if rank in agent.workers and agent.generation == self.started:
                agent.say(evidence(agent.node, agent.generation, {"what": what, "rank": rank, **facts}))

    def workers_act(self, to_the_end: bool) -> None:
        """Each worker acts on its own: it dies of SIGKILL, fails when a peer has ended, saves, or trains (to the end).

        A worker that waits for a peer that never started waits forever.
        """
        for agent in self.agents:
            for rank, worker in agent.workers.items():
                if worker.runs and worker.killed and not worker.undying:
                    worker.end = -9
                    agent.say(agent.exited(rank))
        gang = self.gang()
        gone = any(agent.dead or agent.generation < self.started for agent in self.bound_agents())
        if gang and ((gone and self.resets) or any(not worker.runs for worker in gang.values())):
            for rank in gang:
                self.end(rank, 1)
        saves = any(worker.saves for worker in gang.values())
        if self.whole() and (saves or to_the_end):
            self.train(0 if saves else STEPS)
            for rank in gang:
                self.end(rank, Exit.PREEMPTED if saves else 0)

    def bound_agents(self) -> list[Agent]:
        """The nodes that had a slot at the newest start, and have lost their workers since."""
        slots = next((slots for generation, slots in self.starts if generation == self.started), {})
        return [self.agents[node] for node in slots.values() if not self.is_on_its_way(self.agents[node])]

    def is_on_its_way(self, agent: Agent) -> bool:
        """Whether the order to start has not been obeyed there yet."""
        return agent.wire is not None and any(
            isinstance(o.order, orders.StartRanks) and o.generation == self.started for o in agent.wire.inbox
        )

    def train(self, steps: int) -> None:
        for rank, worker in self.gang().items():
            if worker.step == 0 or steps:
                self.report_of(rank, "loaded", step=worker.step)
            worker.step, worker.moved_s = min(STEPS, worker.step + steps), self.now_s

    # --- rules: normal operation --------------------------------------------------------------------------------------

    def pick(self, at: int) -> Agent:
        return self.agents[at % len(self.agents)]

    @rule(at=anywhere)
    def connects(self, at: int) -> None:
        agent = self.pick(at)
        if agent.wire is None and self.seats and not (agent.over or agent.dead or agent.cut):
            self.connect(agent)

    @rule(at=anywhere, messages=st.integers(1, 4))
    def delivers(self, at: int, messages: int) -> None:
        agent = self.pick(at)
        for _ in range(messages):
            if agent.wire is not None and agent.wire.outbox and not agent.cut:
                self.deliver(agent)

    @rule(at=anywhere, messages=st.integers(1, 4))
    def obeys(self, at: int, messages: int) -> None:
        agent = self.pick(at)
        for _ in range(messages):
            if agent.wire is not None and agent.wire.inbox and not agent.cut:
                self.obey(agent)

    @rule(at=anywhere)
    def beats(self, at: int) -> None:
        self.beat(self.pick(at))

    @rule(at=anywhere)
    def claims(self, at: int) -> None:
        if self.seats and (seat := self.seats[at % len(self.seats)]).claiming is not None:
            self.answer_claim(seat)

    @rule()
    def every_process_acts(self) -> None:
        """Some fair rounds; without them few examples would get as far as training."""
        for _ in range(3):
            self.round(to_the_end=False)
        if self.whole():
            self.train_and_save(10, saves=True)

    @rule()
    def time_passes_and_every_process_acts(self) -> None:
        for _ in range(4):
            self.round(to_the_end=False)
            if self.whole():
                self.train_and_save(2, saves=True)
            self.ticks(1.0)

    @precondition(lambda self: self.whole())
    @rule(steps=st.integers(1, 30), saves=st.booleans())
    def trains(self, steps: int, saves: bool) -> None:
        self.train_and_save(steps, saves)

    def train_and_save(self, steps: int, saves: bool) -> None:
        self.train(steps)
        step = next(iter(self.gang().values())).step
        if saves and self.config.checkpoint.has("memory"):
            for agent in self.agents:
                facts = {"step": step, "generation": self.started, "bytes": 1}
                agent.captures = [{"rank": rank, "part_xxh3_128": "ab" * 16, **facts} for rank in agent.workers]
        # The chain refuses commits of another generation.
        may = self.started == self.claimed
        if saves and may and self.config.checkpoint.tiers and not any(b.step >= step for b in self.commits):
            self.commits.append(Base(step, self.started, "ab"))
            self.idle = 0
            self.report_of(0, "committed", step=step, save_s=0.5, bytes=1)

    @rule(seconds=st.sampled_from([0.1, 1.0]))
    def ticks(self, seconds: float) -> None:
        self.now_s += seconds
        for seat in list(self.seats):
            self.handle(seat, Tick())

    # --- rules: faults ------------------------------------------------------------------------------------------------

    @rule(at=anywhere, again=st.booleans())
    def loses_connection(self, at: int, again: bool) -> None:
        agent = self.pick(at)
        if agent.wire is not None:
            self.disconnect(agent)
            if again and self.seats and not (agent.over or agent.cut):
                self.connect(agent)

    @rule(at=anywhere)
    def is_cut_off(self, at: int) -> None:
        """It continues, and neither receives nor sends."""
        self.pick(at).cut = True

    @rule(at=anywhere)
    def is_connected_again(self, at: int) -> None:
        self.pick(at).cut = False

    @precondition(lambda self: self.gang())
    @rule(at=anywhere, code=st.sampled_from([-9, -11, 1]))
    def a_worker_dies(self, at: int, code: int) -> None:
        gang = self.gang()
        self.end(sorted(gang)[at % len(gang)], code)

    @precondition(lambda self: self.gang())
    @rule(at=anywhere, lets_go=st.booleans())
    def a_worker_becomes_immune_to_signals(self, at: int, lets_go: bool) -> None:
        workers = [(agent, rank, worker) for agent in self.agents for rank, worker in agent.workers.items() if worker.runs]
        if not workers:
            return
        _, _, worker = workers[at % len(workers)]
        worker.undying = not lets_go
        if not lets_go:
            for other in [rank for rank, each in self.gang().items() if each is not worker][:1]:  # as one that has lost it
                self.end(other, 1)

    @rule(at=anywhere, deaf=st.booleans())
    def a_node_cannot_listen(self, at: int, deaf: bool) -> None:
        self.pick(at).deaf = deaf

    @rule(at=anywhere, noticed=st.booleans(), really=st.booleans())
    def a_node_dies(self, at: int, noticed: bool, really: bool) -> None:
        agent = self.pick(at)
        if really and not agent.over:
            agent.dead, agent.workers, agent.captures = True, {}, []
            if noticed:
                self.disconnect(agent)
            else:
                agent.cut = True

    @rule(at=anywhere)
    def a_node_restarts(self, at: int) -> None:
        agent = self.pick(at)
        if not agent.over:
            self.disconnect(agent)
            self.agents[agent.node] = Agent(agent.node, stopping=agent.stopping)
            if self.seats:
                self.connect(self.agents[agent.node])

    @rule(claim_stands=st.booleans())
    def the_coordinator_dies(self, claim_stands: bool) -> None:
        """Possibly between its claim and the answer. Another one starts."""
        if self.verdict is not None or not self.seats:
            return
        if self.seat.claiming is not None and claim_stands and not self.superseded:
            base = self.base_of(self.seat.claiming)
            if base is not None or not self.commits:
                self.append_claim(base)
        self.leave(self.seat)
        self.take_seat()

    @rule()
    def another_coordinator_takes_over(self) -> None:
        """Neither the previous coordinator nor its connected nodes are notified yet."""
        if self.verdict is None:
            self.take_seat()

    @precondition(lambda self: len(self.seats) > 1)
    @rule()
    def a_coordinator_learns_of_its_successor(self) -> None:
        self.leave(self.seats[0])

    @precondition(lambda self: self.whole() and self.bases.get(self.started) is not None)
    @rule()
    def the_base_does_not_verify(self) -> None:
        base = self.bases[self.started]
        assert base is not None
        self.report_of(0, "refused", step=base.step, generation=base.generation, tier=base.tier, name="x", reason="changed")
        for rank in self.gang():
            self.end(rank, Exit.UNVERIFIED)

    @precondition(lambda self: self.whole())
    @rule(at=anywhere, named=st.booleans())
    def a_hang_is_found(self, at: int, named: bool) -> None:
        watch = self.seat.machine.watch if self.seats else None
        if isinstance(watch, Watching):
            culprit = (at % self.worlds[self.started],) if named else ()
            watch.hang = Hang(culprit, "compute", 4.0, "it does nothing")

    @rule(at=anywhere, really=rarely)
    def is_preempted(self, at: int, really: bool) -> None:
        agent = self.pick(at)
        if not really or agent.dead:
            return
        self.preempted_s = self.now_s if self.preempted_s is None else self.preempted_s
        agent.stopping = True
        agent.say(evidence(agent.node, agent.generation, {"what": "preempted"}))

    @precondition(lambda self: self.whole())
    @rule(really=rarely)
    def is_superseded(self, really: bool) -> None:
        if not really:
            return
        self.superseded = True
        for rank in self.gang():
            self.end(rank, Exit.SUPERSEDED)

    # --- invariants ---------------------------------------------------------------------------------------------------

    @invariant()
    def the_budget_is_respected(self) -> None:
        for seat in getattr(self, "seats", []):
            assert 0 <= seat.machine.policy.budget <= self.config.restart.budget

    @invariant()
    def the_verdict_matches_the_events(self) -> None:
        if getattr(self, "verdict", None) is None:
            return
        assert self.verdict is not None
        match self.verdict.exit_code:
            case Exit.COMPLETED:
                assert {worker.end for worker in self.gang().values()} <= {0}
            case Exit.PREEMPTED:
                assert self.preempted_s is not None
            case Exit.SUPERSEDED:
                assert self.superseded
            case Exit.UNVERIFIED:
                assert self.commits

    @invariant()
    def a_refused_base_is_not_claimed_again(self) -> None:
        for seat in getattr(self, "seats", []):
            generation, refused = seat.machine.generation, seat.machine.refused
            if generation.base is not None and not generation.refused:
                base = generation.base
                assert (CheckpointId(base.step, base.generation), base.tier) not in refused

    @invariant()
    def every_slot_has_a_separate_node(self) -> None:
        for seat in getattr(self, "seats", []):
            roster = seat.machine.roster
            assert len(set(roster.slots.values())) == len(roster.slots) == len(roster.slot_of)
            assert roster.unbound == roster.members.keys() - roster.slot_of.keys()

    # --- every run ends -----------------------------------------------------------------------------------------------

    def round(self, to_the_end: bool) -> None:
        """Deliver all messages in flight, and let every process do its pending work."""
        for agent in self.agents:
            if agent.wire is None and self.seats and not (agent.over or agent.dead or agent.cut):
                self.connect(agent)
            while agent.wire is not None and agent.wire.outbox and not agent.cut:
                self.deliver(agent)
        for seat in list(self.seats):
            if seat.claiming is not None:
                self.answer_claim(seat)
        for agent in self.agents:
            while agent.wire is not None and agent.wire.inbox and not agent.cut:
                self.obey(agent)
            if not agent.dead:
                self.beat(agent)
        self.workers_act(to_the_end)

    def teardown(self) -> None:
        """Without further faults, and with dead and disconnected nodes staying so, the run ends at the latest when its awaited timeout has
        passed."""
        if not hasattr(self, "seats"):
            return
        for seat in self.seats[:-1]:
            self.leave(seat)
        if all(agent.dead or agent.cut for agent in self.agents):
            # A coordinator that no node can reach decides nothing.
            self.agents[0] = Agent(0)
        for _ in range(ROUNDS):
            if self.verdict is not None:
                return
            if not self.seats:
                self.take_seat()
            self.round(to_the_end=True)
            self.now_s += ROUND_S
            self.handle(self.seat, Tick())
        machine = self.seat.machine
        raise AssertionError(f"the run has not ended: {machine.phase}, {machine.generation}, {machine.roster}, {self.agents}")


TestCoordinatorMachine = CoordinatorMachine.TestCase
TestCoordinatorMachine.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
