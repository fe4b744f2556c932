"""Defines the messages between an agent and its supervisor: JSON lines on a socket pair, `{"what": ..., ...}` in both directions.

Python's own `json` carries them, since a path or an argument may hold bytes that are no Unicode, which stricter codecs refuse.
"""

import json
from typing import Any

import msgspec

# Of events of workers: an agent that begins gets at most so many again.
EVENTS_KEPT = 256
# Of an unreadable line, in the error that it raises.
SHOWN_BYTES = 200


class WorkerProcess(msgspec.Struct):
    """A worker: its place, and how it ended once it has.

    `warm`: it was a standby. `asked`: it ended on an order. `oom`: the kernel has killed for memory since its generation began.
    `pid` is 0 until it is started.
    """

    rank: int
    local_rank: int
    generation: int
    pid: int
    warm: bool = False
    ended: str | None = None
    code: int | None = None
    asked: bool = False
    oom: bool = False


class RankOrder(msgspec.Struct):
    """The process to start for one rank.

    `environment` is put on top of the supervisor's. `stdout` and `stderr` are paths, None for where the supervisor's go. `cpus` are those
    that the rank is bound to, None for all.
    """

    rank: int
    local_rank: int
    argv: list[str]
    environment: dict[str, str]
    stdout: str | None
    stderr: str | None
    hosts_store: bool
    cpus: list[int] | None


class UndeadRank(msgspec.Struct, frozen=True):
    """A rank that SIGKILL does not end, with the state of its process (proc(5))."""

    rank: int
    state: str | None


class _Line(msgspec.Struct, frozen=True, tag_field="what"):
    """A message; its tag is the `what` of the line."""


# --- the agent asks ---------------------------------------------------------------------------------------------------


class Spawn(_Line, frozen=True, tag="spawn"):
    """Start all workers of a generation, from standbys where they are ready; all of them start, or none."""

    generation: int
    workers: list[RankOrder]


class StartStandbys(_Line, frozen=True, tag="standby"):
    """Start a standby for each of these ranks that has none; it imports `modules`."""

    workers: list[RankOrder]
    modules: list[str]


class Respawn(_Line, frozen=True, tag="respawn"):
    """Start these ranks of the generation again, whose workers have ended, from standbys where they are ready; the others run on."""

    generation: int
    workers: list[RankOrder]


class KillWorkers(_Line, frozen=True, tag="kill"):
    """Send a signal to the workers of this generation and of earlier ones, or only to those of some `ranks`."""

    generation: int
    signal: int
    ranks: list[int] | None = None


class Dump(_Line, frozen=True, tag="dump"):
    """Have the processes of these ranks write their stacks."""

    ranks: list[int]


class Listen(_Line, frozen=True, tag="listen"):
    """Open a socket for the rendezvous store; answered by Listening."""


class Coordinate(_Line, frozen=True, tag="coordinate"):
    """Start a coordinator on this node, unless one runs."""


class PrintLine(_Line, frozen=True, tag="print"):
    """Print `text` where the job's own log is: this agent's is a file of the run."""

    text: str


class ExitNode(_Line, frozen=True, tag="exit"):
    """End everything on this node and exit with `code`."""

    code: int


Request = Spawn | Respawn | StartStandbys | KillWorkers | Dump | Listen | Coordinate | PrintLine | ExitNode

# --- the supervisor reports -------------------------------------------------------------------------------------------


class NodeState(_Line, frozen=True, tag="hello"):
    """The state of the node, for an agent that begins.

    `events` are the newest that workers have reported, `stopping_s` how long ago the node was asked to stop, `port` that of its open
    rendezvous socket.
    """

    workers: list[WorkerProcess]
    events: list[dict[str, Any]]
    stopping_s: float | None
    port: int | None


class Listening(_Line, frozen=True, tag="listening"):
    """The port of the node's rendezvous socket; None if none could be opened."""

    port: int | None


class StandbyReport(_Line, frozen=True, tag="standbys"):
    """Standbys of all these local ranks have imported everything."""

    ready: list[int]


class Spawned(_Line, frozen=True, tag="spawned"):
    """The workers run. `cold`: why a local rank's standby was not used."""

    workers: list[WorkerProcess]
    cold: dict[int, str]


class WorkerEvent(_Line, frozen=True, tag="event"):
    """An event as a worker has reported it (runner/worker.py, `Worker.say`)."""

    event: dict[str, Any]


class WorkerEnded(_Line, frozen=True, tag="ended"):
    worker: WorkerProcess


class UndeadReport(_Line, frozen=True, tag="undead"):
    """SIGKILL does not end these ranks."""

    undead: list[UndeadRank]


class StopSignal(_Line, frozen=True, tag="signal"):
    """A scheduler or a person has asked the node to stop."""


Report = NodeState | Listening | StandbyReport | Spawned | WorkerEvent | WorkerEnded | UndeadReport | StopSignal


def encode(message: Request | Report) -> bytes:
    """Return the message as a line."""
    return json.dumps(msgspec.to_builtins(message, str_keys=True)).encode() + b"\n"


def request_of(line: bytes) -> Request:
    """Return the agent's request. Raises ValueError, with the line, for a line that is none."""
    try:
        request: Request = msgspec.convert(json.loads(line), Request, str_keys=True)
    except ValueError as error:
        raise _unreadable(line, "request", error) from error
    return request


def report_of(line: bytes) -> Report:
    """Return the supervisor's report. Raises ValueError, with the line, for a line that is none."""
    try:
        report: Report = msgspec.convert(json.loads(line), Report, str_keys=True)
    except ValueError as error:
        raise _unreadable(line, "report", error) from error
    return report


def _unreadable(line: bytes, what: str, error: ValueError) -> ValueError:
    return ValueError(f"unreadable {what} {line[:SHOWN_BYTES]!r}: {error}")
