"""Serves the rendezvous store of the generation whose rank 0 runs on this node, for as long as torchrun's agent does.

A separate process, so that no rank's end, exec or os._exit takes the store along. It is forked from one that has torch imported
(the launcher of torchrun, else the first worker to be), which costs no further import; only where there is none it is started by itself.
Each generation has a store of its own, on a port that was never free in between: torchrun shares one over restarts, and new workers then
read dead workers' addresses (pytorch/pytorch#135712). Where a port was given for it, each generation's is on the same socket, and the one
before has ended when its workers start.
"""

import array
import contextlib
import gc
import json
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from headway.runner.agent.processes import spawn
from headway.runner.start import START

ORDERS_FD = "HEADWAY_STORE_HOST_FD"
# What a launcher passes on to the supervisor that takes its place: `[pid, descriptor]`.
PASSED_ON = "HEADWAY_STORE_HOST"
# The descriptor of a socket that listens on the port that was given for the store.
SOCKET = "HEADWAY_STORE_SOCKET"
MESSAGE_BYTES = 4096
# A scheduler signals every process of a step; the supervisor decides, and its end is the end of the socket.
_IGNORED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)


@dataclass
class StoreHost:
    """The host as its supervisor holds it. `pid` is 0 until it is known; `unserved` is the socket of a generation that it has not taken;
    `ordered` and `answered` count generations."""

    orders: socket.socket
    pid: int = 0
    unserved: socket.socket | None = None
    ordered: int = 0
    answered: int = 0

    def serve(self, listening: socket.socket) -> None:
        """Has the store of a new generation served on a socket that listens. The socket is this object's from here on."""
        self.forget()
        self.unserved = listening
        passed = array.array("i", [listening.fileno()])
        with contextlib.suppress(OSError):
            # It has died: who takes its place gets it.
            self.orders.sendmsg([b"serve"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, passed)], socket.MSG_DONTWAIT)
            self.ordered += 1

    def wait(self, patience_s: float) -> None:
        """Returns when it serves nothing but what it was ordered to last. One that does not get there in time is killed."""
        until = time.monotonic() + patience_s
        while self.hear() and self.answered < self.ordered:
            if not select.select([self.orders], [], [], max(until - time.monotonic(), 0.0))[0]:
                if self.pid:
                    os.kill(self.pid, signal.SIGKILL)
                return

    def forget(self) -> None:
        if self.unserved is not None:
            self.unserved.close()
            self.unserved = None

    def hear(self) -> bool:
        """Read its message; return False if it has ended, or never began."""
        while True:
            try:
                said = self.orders.recv(MESSAGE_BYTES, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return True
            except OSError:
                return False
            if not said:
                return False
            facts = json.loads(said)
            self.pid = facts.get("pid", self.pid)
            if "failed" in facts:
                # A client is refused, instead of waiting forever.
                print(f"the rendezvous store: {facts['failed']}", file=sys.stderr, flush=True)
            if "pid" in facts:
                continue
            self.answered += 1
            if self.answered == self.ordered:
                self.forget()


def start(environment: Mapping[str, str], log: Path) -> StoreHost:
    """A host from nothing, which imports torch first."""
    ours, theirs = _pair()
    argv = [sys.executable, START, "headway.runner.agent.store"]
    pid = spawn(argv, {**environment, ORDERS_FD: str(theirs.fileno())}, [theirs.fileno()], log, log)
    theirs.close()
    return StoreHost(ours, pid)


def begin() -> tuple[StoreHost, socket.socket]:
    """A host to be, and its end of the socket: for a process that will have torch imported, and calls `fork_away`."""
    ours, theirs = _pair()
    return StoreHost(ours), theirs


def fork_host() -> StoreHost:
    """A host as a child of this process, which has torch imported and is to become something else."""
    ours, theirs = _pair()
    pid = os.fork()
    if pid == 0:
        _serve_forked(theirs, os.sched_getaffinity(0))
    theirs.close()
    return StoreHost(ours, pid)


def fork_away(orders: socket.socket, cpus: Iterable[int]) -> None:
    """Fork a host that becomes a child of the supervisor, which adopts orphans; it has reported its pid before this returns. It may run on
    `cpus`."""
    between = os.fork()
    if between == 0:
        told, tells = os.pipe()
        if os.fork() == 0:
            _serve_forked(orders, cpus)
        os.close(tells)
        # The host closes its end once it has sent its pid: by then the supervisor may be its parent.
        os.read(told, 1)
        os._exit(0)
    os.waitpid(between, 0)


def pass_on(host: StoreHost) -> str:
    """Return the value of PASSED_ON; the descriptor is inheritable from here on."""
    descriptor = host.orders.detach()
    os.set_inheritable(descriptor, True)
    return json.dumps([host.pid, descriptor])


def take_on(said: str) -> StoreHost:
    """The host that the process before this image has passed on."""
    pid, descriptor = json.loads(said)
    orders = socket.socket(fileno=descriptor)
    orders.set_inheritable(False)
    return StoreHost(orders, pid)


def _pair() -> tuple[socket.socket, socket.socket]:
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def _serve_forked(orders: socket.socket, cpus: Iterable[int]) -> NoReturn:
    """The child's side of a fork, with nothing of its parent's but what is imported."""
    try:
        gc.disable()
        os.setsid()
        signal.set_wakeup_fd(-1)
        os.sched_setaffinity(0, cpus)
        orders.send(json.dumps({"pid": os.getpid()}).encode())
        nowhere = os.open(os.devnull, os.O_RDWR)
        for standard in (0, 1, 2):
            os.dup2(nowhere, standard)
        os.closerange(3, orders.fileno())
        os.closerange(orders.fileno() + 1, os.sysconf("SC_OPEN_MAX"))
        serve(orders)
    finally:
        os._exit(1)


def serve(orders: socket.socket) -> NoReturn:
    """Serves what is ordered until the supervisor has gone."""
    for number in _IGNORED:
        signal.signal(number, signal.SIG_IGN)
    store: Any = None
    while (descriptor := _receive(orders)) is not None:
        # It ends before the next begins, which may be on the same port.
        store = None
        try:
            store = _store(descriptor)
        except Exception as error:  # torch that is not there, too
            said = {"failed": f"{type(error).__name__}: {error}"[: MESSAGE_BYTES // 2]}
        else:
            said = {"serving": store.port}
        with contextlib.suppress(OSError):
            orders.send(json.dumps(said).encode())
    os._exit(0)


def _receive(orders: socket.socket) -> int | None:
    """The next socket to serve on; None when the supervisor has gone."""
    try:
        data, rights, _, _ = orders.recvmsg(16, socket.CMSG_SPACE(4), socket.MSG_CMSG_CLOEXEC)
    except OSError:
        return None
    return int.from_bytes(rights[0][2][:4], sys.byteorder) if data and rights else None


def _store(descriptor: int) -> Any:
    from torch._C._distributed_c10d import TCPStore  # noqa: PLC0415  importing torch costs a second, so only here

    with socket.socket(fileno=os.dup(descriptor)) as listening:
        host, port = listening.getsockname()[:2]
    serve = partial(
        TCPStore,
        host,
        port,
        is_master=True,
        timeout=timedelta(seconds=300),
        wait_for_workers=False,
        master_listen_fd=descriptor,
    )
    try:
        return serve()
    except NotImplementedError:
        # Torch's newer kind of store takes no socket that listens in 2.6.
        return serve(use_libuv=False)


def main() -> None:
    orders = socket.socket(fileno=int(os.environ.pop(ORDERS_FD)))
    orders.set_inheritable(False)
    with contextlib.suppress(Exception):
        import torch.distributed  # noqa: F401, PLC0415  before it is needed
    serve(orders)


if __name__ == "__main__":
    main()
