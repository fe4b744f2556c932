"""Runs the keeper's process: `python -m headway.runner.checkpoint.keeper --socket NAME --parent-fd FD`."""

import argparse
import logging
import os
import signal
import socket
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from headway.runner import log
from headway.runner.checkpoint.keeper.peer import PeerNetwork
from headway.runner.checkpoint.keeper.service import Keeper
from headway.runner.checkpoint.keeper.wire import Wire, address, peer_uid

_log = logging.getLogger(__name__)

READY = b"ready\n"
# Training comes first; HEADWAY_KEEPER_NICE changes it.
NICE = 19


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Serve until the other end of `--parent-fd` is closed; with `--standalone`, until the last worker has left."""
    description = (__doc__ or "").splitlines()[0]
    parser = argparse.ArgumentParser(prog="python -m headway.runner.checkpoint.keeper", description=description)
    parser.add_argument("--socket", required=True, metavar="NAME", help="the abstract Unix socket to listen on")
    parser.add_argument(
        "--parent-fd",
        type=int,
        required=True,
        help="a socket to the parent: the keeper writes `ready` to it, and ends when the parent closes it",
    )
    parser.add_argument("--standalone", action="store_true", help="run in the background and end with the last worker")
    parser.add_argument("--secret-file", type=Path, help="file with the run's secret; without it the tier `peer` is unavailable")
    parser.add_argument("--address-file", type=Path, help="write the address that other nodes' keepers connect to into this file")
    parser.add_argument("--host", default="127.0.0.1", help="name of this node on the other nodes")
    parser.add_argument("--dscp", type=int, help="DSCP of packets to other nodes")
    arguments = parser.parse_args(argv)
    if arguments.standalone:
        _leave_parent()
    else:
        log.configure("keeper", node=int(os.environ.get("HEADWAY_NODE", "0")))
    # A scheduler signals every process; workers then save, and need this one.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    # Threads inherit it from the one that starts them (setpriority(2)).
    os.nice(int(os.environ.get("HEADWAY_KEEPER_NICE", NICE)))
    listener, keeper = _listen(arguments.socket), Keeper(_network(arguments.secret_file, arguments.dscp))
    _start(_accept, listener, keeper)
    if arguments.address_file is not None and arguments.secret_file is not None:
        _start(keeper.listen, arguments.host, arguments.address_file)
    parent = socket.socket(fileno=arguments.parent_fd)
    # It may have gone already.
    with suppress(OSError):
        parent.sendall(READY)
    if arguments.standalone:
        _start(_outlive, parent, keeper)
        keeper.wait_until_left()
    else:
        _wait_for_end(parent)
    # Threads that still write to a store are not awaited: their writes do not count yet.
    os._exit(0)


def _leave_parent() -> None:
    """Continue in a child that no process has to reap, without the sockets and devices that a worker's libraries leave
    open for children."""
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    if os.fork():
        os._exit(0)


def _start(target: Callable[..., None], *arguments: object) -> None:
    threading.Thread(target=target, args=arguments, daemon=True).start()


def _network(secret_file: Path | None, dscp: int | None) -> PeerNetwork | None:
    return None if secret_file is None else PeerNetwork(bytes.fromhex(secret_file.read_text().strip()), dscp)


def _listen(name: str) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    listener.bind(address(name))
    listener.listen(1024)
    return listener


def _accept(listener: socket.socket, keeper: Keeper) -> None:
    """Serve the processes of this user and hang up on all others: an abstract name has no permissions (unix(7))."""
    while True:
        connection, _ = listener.accept()
        if peer_uid(connection) == os.getuid():
            _start(keeper.attend, Wire(connection))
        else:
            _log.warning("refused a connection of user %s", peer_uid(connection))
            connection.close()


def _wait_for_end(parent: socket.socket) -> None:
    with suppress(OSError):
        while parent.recv(1):
            continue


def _outlive(parent: socket.socket, keeper: Keeper) -> None:
    _wait_for_end(parent)
    keeper.expect_nobody()


if __name__ == "__main__":
    main()
