"""Claims a block of free TCP ports and a loopback subnet for the lifetime of a cluster."""

import socket
from collections.abc import Sequence
from dataclasses import dataclass

FIRST_PORT = 20_000
PORTS_PER_BLOCK = 64
# Ends below 32768, where Linux begins to allocate the ports of outgoing connections.
BLOCKS = range(1, 190)
MAX_NODES = PORTS_PER_BLOCK - 2


@dataclass(frozen=True)
class Addresses:
    """Node `i` (from 1) has the address 127.77.BLOCK.i and a port that no other node on this machine has."""

    block: int
    claim: socket.socket

    @property
    def controller_port(self) -> int:
        return FIRST_PORT + self.block * PORTS_PER_BLOCK

    def node_address(self, index: int) -> str:
        return f"127.77.{self.block}.{index}"

    def node_port(self, index: int) -> int:
        return self.controller_port + index

    def release(self) -> None:
        self.claim.close()


def claim_addresses(nodes: int) -> Addresses:
    """The first free block; raises ValueError for more nodes than one block serves, OSError if none is free.

    Two callers never get the same block: the kernel lets only one bind its last port, and releases a dead holder's.
    """
    if nodes > MAX_NODES:
        raise ValueError(f"`{nodes}` nodes asked for, one block of ports serves `{MAX_NODES}`")
    for block in BLOCKS:
        claim = socket.socket()
        addresses = Addresses(block, claim)
        first = addresses.controller_port
        if _bind(claim, first + PORTS_PER_BLOCK - 1) and _are_free(range(first, first + nodes + 1)):
            return addresses
        claim.close()
    raise OSError(f"no free block of {PORTS_PER_BLOCK} ports from {FIRST_PORT} on; end what listens there")


def _are_free(ports: Sequence[int]) -> bool:
    return all(_is_free(port) for port in ports)


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        return _bind(probe, port)


def _bind(unbound: socket.socket, port: int) -> bool:
    # every address: slurmd and slurmctld listen on 0.0.0.0
    try:
        unbound.bind(("", port))
    except OSError:
        return False
    return True
