"""Runs the agent of a node for its supervisor: reads its requests, sends it reports, and keeps the events that its successor gets."""

import json
import selectors
import signal
import socket
import sys
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

from headway.runner.agent.daemons import Daemon
from headway.runner.agent.place import NodeExit, Place
from headway.runner.agent.processes import kill_group, spawn
from headway.runner.agent.protocol import EVENTS_KEPT, Report, Request, WorkerEvent, encode, request_of

READ_BYTES = 1 << 16
# Of events in a hello, which must leave at once: a socket takes 208 KiB (net.core.wmem_default)
REPEATED_BYTES = 1 << 17


class AgentLink:
    """The agent and the socket to it. `status` is that of an agent that has been reaped, until the main loop deals with its end."""

    def __init__(
        self, place: Place, selector: selectors.BaseSelector, node_exit: NodeExit, execute: Callable[[Request], None]
    ) -> None:
        self._place, self._selector, self._exit, self._execute = place, selector, node_exit, execute
        self.daemon = Daemon("headway.runner.agent.main")
        self.status: int | None = None
        self._socket: socket.socket | None = None
        # The beginning of a request whose end has not arrived.
        self._unread = b""
        # Of this generation's workers, for the next agent.
        self._events: deque[dict[str, Any]] = deque(maxlen=EVENTS_KEPT)

    def start(self) -> None:
        """Start an agent. Its first message, a NodeState, is the caller's to send."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        descriptors = {"SUPERVISOR_FD": theirs.fileno(), "HEARTBEAT_FD": self._place.page}
        environment = self._place.companion_environment() | {f"HEADWAY_{name}": str(fd) for name, fd in descriptors.items()}
        environment["HEADWAY_INCARNATION"] = str(self.daemon.restarts)
        log = self._place.log("agent")
        self.daemon.pid = spawn(self.daemon.argv(), environment, descriptors.values(), log, log)
        theirs.close()
        self.connect(ours)

    def connect(self, ours: socket.socket) -> None:
        self._socket, self._unread = ours, b""
        self._selector.register(ours, selectors.EVENT_READ, partial(self._read, ours))

    def finish(self) -> None:
        """Execute the remaining requests of an agent that has ended."""
        while self._socket is not None and self._socket.fileno() >= 0:
            # What it asked for last counts, and it asks for nothing more.
            self._read(self._socket)
        self.daemon.pid = 0

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()

    def report(self, report: Report) -> None:
        if self._socket is None:
            return
        line = encode(report)
        try:
            whole = self._socket.send(line, socket.MSG_DONTWAIT) == len(line)
        except BlockingIOError:
            whole = False
        except OSError:
            # There is no agent just now; the next one gets the whole state.
            return
        if not whole:
            # It does not read; a new one will, and gets the whole state.
            kill_group(self.daemon.pid, signal.SIGKILL)

    def report_event(self, event: dict[str, Any]) -> None:
        """Report an event of a worker, to the next agent too."""
        self._events.append(event)
        self.report(WorkerEvent(event))

    def forget_events(self) -> None:
        self._events.clear()

    def newest_events(self) -> list[dict[str, Any]]:
        """Return the newest events of workers, as far as the first message has room."""
        events: list[dict[str, Any]] = []
        room = REPEATED_BYTES
        for event in reversed(self._events):
            if (room := room - len(json.dumps(event))) < 0:
                break
            events.insert(0, event)
        return events

    def _read(self, agent: socket.socket) -> None:
        if agent is not self._socket:  # its end was noticed in the same turn
            return
        try:
            data = agent.recv(READ_BYTES)
        except ConnectionResetError:  # it ended with unread reports
            data = b""
        if not data:
            # It is gone: SIGCHLD follows, and starts the next one.
            self._selector.unregister(agent)
            agent.close()
            return
        *lines, self._unread = (self._unread + data).split(b"\n")
        for line in lines:
            request = request_of(line)
            try:
                self._execute(request)
            except OSError as error:
                # No process, no disk, no address: the node is unusable.
                print(f"{type(request).__struct_config__.tag}: {error}", file=sys.stderr, flush=True)
                self._exit.retry_elsewhere()
