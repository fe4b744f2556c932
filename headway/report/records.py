"""Defines the records that a runner writes into its run directory as types: handle.json and ledger.jsonl.

The types of the other records are in `headway.runner.contract`.
"""

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
