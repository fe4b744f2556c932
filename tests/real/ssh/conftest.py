"""Provides the hosts that the tests of this folder share."""

from collections.abc import Iterator

import pytest

from .hosts import SshHosts
from .programs import obstacle


@pytest.fixture(scope="session")
def ssh_here() -> None:
    """Skips where no host can be started, and names what to install."""
    reason = obstacle()
    if reason is not None:
        pytest.skip(reason)


@pytest.fixture(scope="session")
def ssh_hosts(ssh_here: None) -> Iterator[SshHosts]:
    """Two hosts without systemd, n1 and n2, and one with it, n3. A test removes everything that it has created there."""
    with SshHosts({"n1": False, "n2": False, "n3": True}) as hosts:
        yield hosts
