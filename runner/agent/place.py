"""The node of a supervisor: the environments, descriptors and log files of the processes that it starts."""

import os
from dataclasses import dataclass
from pathlib import Path

from headway.runner.agent.launch import Torchrun
from headway.runner.contract import Exit, RunConfig, RunDirectory


@dataclass
class NodeExit:
    """The exit code of the node; None while it runs."""

    code: int | None = None

    def retry_elsewhere(self) -> None:
        self.code = Exit.RETRY_ELSEWHERE


@dataclass(frozen=True)
class Place:
    """A node of an attempt.

    `host` is its name, and `address` where it listens for other nodes. `page` is the descriptor of the heartbeat page, `events` that of
    the socket for events of workers. `keeper` is the name of the keeper's socket, None on a node without one.
    """

    config: RunConfig
    directory: RunDirectory
    node: int
    host: str
    address: str
    page: int
    events: int
    keeper: str | None

    def log(self, name: str) -> Path:
        return self.directory.logs / f"{name}-{self.node}.log"

    def companion_environment(self) -> dict[str, str]:
        """Return the environment of daemons and standbys."""
        known = {
            "RUN_JSON": str(self.directory.run_json),
            "ATTEMPT": self.directory.attempt,
            "NODE": self.node,
            "HOST": self.host,
            "ADDRESS": self.address,
        }
        return {**os.environ, **{f"HEADWAY_{name}": str(value) for name, value in known.items()}, **self._keeper_environment()}

    def worker_environment(self) -> dict[str, str]:
        """Return the environment that a worker's order adds to."""
        return {**os.environ, **self._keeper_environment()}

    def worker_descriptors(self) -> dict[str, int]:
        """Return the descriptors that a worker gets, by the variables that name them."""
        return {"HEADWAY_HEARTBEAT_FD": self.page, "HEADWAY_EVENTS_FD": self.events}

    def passes_stdin(self) -> bool:
        """torchrun's workers all have its stdin."""
        return Torchrun.of(self.config) is not None

    def _keeper_environment(self) -> dict[str, str]:
        return {} if self.keeper is None else {"HEADWAY_KEEPER": self.keeper}
