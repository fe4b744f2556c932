"""Opens sockets that listen under a node's own name, in whichever family its address is."""

import array
import errno
import fcntl
import socket
import struct
from collections.abc import Iterable, Iterator

LOOPBACK = "127.0.0.1"
# What a machine may call itself: Debian 127.0.1.1 (Debian Reference, 5.1.1), others one of the usual addresses.
_ITSELF = {LOOPBACK, "127.0.1.1", "::1"}

# Of a rendezvous store: all ranks come at once.
STORE_BACKLOG = 1024

# netdevice(7): SIOCGIFCONF fills an array of `struct ifreq`, of 40 bytes on 64-bit Linux: the name in 16, then the family and port in 4,
# then the IPv4 address.
_SIOCGIFCONF, _IFREQ_BYTES, _MOST_ADDRESSES = 0x8912, 40, 1024


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


def reachable_address(host: str, others: Iterable[str], interfaces: str = "", launcher: str = "") -> str:
    """Return the address on which this machine listens for the `others`, which know it as `host`: the name itself, unless the machine
    resolves it to itself alone, where no other machine finds it.

    Then the first of: another of its addresses, that of the declared `interfaces` (a list with commas), the one on the way to another node,
    and the one on the way to `launcher`. That is the address from which Slurm has started this process: where it is given, a name that does
    not resolve will not do so later either.
    """
    own = _addresses(host)
    if not _ITSELF & set(own) and (own or not launcher):
        return host
    if elsewhere := [address for address in own if address not in _ITSELF]:
        return elsewhere[0]
    names = interfaces.removeprefix("=").split(",")
    if declared := next((address for name, address in interface_addresses() if name in names), None):
        return declared
    away = next((other for other in others if not set(_addresses(other)) <= _ITSELF), launcher)
    return address_towards(away) if away else host


def interface_of(address: str) -> str | None:
    """Return the network interface of this machine that has the IPv4 address; None if none has it."""
    return next((name for name, own in interface_addresses() if own == address), None)


def interface_addresses() -> Iterator[tuple[str, str]]:
    """Yield each IPv4 address of this machine with the name of its network interface; nothing where the kernel does not list them."""
    found = array.array("B", bytes(_MOST_ADDRESSES * _IFREQ_BYTES))
    place, room = found.buffer_info()
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
            filled = fcntl.ioctl(asking.fileno(), _SIOCGIFCONF, struct.pack("iP", room, place))
    except OSError:
        return
    entries = found.tobytes()[: struct.unpack("iP", filled)[0]]
    for start in range(0, len(entries), _IFREQ_BYTES):
        # A second address may have a name such as `eth0:1`.
        name = entries[start : start + 16].partition(b"\0")[0].decode().partition(":")[0]
        yield name, socket.inet_ntoa(entries[start + 20 : start + 24])


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
