"""Connects to all hosts at once, without the engine: a survey before the first change, a sweep of hosts missing in its state."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from msgspec import Struct

from headway.infra.host import FileChange, ForeignFileError, HostState, changes, check_ours
from headway.infra.providers.onprem.converge import clear, look_for
from headway.infra.reach import SshError
from headway.infra.ssh import Ssh, connect

_AT_ONCE = 32

HostError = SshError | ForeignFileError


class HostSurvey(Struct, frozen=True):
    """The result for a host: its changes, or why there are none."""

    host: str
    changes: tuple[FileChange, ...] = ()
    error: HostError | None = None


def survey(hosts: Sequence[HostState]) -> list[HostSurvey]:
    """Return the changes that each host needs; an error if it is unreachable, or if a file is in the way."""
    return _on_each(hosts, _look)


def sweep(hosts: Sequence[HostState]) -> list[HostSurvey]:
    """Remove from each host what its manifest lists for the cluster."""
    return _on_each(hosts, _clear)


def _on_each(hosts: Sequence[HostState], work: Callable[[Ssh, HostState], list[FileChange]]) -> list[HostSurvey]:
    def one(state: HostState) -> HostSurvey:
        try:
            with connect(state.reach) as ssh:
                return HostSurvey(state.name, tuple(work(ssh, state)))
        except (SshError, ForeignFileError) as error:
            return HostSurvey(state.name, error=error)

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return list(pool.map(one, hosts))


def _look(ssh: Ssh, state: HostState) -> list[FileChange]:
    view = look_for(ssh, state)
    check_ours(state, view)
    return changes(state, view)


def _clear(ssh: Ssh, state: HostState) -> list[FileChange]:
    return [FileChange(path, "extra") for path in clear(ssh, state.cluster)]
