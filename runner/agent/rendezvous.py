"""Holds the node's socket for the rendezvous store, and the process that serves the store of a generation on it."""

import os
import selectors
import socket
import sys
from functools import partial

from headway.runner.agent import store
from headway.runner.agent.daemons import Daemon
from headway.runner.agent.listening import STORE_BACKLOG, listen
from headway.runner.agent.place import NodeExit, Place

# An earlier generation's store ends within milliseconds.
STORE_ENDS_S = 10.0


class Rendezvous:
    """A listening socket that is held open, so that this node can be the one with rank 0 at once, and the host of its stores."""

    def __init__(self, place: Place, selector: selectors.BaseSelector, node_exit: NodeExit) -> None:
        self._place, self._selector, self._exit = place, selector, node_exit
        self._socket: socket.socket | None = None
        self._host: store.StoreHost | None = None
        self._daemon = Daemon("headway.runner.agent.store")

    @property
    def has_host(self) -> bool:
        return self._host is not None

    @property
    def pid(self) -> int:
        """The process of the host; 0 while it is unknown."""
        if self._host is None:
            return 0
        if not self._host.pid:
            # It reports its pid before it can be a child of this process.
            self._host.hear()
        return self._host.pid

    def take_on_socket(self) -> None:
        """Take the socket of a port that was given for the store."""
        if (given := os.environ.pop(store.SOCKET, None)) is not None:
            self._socket = socket.socket(fileno=int(given))
            self._socket.set_inheritable(False)

    def open(self) -> None:
        """Open the socket, unless it is open."""
        if self._socket is not None:
            return
        try:
            self._socket = listen(self._place.address, STORE_BACKLOG)
        except OSError as error:
            # The name is not this machine's yet: the agent asks again.
            print(f"cannot listen on {self._place.address}: {error}", file=sys.stderr, flush=True)

    def port(self) -> int | None:
        return None if self._socket is None else int(self._socket.getsockname()[1])

    def keep_host(self, host: store.StoreHost) -> None:
        self._host = host
        self._selector.register(host.orders, selectors.EVENT_READ, partial(self._hear_host, host))

    def start_host(self) -> store.StoreHost:
        """Start a host, which imports torch first."""
        host = store.start(self._place.companion_environment(), self._place.log("store"))
        self.keep_host(host)
        return host

    def serve(self) -> None:
        """Have the generation's store served at the address that this node reported. On a given port, the previous store has ended when
        this returns, so that it accepts none of the new workers."""
        assert self._host is not None  # noqa: S101  there is one from the start
        if self._socket is not None and self._place.config.ports.store:
            self._host.serve(self._socket.dup())
            if self._host.ordered > 1:
                self._host.wait(STORE_ENDS_S)
        elif self._socket is not None:
            self._host.serve(self._socket)
            self._socket = None

    def close(self) -> None:
        of_host = () if self._host is None else (self._host.orders, self._host.unserved)
        for each in (*of_host, self._socket):
            if each is not None:
                each.close()

    def _hear_host(self, host: store.StoreHost) -> None:
        """Replace a host that has ended. Its stores are gone, as with torchrun's agent; one that it had not begun to serve is served."""
        if host is not self._host or host.hear():
            return
        self._selector.unregister(host.orders)
        host.orders.close()
        if self._daemon.count_death():
            host.forget()
            self._exit.retry_elsewhere()
            return
        successor = self.start_host()
        if host.unserved is not None:
            successor.serve(host.unserved)
