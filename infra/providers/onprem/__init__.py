"""Machines that are there already, with sshd and root: headway's own files and systemd units are put on them, nothing else."""

from headway.infra.providers.kind import ProviderKind
from headway.infra.providers.onprem.hosts import host_states, reach
from headway.infra.providers.onprem.options import OnpremOptions

ONPREM = ProviderKind(OnpremOptions, host_states, reach)
