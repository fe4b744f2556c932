"""Describes how a host is reached over SSH, as a plain record, so that plans and options need no SSH library."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Reach:
    """The address of a host's sshd and the user to log in as. Without `identity` an agent has the key; `known_hosts` is
    a file."""

    name: str
    address: str
    port: int = 22
    user: str = "root"
    identity: str | None = None
    known_hosts: str | None = None

    @property
    def place(self) -> str:
        """The machine's identity. A node's name may move to another machine when one before it leaves the cluster; this
        does not."""
        return f"{self.address}:{self.port}"

    def __str__(self) -> str:
        return f"{self.name} ({self.user}@{self.address}:{self.port})"
