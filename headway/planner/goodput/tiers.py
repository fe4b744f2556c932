"""Describes checkpoint tiers by kind: the cost of a save, when it can be loaded, and which failures it survives."""

from collections.abc import Mapping

from msgspec import Struct

from headway.planner.goodput.defaults import defaults
from headway.planner.goodput.run import Scope, SimulatedTier

# `memory` is host memory of the node itself, `peer` that of another node in the same rack or not: a rack may take both copies.
_SURVIVES: Mapping[str, frozenset[Scope]] = {
    "memory": frozenset({Scope.PROCESS}),
    "peer": frozenset({Scope.PROCESS, Scope.NODE}),
    "shared": frozenset(Scope),
    "remote": frozenset(Scope),
}
KINDS = tuple(_SURVIVES)


class Transfer(Struct, frozen=True):
    """The volume and bandwidth of a checkpoint: bytes, and bytes a second of a node or, for storage, of all nodes
    together.

    `stored_bytes` is one checkpoint on storage; `node_bytes` a node's part of the state, in each data-parallel replica
    again. A save blocks training for the copy into host memory only.
    """

    stored_bytes: float
    node_bytes: float
    copy_bytes_s: float
    adapters_bytes_s: float
    write_bytes_s: float
    read_bytes_s: float

    @property
    def copy_s(self) -> float:
        """A node's state into its host memory, or back."""
        return self.node_bytes / self.copy_bytes_s

    @property
    def send_s(self) -> float:
        """Return the seconds to send a node's state to another node in parallel with training, or back."""
        return self.node_bytes / (self.adapters_bytes_s * float(defaults().checkpoints["peer_share"]))


def tier_of(kind: str, interval_s: float, transfer: Transfer, keep: int) -> SimulatedTier:
    """Return the tier of this kind (`memory`, `peer`, `shared`, `remote`; KeyError else) with a checkpoint after each
    `interval_s` of training."""
    match kind:
        case "memory":
            write_s, load_s = 0.0, transfer.copy_s
        case "peer":
            write_s = load_s = transfer.send_s
        case "shared" | "remote":
            write_s, load_s = transfer.stored_bytes / transfer.write_bytes_s, transfer.stored_bytes / transfer.read_bytes_s
        case _:
            raise KeyError(kind)
    return SimulatedTier(kind, interval_s, transfer.copy_s, write_s, load_s, keep, _SURVIVES[kind])
