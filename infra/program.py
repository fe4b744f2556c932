"""Defines the Pulumi program: hosts in, resources out."""

from collections.abc import Callable, Sequence

from headway.infra.host import HostState
from headway.infra.providers.onprem.provider import Host


def program(hosts: Sequence[HostState]) -> Callable[[], None]:
    """Return the engine's program: one resource for each host."""

    def declare() -> None:
        for state in hosts:
            Host(state)

    return declare
