"""The coordinator's decisions: events in, actions out, no I/O and no clock of its own.

    gathering -> claiming -> running -> stopping -> surveying -> claiming ... -> ended

All nodes join; a claim on the chain makes a generation; its workers run from the claim's base; when one fails all are stopped, and
either the next generation is claimed, from what the nodes still hold in memory or from what was committed, or the attempt ends with a
verdict. A coordinator that comes back finds the generation running
at every node and goes on with it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import xxhash

from headway.runner.checkpoint.chain import Base, CheckpointId
from headway.runner.checkpoint.commit import memory_manifest
from headway.runner.contract import Exit, RunConfig, bind, partner_of

# --- events: what happened --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Joined:
    node: int
    host: str
    generation: int
    running: tuple[int, ...]  # ranks


@dataclass(frozen=True)
class Lost:
    """The connection to a node's agent ended. Its workers may well go on."""

    node: int


@dataclass(frozen=True)
class Beat:
    node: int
    port: int | None
    steps: dict[int, int]  # rank -> completed optimizer steps


@dataclass(frozen=True)
class Exited:
    node: int
    generation: int
    rank: int
    code: int
    how: str
    asked: bool  # we had told it to
    step: int


@dataclass(frozen=True)
class Said:
    """Evidence from a worker or an agent."""

    node: int
    generation: int
    body: dict[str, Any]


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


Event = Joined | Lost | Beat | Exited | Said | Claimed | ClaimRefused | Tick

# --- actions: what to do ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Send:
    node: int
    kind: str
    generation: int
    body: dict[str, Any]


@dataclass(frozen=True)
class MakeClaim:
    """Claim the next generation from the newest checkpoint that is not refused in its tier. `held`: what all ranks have in memory, with
    the hash of its manifest."""

    refused: frozenset[tuple[CheckpointId, str]]
    held: Mapping[CheckpointId, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Note:
    """A line for the journal of the current generation."""

    kind: str
    body: dict[str, Any]


@dataclass(frozen=True)
class Finish:
    """The attempt is over."""

    exit_code: Exit
    cause: str
    failure: "Failure | None"
    step: int
    committed_step: int | None


Action = Send | MakeClaim | Note | Finish

# --- state ------------------------------------------------------------------------------------------------------------


class Phase(Enum):
    GATHERING = "gathering"
    SURVEYING = "surveying"
    CLAIMING = "claiming"
    RUNNING = "running"
    STOPPING = "stopping"
    ENDED = "ended"


@dataclass
class Member:
    host: str
    generation: int  # the newest that its agent knew when it joined
    heard_at: float  # when its agent last said anything: a node may vanish without ending its connection
    port: int | None = None
    lost_at: float | None = None


@dataclass(frozen=True)
class Failure:
    """The first cause of a generation's end, as far as it is known."""

    cause: str
    rank: int | None
    node: int | None
    host: str | None
    step: int


@dataclass
class Generation:
    """One gang start: what it began from and what has become of its ranks."""

    number: int
    base: Base | None
    alive: set[int]
    started: bool = False
    loaded: set[int] = field(default_factory=set)
    exits: list[Exited] = field(default_factory=list)
    errors: dict[int, str] = field(default_factory=dict)  # rank -> last line of its exception
    refused: list[dict[str, Any]] = field(default_factory=list)
    committed: set[int] = field(default_factory=set)


# Exit codes that all ranks reach by agreement: nobody needs to be stopped, and what the others still have to say is wanted.
_TOGETHER = frozenset({Exit.COMPLETED, Exit.PREEMPTED, Exit.UNVERIFIED, Exit.SUPERSEDED})


SURVEY_S = 5.0  # for the nodes to say what their keepers hold; one that does not is taken to hold nothing
GRACE_SHARE = 0.7  # of the grace, for a save that all ranks agree on; the rest is for ending what hangs


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
    ) -> None:
        """`newest_generation` and its `base` are what the chain says of this attempt; 0 and None when it has claimed nothing."""
        self.config = config
        self.phase = Phase.GATHERING
        self.members: dict[int, Member] = {}
        self.slots: dict[int, int] = {}  # slot -> node
        self.generation = Generation(newest_generation, base, set())
        self.refused: set[tuple[CheckpointId, str]] = set()
        self.holdings: dict[int, list[dict[str, Any]]] = {}  # node -> what its keeper holds, as far as it was asked and has said
        self.budget = max(0, config.restart.budget - restarts)
        self.restarts = restarts
        self.fruitless = 0  # failures in a row without a new step
        self.best_step = 0
        self.reached = 0  # the furthest step before a failure
        self.toward_refill = 0  # new steps that have not given a restart back yet
        self.committed_step = committed_step
        self.preempting = False
        self.verdict: Exit | None = None
        self.cause = ""
        # Somebody's script may end with any code, and means nothing of ours by it.
        self._is_script = config.trainer.kind == "script"
        self._together = frozenset({Exit.COMPLETED}) if self._is_script else _TOGETHER
        self._keeps_copies = not {"memory", "peer"}.isdisjoint(tier.kind for tier in config.checkpoint.tiers)
        self._began_s = self._now_s = self._asked_s = now_s
        self._preempted_s: float | None = None
        self._early: list[Exited] = []  # ends that were reported before all nodes had joined
        self._out: list[Action] = []

    def handle(self, event: Event, now_s: float) -> list[Action]:
        self._out, self._now_s = [], now_s
        if isinstance(event, Beat | Exited | Said) and event.node in self.members:
            self.members[event.node].heard_at = now_s
        if self.phase is not Phase.ENDED:
            match event:
                case Joined():
                    self._joined(event)
                case Lost(node):
                    if node in self.members:
                        self.members[node].lost_at = now_s
                case Beat():
                    self._beat(event)
                case Exited():
                    self._exited(event)
                case Said():
                    self._said(event)
                case Claimed():
                    self._claimed(event)
                case ClaimRefused(exit_code, cause):
                    self._end(exit_code, cause)
                case Tick():
                    self._tick(now_s)
        return self._out

    # --- who is there -------------------------------------------------------------------------------------------------

    def _joined(self, event: Joined) -> None:
        self.members[event.node] = Member(event.host, event.generation, self._now_s)
        if event.running and event.generation != self.generation.number:
            self._out.append(Send(event.node, "stop", event.generation, {}))
        if event.generation < self.generation.number and self.generation.started:
            self._restarted(event.node)
        if len(self.members) < self.config.slots:
            return
        if not self.slots:
            binding = bind(self.config.slots, dict.fromkeys(self.members))
            self.slots = dict(binding.nodes) if binding else {}
        for slot, node in self.slots.items():
            if node == event.node or self.phase is Phase.GATHERING:
                self._out.append(Send(node, "assign", self.generation.number, {"slot": slot}))
        if self.phase is Phase.GATHERING:
            self._all_there()
        elif event.node in self.slots.values():
            self._say_again(event.node)

    def _say_again(self, node: int) -> None:
        """What the node has missed if it was said while its connection was broken."""
        if self.phase is Phase.SURVEYING and node not in self.holdings:
            self._out.append(Send(node, "survey", self.generation.number, {}))
        if self.phase is Phase.STOPPING:
            self._out.append(Send(node, "stop", self.generation.number, self._stop_body()))
        elif self.phase is Phase.RUNNING and self.generation.started and self.preempting:
            self._out.append(Send(node, "save", self.generation.number, {}))

    def _restarted(self, node: int) -> None:
        """A node came back without its workers: they are gone, and nobody else will say so."""
        for rank in sorted(self._ranks(node) & self.generation.alive):
            self._exited(Exited(node, self.generation.number, rank, -9, "its node started anew", asked=False, step=0))

    def _ranks(self, node: int) -> set[int]:
        procs = self.config.procs_per_slot
        return {slot * procs + i for slot, at in self.slots.items() if at == node for i in range(procs)}

    def _all_there(self) -> None:
        """Goes on with a generation that is known everywhere; otherwise ends what runs of it and claims the next.

        A node that knows the generation reports the end of each of its ranks, so until then a rank counts as alive.
        """
        self.generation.alive = {rank for node in self._knowing() for rank in self._ranks(node)}
        self.generation.started = bool(self.generation.alive)
        if not self.generation.alive:
            self._claim()
            return
        self.phase = Phase.RUNNING
        if len(self.generation.alive) == self.config.world_size:
            self._note("adopted", {})
        else:
            self._stop_workers()
        for event in self._early:
            self._exited(event)
        if self.preempting and self.phase is Phase.RUNNING:
            self._save_or_stop()

    def _knowing(self) -> list[int]:
        """The nodes that joined with workers of the newest generation, running or ended: a coordinator before us started it."""
        return [node for node, member in self.members.items() if 0 < self.generation.number == member.generation]

    def _beat(self, event: Beat) -> None:
        if event.node in self.members:
            self.members[event.node].port = event.port
        self.best_step = max([self.best_step, *event.steps.values()])
        if self.phase is Phase.RUNNING and not self.generation.started:
            self._start()

    def _tick(self, now_s: float) -> None:
        joined, patience_s = len(self.members), self.config.timeouts["join"].floor_s
        if self.phase is Phase.GATHERING and joined < self.config.slots and now_s - self._began_s > patience_s:
            silent = sorted(set(range(self.config.slots)) - self.members.keys())
            self._end(Exit.RETRY_ELSEWHERE, f"{joined} of {self.config.slots} nodes joined; silent: {silent}", node=silent[0])
            return
        if self._preempted_s is not None and now_s - self._preempted_s > GRACE_SHARE * self.config.grace_s:
            self._preempted_s = None
            if self.phase is Phase.RUNNING:  # a rank cannot save; what is committed stands
                self._stop_workers()
        if self.phase is Phase.SURVEYING and now_s - self._asked_s > SURVEY_S:
            self._make_claim()
        for node, member in self.members.items():
            silent_s = None if self.phase is Phase.GATHERING else member.heard_at
            since_s = silent_s if member.lost_at is None else member.lost_at
            if since_s is not None and now_s - since_s > self.config.timeouts["agent"].floor_s:
                self._end(Exit.RETRY_ELSEWHERE, f"node {member.host} was lost", node=node)
                return

    # --- a generation -------------------------------------------------------------------------------------------------

    def _claim(self) -> None:
        """Claims the next generation; before it, where captures are kept in memory, asks what is left of the one that ended."""
        if not self._keeps_copies or self.generation.number == 0:
            self._make_claim()
            return
        self.phase, self.holdings, self._asked_s = Phase.SURVEYING, {}, self._now_s
        self._tell_all("survey", {})

    def _held(self, node: int, holdings: list[dict[str, Any]]) -> None:
        if self.phase is Phase.SURVEYING:
            self.holdings[node] = holdings
            if self.holdings.keys() >= set(self.slots.values()):
                self._make_claim()

    def _make_claim(self) -> None:
        self.phase = Phase.CLAIMING
        whole = whole_captures(self.config, self.holdings.values())
        held = {checkpoint: hashed for checkpoint, hashed in whole.items() if (checkpoint, "memory") not in self.refused}
        self._out.append(MakeClaim(frozenset(self.refused), held))

    def _claimed(self, event: Claimed) -> None:
        self.generation = Generation(event.generation, event.base, set())
        self.committed_step = event.base.step if event.base else None
        base = {"step": event.base.step, "generation": event.base.generation, "tier": event.base.tier} if event.base else None
        self._note("claim", {"base": base})
        # What a script saves is its own business, and need not be on the chain.
        saves = bool(self.config.checkpoint.tiers) and not self._is_script
        if saves and event.idle > self.config.restart.no_progress + self.config.restart.budget:
            self._end(Exit.STOP, f"{event.idle - 1} generations in a row have saved nothing")
            return
        self.phase = Phase.RUNNING
        self._start()

    def _start(self) -> None:
        """Starts every slot, once all are connected and slot 0's node has opened the socket of this generation's rendezvous store."""
        first = self.members[self.slots[0]]
        connected = all(self.members[node].lost_at is None for node in self.slots.values())
        if first.port is None or not connected or self.generation.started:
            return
        base = self.generation.base
        body = {
            "base": vars(base) if base else None,
            "master_addr": first.host,
            "master_port": first.port,
            "restarts": self.restarts,
        }
        first.port = None
        self.generation.started = True
        self.generation.alive = set(range(self.config.world_size))
        nodes = [{"slot": slot, "node": node, "host": self.members[node].host} for slot, node in self.slots.items()]
        self._note("start", {"nodes": nodes, "world_size": self.config.world_size})
        for slot, node in self.slots.items():
            self._out.append(Send(node, "start", self.generation.number, {**body, "partner": self._partner(slot)}))
        if self.preempting:
            self._tell_all("save", {})

    def _partner(self, slot: int) -> int | None:
        """The node that holds copies of the slot's captures, where the job keeps such."""
        if not any(tier.kind == "peer" for tier in self.config.checkpoint.tiers):
            return None
        partner = partner_of(slot, self.config.slots, self.config.partner_segment)
        return None if partner is None else self.slots[partner]

    def _said(self, event: Said) -> None:
        what = event.body["what"]
        if what == "preempted":
            self._preempt()
        elif what == "held":
            self._held(event.node, event.body["holdings"])
        elif event.generation == self.generation.number:
            match what:
                case "loaded":
                    self._loaded(event.body)
                case "committed":
                    self._committed(event.body)
                case "refused":
                    self._refused(event.body)
                case "exception":
                    self.generation.errors[event.body["rank"]] = event.body["text"]
                case "section" | "finished" | "retired" | "waited":
                    self._note(what, event.body)

    def _loaded(self, body: dict[str, Any]) -> None:
        if body["rank"] not in self.generation.loaded:
            self.generation.loaded.add(body["rank"])
            if len(self.generation.loaded) == self.config.world_size:
                self._note("loaded", {"step": body["step"]})

    def _committed(self, body: dict[str, Any]) -> None:
        if body["step"] not in self.generation.committed:
            self.generation.committed.add(body["step"])
            self.committed_step = max(self.committed_step or 0, body["step"])
            self._note("committed", body)

    def _refused(self, body: dict[str, Any]) -> None:
        """A checkpoint failed verification: its generation's base, which the next claim then leaves out."""
        if body not in self.generation.refused:
            self.generation.refused.append(body)
            self.refused.add((CheckpointId(body["step"], body["generation"]), body["tier"]))
            self._note("refused", body)

    def _preempt(self) -> None:
        if self.preempting:
            return
        self.preempting = True
        self._preempted_s = self._now_s
        self._note("preempted", {})
        if self.phase is Phase.RUNNING and self.generation.alive:
            self._save_or_stop()
        elif self.phase is not Phase.STOPPING and not (self.phase is Phase.GATHERING and self._knowing()):
            self._end(Exit.PREEMPTED, "asked to stop")

    def _save_or_stop(self) -> None:
        """A script is not known to hear "save"; the builtin trainer saves at the end of its step and exits."""
        if self.config.trainer.kind == "script":
            self._stop_workers()
        else:
            self._tell_all("save", {})

    # --- how a generation ends ----------------------------------------------------------------------------------------

    def _exited(self, event: Exited) -> None:
        if self.phase is Phase.GATHERING:
            self._early.append(event)
            return
        if event.generation != self.generation.number or event.rank not in self.generation.alive:
            return
        self.generation.alive.discard(event.rank)
        self.generation.exits.append(event)
        self.best_step = max(self.best_step, event.step)
        if self.phase is Phase.RUNNING and event.code not in self._together and self.generation.alive:
            self._stop_workers()
        if not self.generation.alive and self.phase in (Phase.RUNNING, Phase.STOPPING):
            self._generation_over()

    def _stop_workers(self) -> None:
        self.phase = Phase.STOPPING
        self._tell_all("stop", self._stop_body())

    def _stop_body(self) -> dict[str, Any]:
        """How long a script may take to save by itself when it is the run that is asked to stop."""
        return {"grace_s": GRACE_SHARE * self.config.grace_s} if self._is_script and self.preempting else {}

    def _generation_over(self) -> None:
        codes = {event.code for event in self.generation.exits}
        if codes == {0} and not (self.preempting and self._is_script):  # a script may well end with 0 when it is told to stop
            self._end(Exit.COMPLETED, "all ranks finished")
        elif Exit.SUPERSEDED in codes & self._together:
            self._end(Exit.SUPERSEDED, "a newer generation has claimed the run")
        elif self.preempting:
            self._end(Exit.PREEMPTED, "asked to stop")
        elif self.generation.refused:
            self._claim()
        elif Exit.STOP in codes and not self._is_script:
            failure = self._failure(next(event for event in self.generation.exits if event.code == Exit.STOP))
            self._note("failure", vars(failure))
            self._end(Exit.STOP, failure.cause, failure)
        else:
            self._failed(self._first_cause())

    def _failed(self, failure: Failure) -> None:
        self._note("failure", vars(failure))
        new = self._new_steps(failure)
        self.fruitless = 0 if new else self.fruitless + 1
        refilled, self.toward_refill = divmod(self.toward_refill + new, self.config.restart.refill_steps)
        self.budget = min(self.config.restart.budget, self.budget + refilled)
        if self.fruitless >= self.config.restart.no_progress:
            self._end(Exit.STOP, f"{self.fruitless} failures in a row without a new step; the last: {failure.cause}", failure)
        elif self.budget <= 0:
            self._end(
                self._exhausted(), f"no restart left in the budget of {self.config.restart.budget}; {failure.cause}", failure
            )
        else:
            self.budget -= 1
            self.restarts += 1
            self._claim()

    def _new_steps(self, failure: Failure) -> int:
        """Steps that no generation before had reached. A script's own count begins anew with each start, so all of its steps count."""
        if self.config.trainer.kind == "script":
            return failure.step
        before = max(self.reached, self.generation.base.step if self.generation.base else 0)
        self.reached = max(before, failure.step)
        return self.reached - before

    def _exhausted(self) -> Exit:
        return Exit.STOP if self.config.trainer.kind == "script" else Exit.RETRY_ELSEWHERE

    def _first_cause(self) -> Failure:
        """What was not asked for, a signal before an exit code: a rank that lost its peer fails too, and sometimes says so first.

        A code that ranks reach by agreement comes last: who disagreed is the cause.
        """
        own = [e for e in self.generation.exits if not e.asked and e.code != 0] or self.generation.exits
        return self._failure(min(own, key=lambda event: (event.code >= 0, event.code in self._together)))

    def _failure(self, first: Exited) -> Failure:
        member = self.members.get(first.node)
        error = self.generation.errors.get(first.rank)
        cause = f"{first.how}: {error}" if error and first.code > 0 else first.how
        step = max(event.step for event in self.generation.exits)
        return Failure(cause, first.rank, first.node, member.host if member else None, step)

    def _end(self, exit_code: Exit, cause: str, failure: Failure | None = None, node: int | None = None) -> None:
        if failure is None and node is not None:
            host = self.members[node].host if node in self.members else None
            failure = Failure(cause, None, node, host, self.best_step)
            self._note("failure", vars(failure))
        self.phase, self.verdict, self.cause = Phase.ENDED, exit_code, cause
        self._note("end", {"verdict": exit_code.name.lower(), "exit_code": int(exit_code), "cause": cause})
        self._out.append(Finish(exit_code, cause, failure, self.best_step, self.committed_step))
        for member in self.members:
            self._out.append(Send(member, "stop", self.generation.number, {"exit_code": int(exit_code)}))

    def _tell_all(self, kind: str, body: dict[str, Any]) -> None:
        self._out += [Send(node, kind, self.generation.number, body) for node in self.slots.values()]

    def _note(self, kind: str, body: dict[str, Any]) -> None:
        self._out.append(Note(kind, body))


def whole_captures(config: RunConfig, holdings: Iterable[Iterable[Mapping[str, Any]]]) -> dict[CheckpointId, str]:
    """The captures of which some node holds every rank's part, with the hash of the manifest that follows from the parts."""
    parts: dict[CheckpointId, dict[int, str]] = {}
    for held in holdings:
        for capture in held:
            checkpoint = CheckpointId(capture["step"], capture["generation"])
            parts.setdefault(checkpoint, {})[capture["rank"]] = capture["part_xxh3_128"]
    found = {}
    for checkpoint, by_rank in parts.items():
        if by_rank.keys() == set(range(config.world_size)) and config.run is not None:
            manifest = memory_manifest(config.run, checkpoint, config.mesh, [by_rank[rank] for rank in sorted(by_rank)])
            found[checkpoint] = xxhash.xxh3_128_hexdigest(manifest)
    return found
