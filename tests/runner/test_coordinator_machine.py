"""The coordinator among simulated agents that lose connections, restart and are preempted: nothing overlaps, and every run ends."""

from collections import deque
from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from headway.runner.checkpoint.chain import Base, CheckpointId
from headway.runner.contract import Checkpoint, Exit, Mesh, Restart, RunConfig, Tier, Timeout, Trainer
from headway.runner.coordinator.state import (
    Action,
    Beat,
    Claimed,
    ClaimRefused,
    Coordinator,
    Event,
    Exited,
    Finish,
    Joined,
    Lost,
    MakeClaim,
    Phase,
    Said,
    Send,
    Tick,
)

pytestmark = pytest.mark.slow

STEPS = 100
ROUNDS = 400  # far more than any run here takes from wherever it stands
AGENT_S, JOIN_S = 5.0, 50.0
rarely = st.integers(0, 7).map(lambda n: n == 7)  # for what ends most runs


@dataclass
class Worker:
    """A worker process: its end is None while it runs. `killed`: its agent was told to end it."""

    generation: int
    step: int = 0
    end: int | None = None
    killed: bool = False
    saves: bool = False

    @property
    def runs(self) -> bool:
        return self.end is None


@dataclass
class Agent:
    """A node: its agent with what is under way on its connection, and the workers of the newest generation it started."""

    node: int
    connected: bool = False
    known: bool = False  # the coordinator has dealt with this connection's join
    stopping: bool = False
    over: bool = False
    generation: int = 0
    slot: int | None = None
    captures: list[dict[str, object]] = field(default_factory=list)  # in its keeper's memory
    port: int | None = None
    workers: dict[int, Worker] = field(default_factory=dict)
    outbox: deque[Event] = field(default_factory=deque)
    inbox: deque[Send] = field(default_factory=deque)

    def say(self, event: Event) -> None:
        if self.connected:
            self.outbox.append(event)

    def exited(self, rank: int) -> Exited:
        worker = self.workers[rank]
        assert worker.end is not None
        return Exited(self.node, worker.generation, rank, worker.end, f"ended with {worker.end}", worker.killed, worker.step)


class CoordinatorMachine(RuleBasedStateMachine):
    @initialize(
        slots=st.integers(1, 3),
        procs=st.integers(1, 2),
        kind=st.sampled_from(["builtin", "script"]),
        budget=st.integers(0, 4),
        no_progress=st.integers(1, 4),
        goes_well=st.booleans(),
        in_memory=st.booleans(),
    )
    def begin(self, slots: int, procs: int, kind: str, budget: int, no_progress: int, goes_well: bool, in_memory: bool) -> None:
        tiers = (Tier("memory", 5), Tier("disk", 10)) if in_memory else (Tier("disk", 10),)
        self.config = RunConfig(
            slots=slots,
            procs_per_slot=procs,
            mesh=Mesh(dp_shard=slots * procs),
            trainer=Trainer(kind),
            spec_hash="",
            checkpoint=Checkpoint(tiers if kind == "builtin" else ()),
            run="run-1",
            restart=Restart(budget, refill_steps=20, no_progress=no_progress),
            timeouts={"join": Timeout(JOIN_S), "agent": Timeout(AGENT_S)},
        )
        self.now_s, self.ports = 0.0, 4000
        self.agents = [Agent(node) for node in range(slots)]
        self.claimed = 0  # the newest generation on the chain
        self.bases: dict[int, Base | None] = {}
        self.commits: list[Base] = []  # what counts, oldest first
        self.idle = 0
        self.claiming: MakeClaim | None = None
        self.started = 0  # the newest generation that any agent was told to start
        self.preempted = self.superseded = False
        self.finishes: list[Finish] = []
        self.machine = Coordinator(self.config, 0, self.now_s)
        if goes_well:
            self.everybody_goes_on()

    # --- the coordinator's side ---------------------------------------------------------------------------------------

    def handle(self, event: Event) -> None:
        for action in self.machine.handle(event, self.now_s):
            self.act(action)

    def act(self, action: Action) -> None:
        assert not self.finishes or isinstance(action, Send), "only agents hear something after the verdict"
        match action:
            case Send():
                self.check_send(action)
                agent = self.agents[action.node]
                if agent.connected and agent.known:
                    agent.inbox.append(action)
            case MakeClaim():
                assert self.claiming is None
                self.claiming = action
            case Finish():
                self.finishes.append(action)

    def check_send(self, action: Send) -> None:
        running = [(w.generation, rank) for agent in self.agents for rank, w in agent.workers.items() if w.runs]
        if action.kind == "start":
            assert all(generation == action.generation for generation, _ in running), "an earlier generation still runs"
            self.started = action.generation
        if action.kind == "stop" and "exit_code" not in action.body and action.generation == self.started:
            whole = len(running) == self.config.world_size and {generation for generation, _ in running} == {self.started}
            asked = self.preempted and self.config.trainer.kind == "script"
            assert not whole or asked, "a generation that runs everywhere is stopped for no reason"

    def answer_claim(self) -> None:
        """What coordinator/main.py does with a MakeClaim."""
        assert self.claiming is not None
        base, had = self.base_of(self.claiming), bool(self.commits)
        self.claiming = None
        if self.superseded:
            self.handle(ClaimRefused(Exit.SUPERSEDED, "somebody else claimed"))
        elif base is None and had:
            self.handle(ClaimRefused(Exit.UNVERIFIED, "none verifies"))
        else:
            self.append_claim(base)
            self.handle(Claimed(self.claimed, base, self.idle))

    def base_of(self, claim: MakeClaim) -> Base | None:
        """The newest commit that is not refused, or what is newer in memory and of the generation that counts."""
        stored = next((b for b in reversed(self.commits) if (b.checkpoint, "disk") not in claim.refused), None)
        kept = [Base(c.step, c.generation, hashed, "memory") for c, hashed in claim.held.items() if c.generation == self.claimed]
        return max([*kept, *([stored] if stored else [])], key=lambda base: base.step, default=None)

    def append_claim(self, base: Base | None) -> None:
        self.claimed, self.idle = self.claimed + 1, self.idle + 1
        self.bases[self.claimed] = base
        self.commits = [commit for commit in self.commits if base is not None and commit.step <= base.step]

    # --- the agents' side ---------------------------------------------------------------------------------------------

    def connect(self, agent: Agent) -> None:
        agent.connected, agent.known = True, False
        running = tuple(rank for rank, worker in agent.workers.items() if worker.runs)
        agent.say(Joined(agent.node, f"host-{agent.node}", agent.generation, running))
        for rank, worker in agent.workers.items():
            if not worker.runs:
                agent.say(agent.exited(rank))
        if agent.stopping:
            agent.say(Said(agent.node, agent.generation, {"what": "preempted"}))

    def disconnect(self, agent: Agent, noticed: bool) -> None:
        agent.connected = agent.known = False
        agent.outbox.clear()
        agent.inbox.clear()
        if noticed:
            agent.outbox.append(Lost(agent.node))

    def deliver(self, agent: Agent) -> None:
        event = agent.outbox.popleft()
        if isinstance(event, Joined):
            agent.known = True
        self.handle(event)

    def obey(self, agent: Agent) -> None:
        order = agent.inbox.popleft()
        match order.kind:
            case "assign":
                agent.slot = order.body["slot"]
                self.listen(agent)
            case "start" if order.generation > agent.generation:
                assert agent.slot is not None
                first = agent.slot * self.config.procs_per_slot
                base = self.bases[order.generation]
                ranks = range(first, first + self.config.procs_per_slot)
                agent.workers = {rank: Worker(order.generation, base.step if base else 0) for rank in ranks}
                agent.generation, agent.port = order.generation, None
                self.listen(agent)
            case "save":
                for worker in agent.workers.values():
                    worker.saves = True
            case "survey":
                agent.say(Said(agent.node, agent.generation, {"what": "held", "holdings": list(agent.captures)}))
            case "stop":
                for worker in agent.workers.values():
                    worker.killed |= worker.runs
                agent.over |= "exit_code" in order.body

    def listen(self, agent: Agent) -> None:
        if agent.slot == 0 and agent.port is None:
            self.ports += 1
            agent.port = self.ports
            self.beat(agent)

    def beat(self, agent: Agent) -> None:
        agent.say(Beat(agent.node, agent.port, {rank: w.step for rank, w in agent.workers.items() if w.runs}))

    # --- the workers --------------------------------------------------------------------------------------------------

    def gang(self) -> dict[int, Worker]:
        """All workers of the newest generation that was started, by rank."""
        found = {rank: worker for agent in self.agents for rank, worker in agent.workers.items()}
        return {rank: worker for rank, worker in found.items() if worker.generation == self.started}

    def whole(self) -> bool:
        gang = self.gang()
        return len(gang) == self.config.world_size and all(worker.runs and not worker.killed for worker in gang.values())

    def end(self, rank: int, code: int) -> None:
        for agent in self.agents:
            if rank in agent.workers and agent.workers[rank].runs:
                agent.workers[rank].end = code
                agent.say(agent.exited(rank))

    def say_of(self, rank: int, what: str, **facts: object) -> None:
        for agent in self.agents:
            if rank in agent.workers:
                agent.say(Said(agent.node, agent.generation, {"what": what, "rank": rank, **facts}))

    def workers_go_on(self, to_the_end: bool) -> None:
        """Each does what it would do by itself: dies of SIGKILL, fails when a peer has ended, saves, or trains (to the end).

        Who waits for a peer that never started waits for ever.
        """
        gang = self.gang()
        broken = any(not worker.runs for worker in gang.values())
        for agent in self.agents:
            for rank, worker in agent.workers.items():
                if worker.runs and worker.killed:
                    self.end(rank, -9)
                elif worker.runs and broken and worker.generation == self.started:
                    self.end(rank, 1)
        saves = any(worker.saves for worker in gang.values())
        if self.whole() and (saves or to_the_end):
            self.train(0 if saves else STEPS)
            for rank in gang:
                self.end(rank, Exit.PREEMPTED if saves else 0)

    def train(self, steps: int) -> None:
        for worker in self.gang().values():
            worker.step = min(STEPS, worker.step + steps)

    # --- rules: what goes well ----------------------------------------------------------------------------------------

    @rule(at=st.integers(0, 9))
    def connects(self, at: int) -> None:
        agent = self.agents[at % len(self.agents)]
        if not agent.connected and not agent.over:
            self.connect(agent)

    @rule(at=st.integers(0, 9), messages=st.integers(1, 4))
    def delivers(self, at: int, messages: int) -> None:
        agent = self.agents[at % len(self.agents)]
        for _ in range(min(messages, len(agent.outbox))):
            self.deliver(agent)

    @rule(at=st.integers(0, 9), messages=st.integers(1, 4))
    def obeys(self, at: int, messages: int) -> None:
        agent = self.agents[at % len(self.agents)]
        for _ in range(min(messages, len(agent.inbox))):
            self.obey(agent)

    @rule(at=st.integers(0, 9))
    def beats(self, at: int) -> None:
        self.beat(self.agents[at % len(self.agents)])

    @precondition(lambda self: self.claiming is not None)
    @rule()
    def claims(self) -> None:
        self.answer_claim()

    @rule()
    def everybody_goes_on(self) -> None:
        """Some fair rounds; without them few examples would get as far as training."""
        for _ in range(3):
            self.round(to_the_end=False)
        if self.whole():
            self.train_and_save(10, saves=True)

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
        if saves and self.config.checkpoint.tiers and not any(b.step >= step for b in self.commits):
            self.commits.append(Base(step, self.started, "ab"))
            self.idle = 0
            self.say_of(0, "committed", step=step)

    @rule(seconds=st.sampled_from([0.1, 1.0]))
    def ticks(self, seconds: float) -> None:
        self.now_s += seconds
        self.handle(Tick())

    # --- rules: what goes wrong ---------------------------------------------------------------------------------------

    @rule(at=st.integers(0, 9), noticed=st.booleans())
    def loses_connection(self, at: int, noticed: bool) -> None:
        agent = self.agents[at % len(self.agents)]
        if agent.connected:
            self.disconnect(agent, noticed)
            if not noticed:  # it is there again before the coordinator sees that it was gone
                self.connect(agent)

    @precondition(lambda self: self.gang())
    @rule(at=st.integers(0, 9), code=st.sampled_from([-9, -11, 1]))
    def a_worker_dies(self, at: int, code: int) -> None:
        gang = self.gang()
        self.end(sorted(gang)[at % len(gang)], code)

    @rule(at=st.integers(0, 9))
    def a_node_starts_anew(self, at: int) -> None:
        node = at % len(self.agents)
        if not self.agents[node].over:
            self.disconnect(self.agents[node], noticed=False)
            self.agents[node] = Agent(node, stopping=self.agents[node].stopping)
            self.connect(self.agents[node])

    @rule(claim_stands=st.booleans())
    def the_coordinator_starts_anew(self, claim_stands: bool) -> None:
        if self.finishes:
            return
        if self.claiming is not None and claim_stands and not self.superseded:  # it died between the claim and its answer
            base = self.base_of(self.claiming)
            if base is not None or not self.commits:
                self.append_claim(base)
        self.claiming = None
        for agent in self.agents:
            self.disconnect(agent, noticed=False)
        self.machine = Coordinator(self.config, self.claimed, self.now_s)

    @precondition(lambda self: self.whole() and self.bases.get(self.started) is not None)
    @rule()
    def the_base_does_not_verify(self) -> None:
        base = self.bases[self.started]
        assert base is not None
        self.say_of(0, "refused", step=base.step, generation=base.generation, tier=base.tier, name="x", reason="changed")
        for rank in self.gang():
            self.end(rank, Exit.UNVERIFIED)

    @rule(at=st.integers(0, 9), really=rarely)
    def is_preempted(self, at: int, really: bool) -> None:
        if not really:
            return
        agent = self.agents[at % len(self.agents)]
        agent.stopping = self.preempted = True
        agent.say(Said(agent.node, agent.generation, {"what": "preempted"}))

    @precondition(lambda self: self.whole())
    @rule(really=rarely)
    def is_superseded(self, really: bool) -> None:
        if not really:
            return
        self.superseded = True
        for rank in self.gang():
            self.end(rank, Exit.SUPERSEDED)

    # --- what holds ---------------------------------------------------------------------------------------------------

    @invariant()
    def there_is_one_verdict_and_it_stays(self) -> None:
        if hasattr(self, "machine"):
            assert len(self.finishes) == (self.machine.phase is Phase.ENDED)

    @invariant()
    def the_budget_is_respected(self) -> None:
        if hasattr(self, "machine"):
            restart = self.config.restart
            assert 0 <= self.machine.budget <= restart.budget
            assert self.machine.fruitless <= restart.no_progress

    @invariant()
    def the_verdict_says_what_happened(self) -> None:
        if not getattr(self, "finishes", []):
            return
        match self.finishes[0].exit_code:
            case Exit.COMPLETED:
                ends = [worker.end for worker in self.gang().values()]
                assert set(ends) <= {0}
            case Exit.PREEMPTED:
                assert self.preempted
            case Exit.SUPERSEDED:
                assert self.superseded
            case Exit.UNVERIFIED:
                assert self.commits

    @invariant()
    def a_refused_base_is_not_claimed_again(self) -> None:
        machine = getattr(self, "machine", None)
        if machine is not None and machine.generation.base is not None and not machine.generation.refused:
            base = machine.generation.base
            assert (CheckpointId(base.step, base.generation), base.tier) not in machine.refused

    # --- every run ends -----------------------------------------------------------------------------------------------

    def round(self, to_the_end: bool) -> None:
        """Everything that is under way arrives, and everybody does what there is to do."""
        for agent in self.agents:
            if not agent.connected and not agent.over:
                self.connect(agent)
            while agent.outbox:
                self.deliver(agent)
        if self.claiming is not None:
            self.answer_claim()
        for agent in self.agents:
            while agent.inbox:
                self.obey(agent)
            self.beat(agent)
        self.workers_go_on(to_the_end)

    def teardown(self) -> None:
        """Left alone, the run ends without waiting for any timeout: time does not pass here."""
        if not hasattr(self, "machine"):
            return
        for _ in range(ROUNDS):
            if self.finishes:
                return
            self.round(to_the_end=True)
        raise AssertionError(f"the run has not ended: {self.machine.phase}, {self.machine.generation}, {self.agents}")


TestCoordinatorMachine = CoordinatorMachine.TestCase
TestCoordinatorMachine.settings = settings(max_examples=300, stateful_step_count=40, deadline=None)
