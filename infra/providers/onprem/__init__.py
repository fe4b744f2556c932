"""Provider `onprem`: existing machines, reached by SSH as root or by sudo.

In: a cluster's plan and its rendered host files.
Out: headway's own files and systemd units on each host, and nothing else.
Start reading: `hosts.py` (what each host should hold), `converge.py` (how a host gets there),
`provider.py` (the same as a Pulumi resource).
"""

from pathlib import Path
from typing import TYPE_CHECKING

from headway.infra.providers.kind import ProviderKind
from headway.infra.providers.onprem.options import OnpremOptions
from headway.jobspec.plan import ClusterPlan
from headway.templates.kind import Files

if TYPE_CHECKING:
    from headway.infra.host import HostState
    from headway.infra.reach import Reach


def _host_states(options: OnpremOptions, plan: ClusterPlan, files: Files, folder: Path) -> "list[HostState]":
    from headway.infra.providers.onprem.hosts import host_states  # noqa: PLC0415 (only `up`, `preview` and `down` need it)

    return host_states(options, plan, files, folder)


def _reach(options: OnpremOptions, folder: Path) -> "Reach":
    from headway.infra.providers.onprem.hosts import reach  # noqa: PLC0415 (only `up`, `preview` and `down` need it)

    return reach(options, folder)


ONPREM = ProviderKind(OnpremOptions, _host_states, _reach)
