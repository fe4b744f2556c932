"""Defines the records that a runner writes into its run directory as types: handle.json, ledger.jsonl and journal lines."""

from collections.abc import Mapping
from typing import ClassVar

from pydantic import BaseModel, ConfigDict, Field


class Record(BaseModel):
    """A field unknown here is left aside: a newer runner may say more under the same schema."""

    model_config = ConfigDict(frozen=True, strict=True, extra="ignore")


class Handle(Record):
    """handle.json: which run this is. `submitted_at` in Unix seconds, `steps` null where only the script knows."""

    SCHEMA: ClassVar[str] = "headway.handle/1"
    run: str
    job: str
    spec_hash: str
    slots: int
    procs_per_slot: int
    world_size: int
    steps: int | None
    trainer: str
    submitted_at: float


class LedgerLine(Record):
    """Where the seconds of one generation went, or of the wait between two attempts (generation 0); times in Unix seconds.

    `buckets` are wall seconds of the `slots` nodes that compute; `spares` more nodes stood by all the time.
    """

    SCHEMA: ClassVar[str] = "headway.ledger/1"
    attempt: int
    generation: int
    start: float
    end: float
    buckets: dict[str, float]
    slots: int = 1
    spares: int = 0


class Entry(Record):
    """One line of the journal; `wall` in Unix seconds."""

    wall: float
    attempt: int | None = None


class Base(Record):
    """What a claim names: a committed checkpoint, or what the nodes held in memory."""

    step: int
    generation: int
    tier: str = "disk"


class Claim(Entry):
    base: Base | None


class Node(Record):
    node: int
    host: str
    slot: int


class Start(Entry):
    nodes: list[Node]
    world_size: int


class Loaded(Entry):
    step: int


class Committed(Entry):
    step: int
    save_s: float
    bytes: int
    files: int | None = None


class CheckpointName(Record):
    step: int
    generation: int


class Retired(Entry):
    """Checkpoints that were deleted because enough newer ones are kept."""

    checkpoints: list[CheckpointName]


class Refused(Entry):
    """A checkpoint that failed verification: `name` is the file that did, `generation` the one that saved it."""

    step: int
    generation: int
    name: str
    reason: str


class Failure(Entry):
    """`cause_kind` is what kind of failure it was: "crash", "hang", "node lost" and so on."""

    cause: str
    cause_kind: str | None = None
    rank: int | None = None
    node: int | None = None
    host: str | None = None
    step: int | None = None


class Finished(Entry):
    step: int
    hashes: dict[str, str]


class Hang(Entry):
    """A generation that went no further: `ranks` are the culprits, `evidence` files below the run directory."""

    ranks: list[int]
    section: str
    silent_s: float
    why: str
    evidence: list[str] = []


class Straggler(Entry):
    """A rank whose own time per step is `ratio` times the others'."""

    rank: int
    ratio: float
    own_step_s: float
    host: str | None = None


class OfNode(Entry):
    node: int | None = None
    host: str | None = None


class LostNode(OfNode):
    why: str


class Excluded(OfNode):
    """A suspect whose slots others take."""

    why: str


class Regroup(OfNode):
    """A node has come for which the run had room."""


class Rebound(Entry):
    """A slot that has another node than before."""

    slot: int
    before: int | None = Field(None, alias="from")
    to: int
    outside: bool = False
    host: str | None = None


class Corruption(Entry):
    """Ranks were shown to compute, or to hold, other numbers than others; up to `sound_step` all was right."""

    ranks: list[int]
    hosts: list[str | None] = []
    found: str
    sound_step: int


class Transient(Entry):
    """A step that was computed again, since something was wrong at the first try; on which hosts, where that is known."""

    step: int
    found: str
    hosts: list[str | None] = []


class Spike(Entry):
    """An unusual step that all ranks compute the same."""

    step: int
    found: str


class Takeover(Entry):
    term: int
    node: int


class RefusedFile(Entry):
    """A file of a script's own that is not to be used, and its name `now`."""

    path: str
    now: str
    why: str


class Unseen(Entry):
    """What of a script the runner's hooks cannot see."""

    calls: list[str]


class End(Entry):
    verdict: str
    exit_code: int
    cause: str


JOURNAL_KINDS: Mapping[str, type[Entry]] = {
    "claim": Claim,
    "start": Start,
    "loaded": Loaded,
    "committed": Committed,
    "refused": Refused,
    "retired": Retired,
    "failure": Failure,
    "hang": Hang,
    "straggler": Straggler,
    "lost": LostNode,
    "excluded": Excluded,
    "regroup": Regroup,
    "rebound": Rebound,
    "takeover": Takeover,
    "corruption": Corruption,
    "transient": Transient,
    "spike": Spike,
    "refused file": RefusedFile,
    "unseen": Unseen,
    "finished": Finished,
    "end": End,
}
