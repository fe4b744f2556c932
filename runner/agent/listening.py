"""Opens sockets that listen under a node's own name, in whichever family its address is."""

import errno
import socket

# Of a rendezvous store: all ranks come at once.
STORE_BACKLOG = 1024


def listen(host: str, backlog: int | None = None, port: int = 0) -> socket.socket:
    """A socket on a port of `host`, 0 for any free one; of its addresses the first that is this machine's, IPv4 before IPv6.
    Raises OSError."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    failure = OSError(f"{host} has no address")
    for family, _, _, _, address in sorted(found, key=lambda each: each[0] != socket.AF_INET):
        try:
            return socket.create_server((str(address[0]), port), family=family, backlog=backlog)
        except OSError as error:
            failure = error
            if error.errno == errno.EADDRINUSE:
                # A peer that connects to the name's port would reach another process.
                break
    raise failure
