"""Machines that are there already, with sshd and root: headway's own files and systemd units are put on them, nothing else."""

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
