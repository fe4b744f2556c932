"""Defines the messages between a worker and its node's keeper: JSON lines over a Unix socket, with buffers as descriptors."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from headway.runner.checkpoint.keeper.capture import Layout, Stored

# --- a worker asks ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Hello:
    """Who connects, and what the keeper is to do for it.

    `storage`: tier -> where it lies: a directory (`disk`) or the URL of an object store (`remote`), in which `<checkpoint>/` is made.
    `partner`: the address file of the keeper that holds copies of this node's captures; None: nobody does.
    `host_memory_bytes`: what all buffers on this node may take together, copies of other nodes included; None: no limit but the node's.
    """

    run: str
    slot: int
    rank: int
    local_ranks: int
    generation: int
    storage: Mapping[str, str]
    partner: str | None = None
    host_memory_bytes: int | None = None


@dataclass(frozen=True)
class Reserve:
    """`count` buffers of `bytes` for this rank; answered by Reserved. A rank that was here before gets its own again."""

    bytes: int
    count: int


@dataclass(frozen=True)
class Describe:
    """The layout of the captures that follow."""

    layout: Layout


@dataclass(frozen=True)
class Seal:
    """The buffer holds the state at `step`: hash it, keep it, and bring it to `tiers` (`memory`, `peer`, `disk`, `remote`)."""

    buffer: int
    step: int
    tiers: tuple[str, ...]
    objects: dict[str, Any]


@dataclass(frozen=True)
class Confirm:
    """All ranks have sealed `step`: captures before it are no longer wanted in memory."""

    step: int


@dataclass(frozen=True)
class Drop:
    """Not all ranks have sealed `step`, and will not: its capture is not wanted, and what waits for it ends."""

    step: int


@dataclass(frozen=True)
class List:
    """What is held; answered by Listed."""


@dataclass(frozen=True)
class Fetch:
    """A capture of `rank`, from this node or its partner; answered by Fetched or Failed."""

    rank: int
    step: int
    generation: int


Request = Hello | Reserve | Describe | Seal | Confirm | Drop | List | Fetch

# --- the keeper answers and tells -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Reserved:
    """The buffers, one descriptor each in this order. `free`: which of them hold nothing that is still wanted."""

    bytes: int
    free: tuple[bool, ...]


@dataclass(frozen=True)
class Sealed:
    """The capture is hashed; its part in memory has this hash. It survives the worker from here on."""

    step: int
    part_xxh3_128: str


@dataclass(frozen=True)
class Done:
    """The capture is in `tier`. `stored` is None for `peer`."""

    step: int
    tier: str
    stored: Stored | None


@dataclass(frozen=True)
class Failed:
    """`tier` could not take the capture of `step` (or Fetch found nothing): `reason` in words."""

    step: int
    tier: str
    reason: str


@dataclass(frozen=True)
class Freed:
    """Nothing wants what is in the buffer any more."""

    buffer: int


@dataclass(frozen=True)
class Holding:
    """One sealed capture that a keeper has: its own node's, or a copy of its partner's."""

    rank: int
    step: int
    generation: int
    part_xxh3_128: str
    bytes: int


@dataclass(frozen=True)
class Listed:
    holdings: tuple[Holding, ...]


@dataclass(frozen=True)
class Fetched:
    """The capture's buffer (one descriptor) and its part, whose chunks lie in the file `memory-<rank>`."""

    bytes: int
    part: str


Answer = Reserved | Listed | Fetched | Failed
Event = Sealed | Done | Failed | Freed
