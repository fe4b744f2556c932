"""Defines what the coordinator orders agents to do: one type for each kind of message, whose fields are the message's body."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar

from headway.runner.contract.base import Base
from headway.runner.contract.codec import decode


@dataclass(frozen=True)
class Order:
    """An order to one agent or to all."""

    KIND: ClassVar[str]


@dataclass(frozen=True)
class Assign(Order):
    """The slot that the node computes; None for a spare."""

    KIND = "assign"
    slot: int | None


@dataclass(frozen=True)
class StartRanks(Order):
    """Start the message's generation. `moved` has [slot, node] wherever slot i is not on node i; the address is the rendezvous store's."""

    KIND = "start"
    slots: int
    moved: tuple[tuple[int, int], ...]
    master_addr: str
    master_port: int
    restarts: int
    base: Base | None


@dataclass(frozen=True)
class TakeSlot(StartRanks):
    """Take a lost node's slot in the message's generation, which continues: `RestartRanks` starts its ranks."""

    KIND = "take"


@dataclass(frozen=True)
class Save(Order):
    """Save and stop after the current step."""

    KIND = "save"


@dataclass(frozen=True)
class Survey(Order):
    """Report the captures that the node's keeper holds."""

    KIND = "survey"


@dataclass(frozen=True)
class ProbeRanks(Order):
    """Inspect the processes of these ranks; None: of all on the node."""

    KIND = "probe"
    ranks: tuple[int, ...] | None


@dataclass(frozen=True)
class Stop(Order):
    """End the workers; with `exit_code` the node too. `grace_s`: how long a script may take to save before SIGKILL."""

    KIND = "stop"
    grace_s: float | None = None
    exit_code: int | None = None


@dataclass(frozen=True)
class ChangeMembers(Order):
    """From now on these replica groups train together; `epoch` counts the changes (`Members`)."""

    KIND = "members"
    epoch: int
    replicas: tuple[int, ...]


@dataclass(frozen=True)
class EndRanks(Order):
    """End the processes of these ranks: another rank of their replica group has ended."""

    KIND = "end"
    ranks: tuple[int, ...]


@dataclass(frozen=True)
class RestartRanks(Order):
    """Start these ranks of a lost replica group again, in the generation that runs; `start` counts such starts, from 1."""

    KIND = "restart"
    ranks: tuple[int, ...]
    start: int


_KINDS: tuple[type[Order], ...] = (
    Assign,
    StartRanks,
    TakeSlot,
    Save,
    Survey,
    ProbeRanks,
    Stop,
    ChangeMembers,
    EndRanks,
    RestartRanks,
)
ORDERS: Mapping[str, type[Order]] = {kind.KIND: kind for kind in _KINDS}


def body_of(order: Order) -> dict[str, Any]:
    """Return the message's body; a field that has its default value is not sent."""
    return {each.name: value for each in fields(order) if (value := _plain(getattr(order, each.name))) != each.default}


def order_of(kind: str, body: Mapping[str, Any]) -> Order:
    """Return the order in a message. Raises RecordError, by field, and KeyError for an unknown kind."""
    return decode(ORDERS[kind], body)


def _plain(value: Any) -> Any:
    return asdict(value) if isinstance(value, Base) else value
