"""Connects to all hosts at once, without the engine: a survey before the first change, a sweep of hosts missing in its state."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from headway.infra.host import Change, ForeignError, HostState, changes, check_ours
from headway.infra.providers.onprem.converge import clear, look_for
from headway.infra.ssh import Ssh, SshError, connect

_AT_ONCE = 32

HostError = SshError | ForeignError


@dataclass(frozen=True)
class Found:
    """The result for a host: its changes, or why there are none."""

    host: str
    changes: tuple[Change, ...] = ()
    error: HostError | None = None


def survey(hosts: Sequence[HostState]) -> list[Found]:
    """Return the changes that each host needs; an error if it is unreachable, or if a file is in the way."""
    return _on_each(hosts, _look)


def sweep(hosts: Sequence[HostState]) -> list[Found]:
    """Remove from each host what its manifest lists for the cluster."""
    return _on_each(hosts, _clear)


def _on_each(hosts: Sequence[HostState], work: Callable[[Ssh, HostState], list[Change]]) -> list[Found]:
    def one(state: HostState) -> Found:
        try:
            with connect(state.reach) as ssh:
                return Found(state.name, tuple(work(ssh, state)))
        except (SshError, ForeignError) as error:
            return Found(state.name, error=error)

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return list(pool.map(one, hosts))


def _look(ssh: Ssh, state: HostState) -> list[Change]:
    view = look_for(ssh, state)
    check_ours(state, view)
    return changes(state, view)


def _clear(ssh: Ssh, state: HostState) -> list[Change]:
    return [Change(path, "extra") for path in clear(ssh, state.cluster)]
