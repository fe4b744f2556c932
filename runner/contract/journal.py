"""Defines the journal: one type for each kind of line.

A line is `{wall, kind, generation, attempt, ...}` in the file of its generation, and the other fields are those of the type. A field that
has its default value is not written. A field called `generation` replaces the line's own.

The coordinator writes the lines (`line_of`); the report, the command line and the next coordinator read them (`read_entry`). A newer runner
may write kinds and fields that this one does not know: they are ignored. CONTRIBUTING.md describes how to add a kind.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from headway.runner.contract.base import CheckpointId
from headway.runner.contract.codec import RecordError, decode


@dataclass(frozen=True)
class Entry:
    """One line, of a kind that this version does not know unless it is a subclass.

    `wall` (Unix seconds) and `attempt` are set when the line is written. `KIND` names the line. `ALARMS`: the coordinator's log shows it
    as a warning. `FROM_NODES`: an agent may send it as it is; the next coordinator relies on the other kinds.
    """

    KIND: ClassVar[str] = ""
    ALARMS: ClassVar[bool] = False
    FROM_NODES: ClassVar[bool] = False
    wall: float = field(default=0.0, kw_only=True)
    attempt: int | None = field(default=None, kw_only=True)


# --- a generation -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ClaimedBase:
    """The checkpoint that a generation begins with; `tier` is where it is read from."""

    step: int
    generation: int
    tier: str = "shared"


@dataclass(frozen=True)
class Claim(Entry):
    """A generation is claimed; `base` is None if it begins with fresh weights."""

    KIND = "claim"
    base: ClaimedBase | None


@dataclass(frozen=True)
class PlacedNode:
    slot: int
    node: int
    host: str | None


@dataclass(frozen=True)
class Start(Entry):
    """The ranks are ordered to start; written before any agent gets the order.

    `moved` has [slot, node] wherever slot i is not on node i. `nodes` lists all nodes of a small job, and the moved ones of a large one.
    """

    KIND = "start"
    nodes: tuple[PlacedNode, ...]
    world_size: int
    slots: int | None = None
    moved: tuple[tuple[int, int], ...] | None = None
    restarts: int | None = None


@dataclass(frozen=True)
class Section(Entry):
    """Rank 0 enters rendezvous, restore, compute or the script."""

    KIND, FROM_NODES = "section", True
    name: str
    rank: int | None = None


@dataclass(frozen=True)
class Loaded(Entry):
    """Every rank has verified its state."""

    KIND = "loaded"
    step: int


@dataclass(frozen=True)
class Finished(Entry):
    """The builtin trainer reached its last step. `hashes` are those of its state, by name."""

    KIND, FROM_NODES = "finished", True
    step: int
    hashes: Mapping[str, str]
    rank: int | None = None


@dataclass(frozen=True)
class End(Entry):
    """The attempt is over."""

    KIND = "end"
    verdict: str
    exit_code: int
    cause: str


# --- checkpoints ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Committed(Entry):
    """A checkpoint is on the chain; `save_s` from the save's begin."""

    KIND, FROM_NODES = "committed", True
    step: int
    save_s: float
    bytes: int
    tier: str | None = None
    files: int | None = None
    rank: int | None = None


@dataclass(frozen=True)
class Retired(Entry):
    """Checkpoints were deleted because enough newer ones are kept."""

    KIND, FROM_NODES = "retired", True
    checkpoints: tuple[CheckpointId, ...]
    rank: int | None = None


@dataclass(frozen=True)
class Refused(Entry):
    """A checkpoint failed verification: `name` is the damaged file, `generation` the one that saved it."""

    KIND, ALARMS, FROM_NODES = "refused", True, True
    step: int
    generation: int
    name: str
    reason: str
    tier: str = "shared"
    rank: int | None = None


@dataclass(frozen=True)
class Unread(Entry):
    """A checkpoint could not be read, which is not damage: no claim may skip it."""

    KIND, ALARMS = "unread", True
    step: int
    generation: int
    name: str
    reason: str
    tier: str
    rank: int
    node: int | None = None
    host: str | None = None


@dataclass(frozen=True)
class Waited(Entry):
    """The builtin trainer waited for its last saves."""

    KIND, FROM_NODES = "waited", True
    seconds: float
    rank: int | None = None


# --- corruption -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Compared(Entry):
    """The replicas of a script were equal after `step`; `sound_step` had been committed by then."""

    KIND = "compared"
    step: int | None
    sound_step: int


@dataclass(frozen=True)
class Corruption(Entry):
    """Ranks compute or hold wrong numbers; up to `sound_step` all was right."""

    KIND, ALARMS = "corruption", True
    ranks: tuple[int, ...]
    found: str
    sound_step: int
    nodes: tuple[int, ...] = ()
    hosts: tuple[str | None, ...] = ()


@dataclass(frozen=True)
class Transient(Entry):
    """A step was wrong once, and right when it was computed again; `hosts` where that is known."""

    KIND, FROM_NODES = "transient", True
    step: int
    found: str
    sample: int | None = None
    ranks: tuple[int, ...] = ()
    hosts: tuple[str | None, ...] = ()
    rank: int | None = None
    node: int | None = None


@dataclass(frozen=True)
class Spike(Entry):
    """An unusual step that all ranks compute alike."""

    KIND, FROM_NODES = "spike", True
    step: int
    found: str
    sample: int | None = None
    rank: int | None = None
    node: int | None = None


# --- failures ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Failure(Entry):
    """A generation failed. `cause_kind` is a value of `CauseKind`; equal failures have the same `fingerprint`."""

    KIND, ALARMS = "failure", True
    cause: str
    cause_kind: str | None = None
    fingerprint: str | None = None
    rank: int | None = None
    node: int | None = None
    host: str | None = None
    step: int | None = None
    sample: int | None = None


@dataclass(frozen=True)
class ReplicaLost(Entry):
    """A replica group has lost a rank: the others train on while its `ranks` start again. `cause` and `cause_kind` as in a failure's."""

    KIND, ALARMS = "replica lost", True
    replica: int
    ranks: tuple[int, ...]
    cause: str
    cause_kind: str
    fingerprint: str
    rank: int | None = None
    node: int | None = None
    host: str | None = None
    step: int | None = None


@dataclass(frozen=True)
class MembersChanged(Entry):
    """These replica groups train together from now on; `epoch` counts the changes since the generation began."""

    KIND = "members"
    epoch: int
    replicas: tuple[int, ...]


@dataclass(frozen=True)
class Regrouped(Entry):
    """The replica groups have agreed on their members, before the step after `step`; training waited `seconds` for that. `returned`
    have got their state from another one's memory."""

    KIND, FROM_NODES = "regrouped", True
    epoch: int
    step: int
    seconds: float
    replicas: tuple[int, ...]
    returned: tuple[int, ...] = ()
    rank: int | None = None
    node: int | None = None


@dataclass(frozen=True)
class Hang(Entry):
    """A generation makes no progress. `ranks` are the culprits, `evidence` files below the run directory."""

    KIND, ALARMS = "hang", True
    ranks: tuple[int, ...]
    section: str
    silent_s: float
    why: str
    evidence: tuple[str, ...] = ()


@dataclass(frozen=True)
class Straggler(Entry):
    """A rank's own time per step is `ratio` times that of the others."""

    KIND, ALARMS = "straggler", True
    rank: int
    ratio: float
    own_step_s: float
    node: int | None = None
    host: str | None = None


@dataclass(frozen=True)
class Undead(Entry):
    """SIGKILL does not end these ranks; `states` are those of their processes (proc(5))."""

    KIND, ALARMS = "undead", True
    ranks: tuple[int, ...]
    states: tuple[str, ...]
    nodes: tuple[int, ...]


# --- nodes ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LostNode(Entry):
    """A node is given up; `undying` are ranks on it that SIGKILL does not end."""

    KIND, ALARMS = "lost", True
    why: str
    node: int | None = None
    host: str | None = None
    undying: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Excluded(Entry):
    """A suspect is excluded; its slots go to others."""

    KIND = "excluded"
    why: str
    node: int | None = None
    host: str | None = None


@dataclass(frozen=True)
class Rebound(Entry):
    """A slot has another node than before. `outside`: it is not in the domain of the rest of its segment. `running`: the generation
    continues, without the replica groups of the node before."""

    KIND = "rebound"
    slot: int
    before: int | None
    to: int
    outside: bool = False
    host: str | None = None
    running: bool = False


@dataclass(frozen=True)
class Regroup(Entry):
    """A node came for which the run has room."""

    KIND = "regroup"
    node: int | None = None
    host: str | None = None


# --- the coordinator --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Takeover(Entry):
    """Another coordinator is in charge."""

    KIND = "takeover"
    term: int
    node: int
    host: str | None = None


@dataclass(frozen=True)
class Adopted(Entry):
    """A new coordinator continues with the running generation."""

    KIND = "adopted"
    term: int | None = None


@dataclass(frozen=True)
class Preempted(Entry):
    """The run was asked to stop."""

    KIND = "preempted"


# --- processes --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class StandbysReady(Entry):
    """Warm standbys are ready on node `node`; `ready` are local ranks."""

    KIND, FROM_NODES = "standby", True
    ready: tuple[int, ...]
    node: int | None = None


@dataclass(frozen=True)
class WarmStart(Entry):
    """Which workers came from standbys, and why the others of that node did not."""

    KIND, FROM_NODES = "warm", True
    ranks: tuple[int, ...] = ()
    cold: tuple[str, ...] = ()
    node: int | None = None
    hosts: tuple[str | None, ...] = ()


@dataclass(frozen=True)
class RefusedFile(Entry):
    """A script's damaged file was moved to `now`."""

    KIND, ALARMS, FROM_NODES = "refused file", True, True
    path: str
    now: str
    why: str
    rank: int | None = None
    node: int | None = None


@dataclass(frozen=True)
class Unseen(Entry):
    """Calls of a script that the hooks cannot observe."""

    KIND, FROM_NODES = "unseen", True
    calls: tuple[str, ...]
    rank: int | None = None
    node: int | None = None


JOURNAL_KINDS: Mapping[str, type[Entry]] = {
    kind.KIND: kind
    for kind in (
        *(Claim, Start, Section, Loaded, Finished, End),
        *(Committed, Retired, Refused, Unread, Waited),
        *(Compared, Corruption, Transient, Spike),
        *(Failure, Hang, Straggler, Undead),
        *(ReplicaLost, MembersChanged, Regrouped),
        *(LostNode, Excluded, Rebound, Regroup),
        *(Takeover, Adopted, Preempted),
        *(StandbysReady, WarmStart, RefusedFile, Unseen),
    )
}
# `from` is a keyword of Python.
_WRITTEN = {"before": "from"}
_READ = {written: name for name, written in _WRITTEN.items()}


_LINE = frozenset({"wall", "attempt"})


def line_of(entry: Entry, wall: float, generation: int, attempt: int) -> dict[str, Any]:
    """Return the line as a JSON object."""
    facts = {}
    for each in dataclasses.fields(entry):
        if each.name not in _LINE and (value := getattr(entry, each.name)) != each.default:
            facts[_WRITTEN.get(each.name, each.name)] = value
    return {"wall": wall, "kind": entry.KIND, "generation": generation, "attempt": attempt, **facts}


def read_entry(data: Mapping[str, Any]) -> Entry:
    """Return the line that the JSON object `data` is. Raises RecordError, by field, if it is not one."""
    kind = data.get("kind")
    if not isinstance(kind, str):
        raise RecordError(f"`kind`: expected a string, found {kind!r}")
    if "wall" not in data:
        raise RecordError("`wall` is missing")
    return read_facts(kind, data)


def read_facts(kind: str, data: Mapping[str, Any]) -> Entry:
    """Return the facts of a line of this kind. Raises RecordError, by field."""
    known = JOURNAL_KINDS.get(kind, Entry)
    return decode(known, {_READ.get(name, name): value for name, value in data.items()})
