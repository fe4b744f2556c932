"""Opens sockets that listen under a node's own name, in whichever family its address is."""

import errno
import socket
from collections.abc import Iterable

LOOPBACK = "127.0.0.1"
# What a machine may call itself: Debian 127.0.1.1 (Debian Reference, 5.1.1), others one of the usual addresses.
_ITSELF = {LOOPBACK, "127.0.1.1", "::1"}

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


def reachable_address(host: str, others: Iterable[str]) -> str:
    """Return the address on which this machine listens for the `others`, which know it as `host`: the name itself, unless the machine
    resolves it to itself alone, where no other machine finds it; then another of its addresses, or the one on the way to another node."""
    own = _addresses(host)
    if not _ITSELF & set(own):
        return host
    if elsewhere := [address for address in own if address not in _ITSELF]:
        return elsewhere[0]
    away = next((other for other in others if not set(_addresses(other)) <= _ITSELF), None)
    return host if away is None else address_towards(away)


def address_towards(host: str, port: int = 9) -> str:
    """Return this machine's address on the way to `host`; loopback if there is none. Nothing is sent."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(address)
            return str(probe.getsockname()[0])
    except OSError:
        return LOOPBACK


def _addresses(host: str) -> list[str]:
    """Return the addresses that this machine knows for `host`, in the resolver's order; none if it does not know the name."""
    try:
        return [str(entry[4][0]) for entry in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)]
    except OSError:
        return []
