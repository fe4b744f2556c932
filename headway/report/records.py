"""The records that a runner leaves in its run directory, as typed values: handle.json, ledger.jsonl and the journal's lines."""

from collections.abc import Mapping
from typing import ClassVar

from pydantic import BaseModel, ConfigDict


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
    """Where the seconds of one generation went, or of the wait between two attempts (generation 0); times in Unix seconds."""

    SCHEMA: ClassVar[str] = "headway.ledger/1"
    attempt: int
    generation: int
    start: float
    end: float
    buckets: dict[str, float]


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
    cause: str
    rank: int | None = None
    node: int | None = None
    host: str | None = None
    step: int | None = None


class Finished(Entry):
    step: int
    hashes: dict[str, str]


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
    "finished": Finished,
    "end": End,
}
