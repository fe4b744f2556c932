"""Defines the messages between a worker and its node's keeper: JSON lines over a Unix socket, with buffers as descriptors."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from headway.runner.checkpoint.keeper.capture import BufferLayout, Stored

# --- a worker asks ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Hello:
    """A client connects, and describes what the keeper is to do for it.

    `storage`: tier -> location: a directory (`shared`) or the URL of an object store (`remote`), in which `<checkpoint>/`
    is created. `partner`: the address file of the keeper that holds copies of this node's captures; None: there is
    none. `host_memory_bytes`: the limit of all buffers on this node together, copies of other nodes included; None: no
    limit but the node's memory.
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
    """Request `count` buffers of `bytes` for this rank; answered by Reserved. A rank that reconnects gets its buffers again."""

    bytes: int
    count: int


@dataclass(frozen=True)
class Describe:
    """The layout of the following captures."""

    layout: BufferLayout


@dataclass(frozen=True)
class Seal:
    """The buffer holds the state at `step`: hash it, keep it, and bring it to `tiers` (`memory`, `peer`, `shared`, `remote`)."""

    buffer: int
    step: int
    tiers: tuple[str, ...]
    objects: dict[str, Any]


@dataclass(frozen=True)
class Confirm:
    """All ranks have sealed `step`: earlier captures are no longer needed in memory."""

    step: int


@dataclass(frozen=True)
class Drop:
    """Some rank will not seal `step`: its capture is not needed, and pending work on it ends."""

    step: int


@dataclass(frozen=True)
class List:
    """Request the list of captures; answered by Listed."""


@dataclass(frozen=True)
class Fetch:
    """Request a capture of `rank`, from this node or its partner; answered by Fetched or Failed."""

    rank: int
    step: int
    generation: int


Request = Hello | Reserve | Describe | Seal | Confirm | Drop | List | Fetch

# --- the keeper answers and reports -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Reserved:
    """The buffers, one descriptor each in this order. `free`: those that hold nothing that is still needed."""

    bytes: int
    free: tuple[bool, ...]


@dataclass(frozen=True)
class Sealed:
    """The capture is hashed; its part in memory has this hash. From here on it survives the worker."""

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
    """`tier` could not take the capture of `step` (or Fetch found nothing), with the `reason`."""

    step: int
    tier: str
    reason: str


@dataclass(frozen=True)
class Freed:
    """The buffer is no longer needed."""

    buffer: int


@dataclass(frozen=True)
class Holding:
    """One sealed capture of a keeper: its own node's, or a copy of its partner's."""

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
    """The capture's buffer (one descriptor) and its part, whose chunks are in the file `memory-<rank>`."""

    bytes: int
    part: str


Answer = Reserved | Listed | Fetched | Failed
Event = Sealed | Done | Failed | Freed
