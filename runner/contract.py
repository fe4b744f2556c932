"""Defines the runner's public records: run.json, verdicts, exit codes, metrics lines, costs and the heartbeat page.

Standard library only. Every record carries its schema, an unknown schema is refused by name, units stand in the names.
"""

import dataclasses
import functools
import json
import signal
import types
import typing
from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from math import prod
from typing import Any, TypeVar

RUN_SCHEMA = "headway.run/1"

# --- run.json ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Mesh:
    """Degrees of each mesh axis, outermost first: the rank order is the layout order, tp innermost."""

    pp: int = 1
    dp_replicate: int = 1
    dp_shard: int = 1
    cp: int = 1
    tp: int = 1

    @property
    def axes(self) -> tuple[str, ...]:
        return tuple(f.name for f in dataclasses.fields(self))

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(getattr(self, axis) for axis in self.axes)

    @property
    def world_size(self) -> int:
        return prod(self.shape)


@dataclass(frozen=True)
class Model:
    """A Llama-family decoder: RMSNorm, rotary positions, grouped-query attention, gated MLP."""

    vocab_size: int
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    ffn_hidden: int
    rope_theta: float = 10_000.0
    norm_eps: float = 1e-5
    dropout: float = 0.0
    tie_embeddings: bool = False


@dataclass(frozen=True)
class Data:
    """Where the tokens come from: `{kind, options}`."""

    kind: str
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Batch:
    """Sequences per optimizer step over all ranks, sequences per forward pass of one rank, tokens per sequence."""

    global_sequences: int
    micro_sequences: int
    sequence_length: int


@dataclass(frozen=True)
class Optimizer:
    """AdamW with linear warm-up, then a cosine down to `min_lr_ratio` of `lr` at the last step."""

    lr: float
    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-8
    weight_decay: float = 0.1
    clip_norm: float = 1.0
    warmup_steps: int = 0
    min_lr_ratio: float = 0.1


@dataclass(frozen=True)
class Trainer:
    """Who runs the steps: `{kind, options}`."""

    kind: str
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Tier:
    """One checkpoint tier (`memory`, `peer`, `disk`, `remote`), written each `every_steps` optimizer steps or each `every_s` seconds.

    Of the two one is set. `keep` is how many verified checkpoints stay there; `url` is bucket and prefix of a remote tier.
    """

    kind: str
    every_steps: int | None = None
    every_s: float | None = None
    keep: int = 3
    url: str | None = None

    def interval_s(self, step_s: float) -> float:
        """Seconds of training from one checkpoint to the next, in steps of `step_s`."""
        return self.every_s if self.every_steps is None and self.every_s is not None else (self.every_steps or 1) * step_s


@dataclass(frozen=True)
class Checkpoint:
    """`horizon_steps` is how far back silent corruption may be found: one verified checkpoint at least so much older than the newest stays.

    `host_memory_bytes` is what captures and copies for other nodes may take of a node's memory; null: what the node has.
    """

    tiers: tuple[Tier, ...] = ()
    horizon_steps: int = 0
    host_memory_bytes: int | None = None

    def has(self, kind: str) -> bool:
        """Whether there is a tier of this kind."""
        return any(tier.kind == kind for tier in self.tiers)

    @property
    def remote(self) -> str | None:
        """Bucket and prefix of the remote tier, if there is one."""
        return next((tier.url for tier in self.tiers if tier.kind == "remote"), None)

    @property
    def buffers(self) -> int:
        """Captures of each rank in its node's memory: one is copied into while one is brought away; an upload may hold a third for long."""
        return 0 if not self.tiers else 3 if self.has("remote") else 2

    @property
    def copies(self) -> int:
        """Captures of each of the partner's ranks in a node's memory: the newest, and the one that is coming in."""
        return 2 if self.has("peer") else 0


@dataclass(frozen=True)
class Change:
    """An entry of a run's history: from step `from_step` on `set` holds, and `skip_samples` samples are left out there.

    With `rollback_to` the run first goes back to the checkpoint of that step, and what is said holds from there on. `set` has values by
    their place in this record: `optimizer.lr`, `batch.global_sequences`, `steps`.
    """

    from_step: int
    rollback_to: int | None = None
    skip_samples: int = 0
    set: Mapping[str, Any] = field(default_factory=dict)

    @property
    def takes_effect_at(self) -> int:
        """The completed steps that the run goes on from with this entry."""
        return self.from_step if self.rollback_to is None else self.rollback_to


@dataclass(frozen=True)
class Store:
    """Where the chain and the checkpoints lie. `url` is null until the run directory exists."""

    kind: str = "posix"
    url: str | None = None


@dataclass(frozen=True)
class Restart:
    """`budget` restarts, one given back for every `refill_steps` of new progress; stop after `no_progress` in a row without any."""

    budget: int = 3
    refill_steps: int = 100
    no_progress: int = 3


@dataclass(frozen=True)
class Timeout:
    """A bound on a section: `floor_s`, or `factor` times what was usual there, whichever is longer."""

    floor_s: float
    factor: float = 1.0


@dataclass(frozen=True)
class Ports:
    """TCP ports; 0 takes any free one: the coordinator publishes its own in the attempt's directory, and each generation's rendezvous store
    has another. A port that is given for the store is that of all generations."""

    coordinator: int = 0
    store: int = 0


DEFAULT_TIMEOUTS: Mapping[str, Timeout] = types.MappingProxyType(
    {
        # Until every agent has joined: nodes boot and import at different speeds.
        "join": Timeout(600.0),
        # For further nodes once as many as are needed have joined: torchrun's own (last_call_timeout).
        "last_call": Timeout(30.0),
        # An agent that lost its connection and does not come back, where nothing else speaks for its death; nor against it: while steps
        # go on, nothing is lost.
        "agent": Timeout(30.0),
        # A node that says nothing on an open connection, where nobody goes on either: virtual machines pause for seconds. A spare that
        # waits is worth more than what a pause would cost.
        "node": Timeout(10.0),
        "node_spare": Timeout(3.0),
        # Until a node comes in place of one that was lost, where no spare is left. 0: the scheduler replaces it, in a new attempt.
        "replace": Timeout(0.0),
        # Until the node of slot 0 can listen for the rendezvous store's clients, once its generation is claimed.
        "listen": Timeout(60.0),
        # For a script's ranks between SIGTERM and SIGKILL where another rank has failed: torchrun's own (multiprocessing/api.py, close).
        # It ends sooner if all remaining ranks wait in collectives.
        "terminate": Timeout(30.0),
        # For ranks that were told to end, beyond the grace that they are given: a process may be where SIGKILL does not reach it.
        "kill": Timeout(60.0),
        # A store that does not answer at all, where a claim, a start or a verdict waits for it.
        "store": Timeout(600.0),
        # For the ranks to verify what a script has saved before it restarts; files loaded later are verified when they are loaded.
        "verify": Timeout(300.0),
        # Sections of a worker: this long without a sign of life ends the generation even where nothing corroborates a hang. `factor`
        # times the 99th percentile of what was seen in that section counts where it is longer. What is corroborated ends much earlier.
        "start": Timeout(1800.0),
        "data": Timeout(900.0, 10.0),
        "compute": Timeout(900.0, 10.0),
        "compile": Timeout(3600.0, 10.0),
        # Also what the builtin trainer gives to torch.distributed.
        "collective": Timeout(600.0),
        "checkpoint": Timeout(1800.0, 10.0),
        # Also a rank that waits for something outside of the job: a reply over the network, or a clock.
        "evaluation": Timeout(3600.0, 10.0),
        # In place of the section's, while a rank outside of a collective uses CPU or does I/O.
        "busy": Timeout(86400.0),
    }
)


def set_by(timeout: str) -> str:
    """What a person sets the timeout of this name by, in a few words."""
    return f"`resilience.timeouts.{timeout}`, for headway torchrun HEADWAY_TIMEOUT_{timeout.upper()}"


@dataclass(frozen=True)
class Every:
    """Each so many optimizer steps or each so many seconds: one of the two is set."""

    steps: int | None = None
    seconds: float | None = None


@dataclass(frozen=True)
class Corruption:
    """Checks against silent data corruption. `compare`: checksums of what replicas hold alike. `replay`: a step is computed once more,
    each share of its batch on another rank. `grad_norm_factor`: so many times its running median a gradient norm is looked into."""

    compare: Every | None = None
    replay: Every | None = None
    grad_norm_factor: float | None = None


@dataclass(frozen=True)
class Notify:
    """`webhook_env` names the variable that holds a webhook's address in the supervisor's environment: the address is a secret."""

    webhook_env: str


@dataclass(frozen=True)
class Domain:
    """Hosts that share a failure or an NVLink domain."""

    name: str
    hosts: tuple[str, ...]


@dataclass(frozen=True)
class RunConfig:
    """run.json: all that the runner is told. `run` and `store.url` are null until the run directory is made.

    `spares` nodes are held beside the `slots` that compute. With `min_slots` fewer slots may compute, when no more nodes are there.
    `partner_segment` slots in a row may be lost together (one NVLink domain); copies for `peer` lie in another segment where there is one.
    `segment_required`: each `segment_slots` slots in a row must lie in one of `domains` (groups of ranks that talk
    over NVLink). `peer_dscp` marks the packets of peer copies; null: as the system does.
    `cluster` names where nodes are remembered as suspects across jobs. `metrics_port` serves Prometheus on loopback.
    """

    slots: int
    procs_per_slot: int
    mesh: Mesh
    trainer: Trainer
    spec_hash: str
    seed: int = 0
    steps: int | None = None
    backend: str = "gloo"
    model: Model | None = None
    data: Data | None = None
    batch: Batch | None = None
    optimizer: Optimizer | None = None
    checkpoint: Checkpoint = field(default_factory=Checkpoint)
    history: tuple[Change, ...] = ()
    store: Store = field(default_factory=Store)
    restart: Restart = field(default_factory=Restart)
    timeouts: Mapping[str, Timeout] = field(default_factory=lambda: dict(DEFAULT_TIMEOUTS))
    grace_s: float = 30.0
    spares: int = 0
    min_slots: int | None = None
    corruption: Corruption | None = None
    notify: Notify | None = None
    domains: tuple[Domain, ...] = ()
    segment_required: bool = False
    segment_slots: int = 1
    partner_segment: int = 1
    cluster: str | None = None
    metrics_port: int | None = None
    peer_dscp: int | None = None
    ports: Ports = field(default_factory=Ports)
    run: str | None = None
    schema: str = RUN_SCHEMA

    @property
    def world_size(self) -> int:
        return self.slots * self.procs_per_slot

    def timeout_s(self, name: str) -> float:
        """A timeout in seconds. An older run.json may not have it; then its default applies."""
        return self.timeouts.get(name, DEFAULT_TIMEOUTS[name]).floor_s

    @property
    def last_step(self) -> int | None:
        """The steps of the whole run, as the history has lengthened or shortened it."""
        return next((change.set["steps"] for change in reversed(in_force(self.history)) if "steps" in change.set), self.steps)


def in_force(history: Sequence[Change]) -> tuple[Change, ...]:
    """The changes that count, in the order of their steps: going back to a step undoes those that took effect there or later."""
    standing: list[Change] = []
    for change in history:
        back = change.rollback_to
        standing = [each for each in standing if back is None or each.takes_effect_at < back]
        standing.append(change)
    return tuple(standing)


def coordinates(mesh: Mesh, rank: int) -> dict[str, int]:
    """The rank's place on every axis of `mesh`."""
    found: dict[str, int] = {}
    for axis, degree in zip(reversed(mesh.axes), reversed(mesh.shape), strict=True):
        rank, found[axis] = divmod(rank, degree)
    return {axis: found[axis] for axis in mesh.axes}


@dataclass(frozen=True)
class Binding:
    """Slot -> node index, and the slots whose node lies outside of the domain that the rest of their segment is in."""

    nodes: Mapping[int, int]
    outside: tuple[int, ...] = ()


def bind(
    slots: int,
    live: Mapping[int, str | None],
    held: Mapping[int, int] | None = None,
    segment_slots: int = 1,
    *,
    required: bool = False,
) -> Binding | None:
    """Binds every slot to a node of `live` (node index -> its domain, None where unknown); None when that cannot be done.

    A slot keeps the node that it has in `held` while that lives; another gets the lowest free node of its segment's domain, else the
    lowest free node anywhere, which is listed as `outside`. With `required` a segment of `segment_slots` slots in a row never spans
    domains: it is bound whole into a domain that has room for it, or not at all.
    """
    nodes = {slot: node for slot, node in (held or {}).items() if node in live and slot < slots}
    free: dict[str | None, list[int]] = {}  # by domain, the lowest last
    for node in sorted(live.keys() - set(nodes.values()), reverse=True):
        free.setdefault(live[node], []).append(node)
    outside: list[int] = []
    for first in range(0, slots, segment_slots):
        segment = range(first, min(first + segment_slots, slots))
        if not _bind_segment(segment, nodes, free, outside, live, required=required):
            return None
    return Binding({slot: nodes[slot] for slot in range(slots)}, tuple(outside))


def _bind_segment(
    segment: range,
    nodes: dict[int, int],
    free: dict[str | None, list[int]],
    outside: list[int],
    live: Mapping[int, str | None],
    *,
    required: bool,
) -> bool:
    """Gives the slots of one segment that have no node one of `free`. False when there is none for one of them."""
    there = [live[nodes[slot]] for slot in segment if slot in nodes]
    if len(there) == len(segment) and not (required and len(set(there)) > 1):
        return True
    home = _home(len(segment), there, free)
    if required and len({*there, home}) > 1:
        for slot in segment:  # it no longer fits where it is: it moves as a whole
            if slot in nodes:
                back = free.setdefault(live[nodes[slot]], [])
                back.append(nodes.pop(slot))
                back.sort(reverse=True)
        home = _home(len(segment), [], free)
    for slot in segment:
        if slot in nodes:
            continue
        if not free or (required and home not in free):
            return False
        chosen = home if home in free else min(free, key=lambda domain: free[domain][-1])
        if chosen != home:
            outside.append(slot)
        nodes[slot] = free[chosen].pop()
        if not free[chosen]:
            del free[chosen]
    return True


def _home(size: int, there: Sequence[str | None], free: Mapping[str | None, Sequence[int]]) -> str | None:
    """The domain that can hold a segment of `size` slots with what it has `there`; of several, where most of it is, then where the
    lowest free node is. Where none can hold it, the one that holds most."""
    room = {domain: len(free.get(domain, ())) for domain in (*there, *free)}
    fitting = [domain for domain in room if room[domain] + there.count(domain) >= size]
    if fitting and not there:
        return min(fitting, key=lambda domain: free[domain][-1])
    in_order = dict.fromkeys([*there, *sorted(free, key=lambda domain: free[domain][-1])])
    if fitting:
        return max((domain for domain in in_order if domain in fitting), key=there.count)
    return max(in_order, key=lambda domain: (there.count(domain), min(room[domain], size - len(there))), default=None)


def node_of(slot: int, moved: Mapping[int, int]) -> int:
    """The node of a slot: slot i is on node i but where `moved` (slot -> node) says otherwise."""
    return moved.get(slot, slot)


def slot_of(node: int, slots: int, moved: Mapping[int, int]) -> int | None:
    """The slot on a node, of so many slots; None on a spare."""
    if node < slots and node_of(node, moved) == node:
        return node
    return next((slot for slot, other in moved.items() if other == node), None)


def partner_of(slot: int, slots: int, segment_slots: int) -> int | None:
    """The slot whose node holds copies of this slot's captures; None for the only slot.

    `segment_slots` slots in a row share a failure domain. Each slot is the partner of exactly one, and as few as possible have theirs in
    their own domain: none where no domain has more than half of the slots.
    """
    if slots == 1:
        return None
    return (slot + (segment_slots if segment_slots < slots else 1)) % slots


# --- verdicts ---------------------------------------------------------------------------------------------------------


class Exit(IntEnum):
    """How the runner ends, and so what the scheduler does next (docs/records.md)."""

    COMPLETED = 0
    RETRY_HERE = 80
    RETRY_ELSEWHERE = 81
    PREEMPTED = 82
    STOP = 83
    UNVERIFIED = 84
    SUPERSEDED = 85


VERDICTS: Mapping[Exit, str] = types.MappingProxyType(
    {
        Exit.COMPLETED: "completed",
        Exit.RETRY_HERE: "retry here",
        Exit.RETRY_ELSEWHERE: "retry elsewhere",
        Exit.PREEMPTED: "preempted or time limit; resumes from the last commit",
        Exit.STOP: "stop: the user's error, or no progress",
        Exit.UNVERIFIED: "stop: checkpoints exist and none verifies",
        Exit.SUPERSEDED: "superseded by a newer generation",
    }
)


# At this a worker writes the stack of its thread that gets it, whoever holds the GIL (faulthandler). Real-time signals have no other
# meaning.
STACKS_SIGNAL = int(signal.SIGRTMIN) + 7

# `rundir open` ends with this when somebody else has opened the attempt.
ATTEMPT_TAKEN = 75


def settled(code: int) -> int:
    """The exit code of an attempt that left no verdict: the runner's own codes say themselves; anything else lost a node or the store."""
    return code if code in set(Exit) else int(Exit.RETRY_ELSEWHERE)


@dataclass(frozen=True)
class Verdict:
    """verdict.json of an attempt. The file wins over the exit code."""

    run: str
    attempt: int
    generation: int
    verdict: str
    cause: str
    exit_code: int
    rank: int | None = None
    node: int | None = None
    suspects: tuple[int, ...] = ()
    step: int = 0
    committed_step: int | None = None
    evidence: tuple[str, ...] = ()
    schema: str = "headway.verdict/1"


@dataclass(frozen=True)
class MetricsLine:
    """One line of metrics.jsonl: one optimizer step, written by rank 0. `save_s`: what training stood still for saves before the step,
    which `step_s` does not hold."""

    wall: float
    mono_s: float
    attempt: int
    generation: int
    step: int
    loss: float
    grad_norm: float
    tokens: int
    step_s: float
    memory_bytes: int
    save_s: float = 0.0


LEDGER_BUCKETS = (
    "productive",
    "lost_recompute",
    "save_block",
    "restore",
    "detect",
    "restart",
    "rendezvous",
    "queue",
    "hang",
    "straggle",
    "spare_idle",
)

# Seconds that are lost to the failure that ends their generation, and those that are lost to the one that it follows.
_IN_FAILING = ("detect", "hang")
_IN_RECOVERY = ("restore", "restart", "rendezvous", "queue")


def cost_by_kind(
    ledger: Iterable[tuple[int, Mapping[str, float]]], ended_by: Mapping[int, str], loaded: Collection[int]
) -> dict[str, float]:
    """Seconds by kind of failure: until the failed generation's ranks had ended, until the next one trained, and the steps done again.

    `ledger` has generation and buckets of each line, in their order; generation 0 is the wait before the next one. `ended_by` says which
    generations failed, with the kind. `loaded` are those that got their state: what one that did not took is counted with the failure
    before it.
    """
    known, failed = sorted({*ended_by, *loaded}), sorted(ended_by)
    spent = dict.fromkeys(ended_by.values(), 0.0)
    newest = 0
    for generation, buckets in ledger:
        number = generation or newest + 1
        newest = max(newest, generation)
        by, after = ended_by.get(number), ended_by.get(_last_before(number, known))
        again = after or ended_by.get(_last_before(number, failed)) or by
        for kind, names in ((by or after, _IN_FAILING), (after, _IN_RECOVERY), (again, ("lost_recompute",))):
            if kind is not None:
                spent[kind] += sum(buckets.get(name, 0.0) for name in names)
    return spent


def _last_before(number: int, numbers: Sequence[int]) -> int:
    """The highest of the sorted `numbers` that is below `number`; 0 where there is none, which is no generation."""
    place = bisect_left(numbers, number)
    return numbers[place - 1] if place else 0


# --- the heartbeat page -----------------------------------------------------------------------------------------------

SECTIONS = (
    "start",
    "rendezvous",
    "restore",
    "data",
    "compute",
    "save",
    "finish",
    "script",
    "compile",
    "collective",
    "evaluation",
)
_WORDS = ("pid", "generation", "step", "section", "monotonic_ns", "save_request", "pulse", "own_ns")
_BYTES_PER_RANK = 8 * len(_WORDS)
HEARTBEAT: Mapping[str, int] = types.MappingProxyType({word: place for place, word in enumerate(_WORDS)})


class HeartbeatPage:
    """One cache line of eight signed 64-bit words per local rank, written by the worker and read from outside it.

    Reading needs neither the worker's interpreter nor a socket, so it works with the GIL held. `step` counts completed optimizer
    steps; `pulse` counts signs of life of any kind (a batch, a backward pass, a change of section), at each of which `monotonic_ns` is
    set; `own_ns` is what the rank has spent outside of waits for other ranks since it started, 0 where that is not
    measured. Every word is aligned, so a single store is seen whole; words of one line may be of different moments.
    """

    def __init__(self, buffer: memoryview) -> None:
        self._words = buffer.cast("q")

    @staticmethod
    def bytes_for(ranks: int) -> int:
        return ranks * _BYTES_PER_RANK

    def read(self, local_rank: int) -> dict[str, int]:
        base = local_rank * len(_WORDS)
        return {name: self._words[base + i] for i, name in enumerate(_WORDS)}

    def line(self, local_rank: int) -> memoryview:
        """The rank's words for a writer that cannot afford `write`: signed 64-bit, at the places of HEARTBEAT."""
        base = local_rank * len(_WORDS)
        return self._words[base : base + len(_WORDS)]

    def write(self, local_rank: int, **words: int) -> None:
        base = local_rank * len(_WORDS)
        for name, value in words.items():
            self._words[base + _WORDS.index(name)] = value


# --- records as JSON --------------------------------------------------------------------------------------------------

T = TypeVar("T")


class RecordError(ValueError):
    """A record does not have the shape that its schema promises."""


def to_json(record: Any, indent: int | None = None) -> str:
    """The record as JSON with sorted keys: the same record gives the same bytes."""
    return json.dumps(record, default=vars, sort_keys=True, indent=indent, allow_nan=False)


def from_json(kind: type[T], text: str) -> T:
    """The record in `text`. Raises RecordError for another schema, an unknown or missing field, or a wrong type, by name."""
    try:
        data = json.loads(text)
    except ValueError as error:
        raise RecordError(f"not JSON: {error}") from None
    return typing.cast("T", _decode(kind, data, kind.__name__))


def _decode(kind: Any, value: Any, where: str) -> Any:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any:
        return value
    if origin in (typing.Union, types.UnionType):
        return _decode_optional(arguments, value, where)
    if dataclasses.is_dataclass(kind):
        return _decode_record(kind, value, where)
    if origin is tuple:
        return tuple(_decode(arguments[0], item, f"{where}[{i}]") for i, item in enumerate(_expect(list, value, where)))
    if origin is not None and issubclass(origin, Mapping):
        return {key: _decode(arguments[1], item, f"{where}.{key}") for key, item in _expect(dict, value, where).items()}
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    return _expect(kind, value, where)


def _decode_optional(arguments: tuple[Any, ...], value: Any, where: str) -> Any:
    if value is None and type(None) in arguments:
        return None
    (kind,) = (a for a in arguments if a is not type(None))
    return _decode(kind, value, where)


def _decode_record(kind: Any, value: Any, where: str) -> Any:
    data = _expect(dict, value, where)
    hints, fields = _fields(kind)
    expected = fields["schema"].default if "schema" in fields else None
    if expected is not None and data.get("schema") != expected:
        raise RecordError(f"{where}: unknown schema {data.get('schema')!r}; expected {expected!r}")
    for problem in _shape_problems(data, fields):
        raise RecordError(f"{where}: {problem}")
    return kind(**{name: _decode(hints[name], item, f"{where}.{name}") for name, item in data.items()})


@functools.cache
def _fields(kind: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Types and fields of a record by name; a part has a hundred thousand records of one kind."""
    return typing.get_type_hints(kind), {f.name: f for f in dataclasses.fields(kind)}


def _shape_problems(data: Mapping[str, Any], fields: Mapping[str, Any]) -> Iterator[str]:
    for name in data.keys() - fields.keys():
        yield f"unknown field {name!r}"
    for name, f in fields.items():
        if name not in data and f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING:
            yield f"field {name!r} is missing"


def _expect(kind: Any, value: Any, where: str) -> Any:
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise RecordError(f"{where}: expected {kind.__name__}, found {type(value).__name__}")
    return value
