"""Sockets that listen under a node's own name, of whichever family its address is."""

import socket


def listen(host: str, backlog: int | None = None) -> socket.socket:
    """A socket on any free port of `host`; of its addresses the first that is this machine's, IPv4 before IPv6. Raises OSError."""
    found = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    failure = OSError(f"{host} has no address")
    for family, _, _, _, address in sorted(found, key=lambda each: each[0] != socket.AF_INET):
        try:
            return socket.create_server((str(address[0]), 0), family=family, backlog=backlog)
        except OSError as error:
            failure = error
    raise failure
