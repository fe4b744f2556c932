"""Describes how a host is reached over SSH, as a plain record, so that plans and options need no SSH library."""

from pathlib import Path

from msgspec import Struct


class SshError(Exception):
    """A host is unreachable, or a command failed on it; the message begins with the host."""


class ConnectError(SshError):
    """There is no connection: the address, the host's key, or ours is wrong."""


class HostCommandError(SshError):
    """A command has ended on the host with this exit code, which is not 0; `reason` is what it printed."""

    def __init__(self, message: str, code: int, reason: str) -> None:
        super().__init__(message)
        self.code, self.reason = code, reason


def from_folder(folder: Path, path: str | None) -> str | None:
    """Return a path of a document in `folder` as an absolute one; one in a home stays."""
    return path if path is None or path.startswith("~") else str((folder / path).absolute())


class Reach(Struct, frozen=True):
    """The address of a host's sshd and the user to log in as. Without `identity` an agent has the key; `known_hosts` is
    a file. `jump` is the host through which the connection goes. With `as_ssh` the keys that ssh would find by itself,
    in an agent and in ~/.ssh, are tried after `identity`."""

    name: str
    address: str
    port: int = 22
    user: str = "root"
    identity: str | None = None
    known_hosts: str | None = None
    jump: "Reach | None" = None
    as_ssh: bool = False

    @property
    def place(self) -> str:
        """The machine's identity. A node's name may move to another machine when one before it leaves the cluster; this
        does not."""
        return f"{self.address}:{self.port}"

    def __str__(self) -> str:
        return f"{self.name} ({self.user}@{self.address}:{self.port})"
