"""Provides a coordinator with its clock, for tests of its decisions, and short forms of its events and actions."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from headway.runner.contract import (
    DEFAULT_TIMEOUTS,
    Base,
    Checkpoint,
    Mesh,
    Restart,
    RunConfig,
    Tier,
    Timeout,
    Trainer,
)
from headway.runner.contract.journal import Entry, line_of
from headway.runner.contract.orders import body_of
from headway.runner.coordinator.causes import Ended
from headway.runner.coordinator.events import (
    Action,
    Beat,
    Broadcast,
    Claimed,
    Event,
    Exited,
    Finish,
    Joined,
    MakeClaim,
    Note,
    Send,
    Tick,
)
from headway.runner.coordinator.machine import Coordinator
from headway.runner.coordinator.reading import event_of
from headway.runner.coordinator.state import (
    Inherited,
    Phase,
)
from headway.runner.health.watch import RankBeat, Watch
from headway.runner.messages import Message

JOIN_S, AGENT_S = 60.0, 5.0
LAST_CALL_S, SILENT_S, SILENT_SPARE_S, LISTEN_S, TERMINATE_S, KILL_S, STORE_S = (
    DEFAULT_TIMEOUTS[name].floor_s for name in ("last_call", "node", "node_spare", "listen", "terminate", "kill", "store")
)
BASE = Base(20, 1, "ab")


def config(kind: str = "builtin", slots: int = 2, procs: int = 2, **restart: int) -> RunConfig:
    return RunConfig(
        slots=slots,
        procs_per_slot=procs,
        mesh=Mesh(dp_shard=slots * procs),
        trainer=Trainer(kind),
        spec_hash="",
        checkpoint=Checkpoint((Tier("shared", 10),)),
        restart=Restart(**restart),
        timeouts={"join": Timeout(JOIN_S), "agent": Timeout(AGENT_S), "replace": Timeout(0.0)},
    )


class Bench:
    """A coordinator with its clock. `do` handles events and returns the actions of the last one."""

    def __init__(
        self,
        settings: RunConfig | None = None,
        newest: int = 0,
        slots: Mapping[int, int] | None = None,
        watch: type[Watch] = Watch,
    ) -> None:
        """With `newest`, a previous coordinator had started that generation with the binding `slots`, or slot i on node i."""
        self.config = settings or config()
        bound = slots or {i: i for i in range(self.config.slots)}
        inherited = Inherited(newest, slots=bound if newest else {}, started=bool(newest))
        self.machine = Coordinator(self.config, inherited, 0.0, watch)
        self.now_s = 0.0
        self.actions: list[Action] = []

    def do(self, *events: Event) -> list[Action]:
        found: list[Action] = []
        for event in events:
            found = self.machine.handle(event, self.now_s)
            self.actions += found
        return found

    def pass_time(self, seconds: float, *hearing: int, step_s: float = 0.5, step: int | None = None) -> list[Action]:
        """Let time pass in ticks, with a heartbeat of each node in `hearing` before each; ranks show `step`, working until now, or, without
        one, no heartbeat since the last one that they have shown."""
        found: list[Action] = []
        until = self.now_s + seconds
        while self.now_s < until - 1e-9:
            self.now_s = min(until, self.now_s + step_s)
            for node in hearing:
                found += self.do(self.beat(node, step))
            found += self.do(Tick())
        return found

    def beat(self, node: int, step: int | None = None, section: str = "compute") -> Beat:
        """All ranks of the node."""
        if step is not None:
            self._sign = self.now_s, step
        signed_at, at_step = self._sign
        seen = RankBeat(at_step, section, at_step, self.now_s - signed_at)
        return Beat(node, self.generation, 4100 + node, dict.fromkeys(self.machine.roster.ranks(node), seen))

    # Time and step of the last heartbeat.
    _sign = (0.0, 0)

    @property
    def generation(self) -> int:
        return self.machine.generation.number

    def join_all(self, generation: int = 0, running: bool = False) -> list[Action]:
        return self.do(*(joined(node, generation, self.ranks(node) if running else ()) for node in range(self.config.slots)))

    def ranks(self, node: int) -> tuple[int, ...]:
        return tuple(range(node * self.config.procs_per_slot, (node + 1) * self.config.procs_per_slot))

    def started(self, base: Base | None = None) -> "Bench":
        """Claim the next generation and start it."""
        if self.machine.phase is Phase.GATHERING:
            self.join_all()
        self.do(Claimed(self.generation + 1, base, 1))
        if not self.machine.generation.started:
            first = self.machine.roster.slots[0]
            self.do(Beat(first, self.generation - 1, 5000 + self.generation, {}))
        assert self.machine.generation.started
        return self

    def loaded(self) -> "Bench":
        """All ranks have restored and train."""
        for rank in range(self.machine.generation.world_size):
            self.do(evidence(self.machine.roster.node_of(rank), self.generation, {"what": "loaded", "rank": rank, "step": 0}))
        return self

    def end(self, rank: int, code: int, step: int = 0, asked: bool = False, generation: int | None = None) -> list[Action]:
        node, how = self.machine.roster.node_of(rank), f"killed by {-code}" if code < 0 else f"exit code {code}"
        return self.do(Exited(node, generation or self.generation, (Ended(rank, node, code, how, asked, step),)))

    def end_all(self, codes: Sequence[int], step: int = 0) -> list[Action]:
        found: list[Action] = []
        for rank, code in enumerate(codes):
            found = self.end(rank, code, step)
        return found

    def say(self, what: str, rank: int = 0, **facts: Any) -> list[Action]:
        return self.do(evidence(rank // self.config.procs_per_slot, self.generation, {"what": what, "rank": rank, **facts}))

    def finish(self) -> Finish:
        (found,) = [action for action in self.actions if isinstance(action, Finish)]
        return found

    def notes(self) -> list[str]:
        return [action.entry.KIND for action in self.actions if isinstance(action, Note)]

    def note(self, kind: str) -> Mapping[str, Any]:
        (found,) = [action.entry for action in self.actions if isinstance(action, Note) and kind == action.entry.KIND]
        return facts(found)


def joined(node: int, generation: int = 0, running: Sequence[int] = (), domain: str | None = None) -> Joined:
    return Joined(node, f"host-{node}", generation, tuple(running), domain, 4000 + node)


def told(actions: Sequence[Action], kind: str) -> list[Mapping[str, Any]]:
    """The bodies of the messages of `kind` to all agents."""
    orders = [action.order for action in actions if isinstance(action, Broadcast)]
    return [as_json(body_of(order)) for order in orders if kind == order.KIND]


def sent(actions: Sequence[Action], kind: str) -> list[int]:
    """The nodes that were sent `kind` individually."""
    return [action.node for action in actions if isinstance(action, Send) and kind == action.order.KIND]


def claims(actions: Sequence[Action]) -> int:
    return sum(isinstance(action, MakeClaim) for action in actions)


def evidence(node: int, generation: int, body: Mapping[str, Any]) -> Event:
    """The event of an agent's message."""
    return event_of(Message("run-1", generation, node, 0, 0, "evidence", dict(body)))


def facts(entry: Entry) -> dict[str, Any]:
    """A journal line's facts besides time, kind, generation and attempt."""
    common = {"wall": 0.0, "kind": entry.KIND, "generation": -1, "attempt": 0}
    return {name: value for name, value in as_json(line_of(entry, 0.0, -1, 0)).items() if common.get(name) != value}


def as_json(value: Any) -> Any:
    return json.loads(json.dumps(value, default=vars))
