"""Starts a node's coordinator and keeper, and restarts a daemon that dies until it has died too often."""

import os
import socket
import sys
import time
from dataclasses import dataclass, field

from headway.runner.agent.place import NodeExit, Place
from headway.runner.agent.processes import describe_status, spawn
from headway.runner.start import START

# Within OF_LATE_S, of an agent or a coordinator that keeps dying: then the node is not usable.
MAX_RESTARTS = 20
# Of a coordinator that was taken over and keeps dying: another node may have more luck.
MAX_TAKEOVERS = 3
OF_LATE_S = 3600.0


@dataclass
class Daemon:
    """The agent, the coordinator, the keeper or the host of the store: restarted when it ends with anything but 0."""

    module: str
    pid: int = 0
    restarts: int = 0
    deaths: list[float] = field(default_factory=list)  # monotonic, those within OF_LATE_S

    def argv(self) -> list[str]:
        return [sys.executable, START, self.module]

    def count_death(self) -> bool:
        """Count a death. Return whether the daemon has died too often."""
        now = time.monotonic()
        self.restarts += 1
        self.deaths = [*(each for each in self.deaths if now - each < OF_LATE_S), now]
        return len(self.deaths) > MAX_RESTARTS

    def died(self, status: int) -> bool:
        """Report and count a death. Return whether the daemon has died too often."""
        given_up = self.count_death()
        print(f"{self.module}: {describe_status(status)}, restart {self.restarts}", file=sys.stderr, flush=True)
        return given_up


class CoordinatorDaemon:
    """The coordinator, on the node that hosts it and on one that takes over."""

    def __init__(self, place: Place, node_exit: NodeExit, *, is_host: bool) -> None:
        self._place, self._exit, self._is_host = place, node_exit, is_host
        self._daemon = self._new()

    @property
    def pid(self) -> int:
        """0 while no coordinator runs here."""
        return self._daemon.pid

    def start(self) -> None:
        """Start a coordinator here, unless one runs."""
        if not self._daemon.pid:
            self._spawn()

    def ended(self, status: int) -> None:
        self._daemon.pid = 0
        if os.waitstatus_to_exitcode(status) == 0:
            # It has decided, or another one has taken over.
            return
        given_up = self._daemon.died(status)
        if not self._is_host and len(self._daemon.deaths) > MAX_TAKEOVERS:
            self._daemon = self._new()
        elif given_up:
            self._exit.retry_elsewhere()
        else:
            self._spawn()

    def _new(self) -> Daemon:
        return Daemon("headway.runner.coordinator.main")

    def _spawn(self) -> None:
        log = self._place.log("coordinator")
        self._daemon.pid = spawn(self._daemon.argv(), self._place.companion_environment(), (), log, log)


class KeeperDaemon:
    """The keeper; `start` does nothing on a node without one."""

    def __init__(self, place: Place, node_exit: NodeExit) -> None:
        self._place, self._exit = place, node_exit
        self._daemon = Daemon("headway.runner.checkpoint.keeper")
        self._parent_end: socket.socket | None = None

    @property
    def pid(self) -> int:
        return self._daemon.pid

    def start(self) -> None:
        """Start a keeper under the same name as before: workers find it there again, without the captures of the previous one."""
        place = self._place
        if place.keeper is None:
            return
        ours, theirs = socket.socketpair()
        options = {"socket": place.keeper, "parent-fd": theirs.fileno(), "host": place.address}
        files = {"address-file": place.directory.keeper(place.node), "secret-file": place.directory.secret_file}
        marked = {} if place.config.peer_dscp is None else {"dscp": place.config.peer_dscp}
        argv = [*self._daemon.argv(), *(f"--{name}={value}" for name, value in {**options, **files, **marked}.items())]
        log = place.log("keeper")
        self._daemon.pid = spawn(argv, place.companion_environment(), [theirs.fileno()], log, log)
        theirs.close()
        # Its end is ours: the keeper does not outlive this process.
        self._parent_end = ours

    def ended(self, status: int) -> None:
        """Start another keeper. Captures in the memory of the old one are lost; workers notice at their next save."""
        self.close()
        if self._daemon.died(status):
            self._exit.retry_elsewhere()
        else:
            self.start()

    def close(self) -> None:
        if self._parent_end is not None:
            self._parent_end.close()
