"""Decides which failures count against their host, for the list of suspects."""

from collections.abc import Mapping

from headway.runner.contract import CauseKind
from headway.runner.coordinator.causes import Cause
from headway.runner.suspects import Strike

# Weights by kind of failure. A crash may be the fault of the program.
_WEIGHTS: Mapping[CauseKind, float] = {
    CauseKind.NODE_LOST: 1.0,
    CauseKind.HARDWARE: 1.0,
    CauseKind.CORRUPTION: 1.0,
    CauseKind.HANG: 1.0,
    CauseKind.CRASH: 0.5,
}
_OF_THE_HOST = frozenset(
    {CauseKind.NODE_LOST, CauseKind.HARDWARE, CauseKind.CORRUPTION}
    # From outside of the job's own code, and still the host's.
)
_NOBODY = frozenset({"127.0.0.1", "::1", "localhost"})


def strike(cause: Cause, run: str, wall: float) -> Strike | None:
    """Return the strike against the failure's host; None for failures that do not count.

    The user's errors, memory, values, stores and kills from outside never count, and a loopback address names no host.
    """
    weight = _WEIGHTS.get(cause.kind, 0.0)
    if cause.host is None or not weight or cause.host in _NOBODY or (cause.outside and cause.kind not in _OF_THE_HOST):
        return None
    return Strike(wall, run, cause.host, str(cause.kind), cause.fingerprint, weight)
