"""Holds the timeouts of a run: their names, their defaults, and where to set them."""

import types
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Timeout:
    """The limit of a section: `floor_s` seconds, or `factor` times the usual duration, whichever is longer."""

    floor_s: float
    factor: float = 1.0


DEFAULT_TIMEOUTS: Mapping[str, Timeout] = types.MappingProxyType(
    {
        # Until every agent has joined: nodes boot and import at different speeds.
        "join": Timeout(600.0),
        # For more nodes once enough have joined: torchrun's default (last_call_timeout).
        "last_call": Timeout(30.0),
        # Until an agent that lost its connection is given up, without other evidence that it is dead or alive: while steps continue,
        # nothing is lost.
        "agent": Timeout(30.0),
        # Until a node that sends nothing on an open connection is given up, if no rank continues either: virtual machines pause for
        # seconds. With an idle spare, replacing the node costs less than waiting for the end of a pause.
        "node": Timeout(10.0),
        "node_spare": Timeout(3.0),
        # Until a node replaces one that was lost, if no spare is left. 0: the scheduler replaces it, in a new attempt.
        "replace": Timeout(0.0),
        # Until a lost replica group trains again, before all ranks restart: the others cannot save while it is missing.
        "replica": Timeout(300.0),
        # Until the node of slot 0 can listen for the rendezvous store's clients, once its generation is claimed.
        "listen": Timeout(60.0),
        # For a script's ranks between SIGTERM and SIGKILL after another rank has failed: torchrun's default (multiprocessing/api.py,
        # close). It ends sooner if all remaining ranks wait in collectives.
        "terminate": Timeout(30.0),
        # For ranks to end, in addition to their grace period: a process may be where SIGKILL does not reach it.
        "kill": Timeout(60.0),
        # For a store that does not answer at all, while a claim, a start or a verdict waits for it.
        "store": Timeout(600.0),
        # For the ranks to verify what a script has saved before it restarts; files loaded later are verified when they are loaded.
        "verify": Timeout(300.0),
        # Sections of a worker: this long without a heartbeat ends the generation even if nothing corroborates a hang; or `factor` times
        # the 99th percentile that was seen in that section, if that is longer. A corroborated hang ends much earlier.
        "start": Timeout(1800.0),
        "data": Timeout(900.0, 10.0),
        "compute": Timeout(900.0, 10.0),
        "compile": Timeout(3600.0, 10.0),
        # Also the timeout that the builtin trainer passes to torch.distributed.
        "collective": Timeout(600.0),
        "checkpoint": Timeout(1800.0, 10.0),
        # Also a rank that waits for something outside of the job: a reply over the network, or a clock.
        "evaluation": Timeout(3600.0, 10.0),
        # In place of the section's, while a rank outside of a collective uses CPU or does I/O.
        "busy": Timeout(86400.0),
    }
)


def set_by(timeout: str) -> str:
    """Return the names of the setting and of the variable of this timeout, for a message."""
    return f"`resilience.timeouts.{timeout}`, for headway torchrun HEADWAY_TIMEOUT_{timeout.upper()}"
