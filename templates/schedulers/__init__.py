"""The schedulers that a cluster may have."""

import types
from collections.abc import Mapping

from headway.templates.kind import JobKind
from headway.templates.schedulers.kubernetes import KUBERNETES
from headway.templates.schedulers.local import LOCAL
from headway.templates.schedulers.slurm import SLURM

SCHEDULERS: Mapping[str, JobKind] = types.MappingProxyType({"kubernetes": KUBERNETES, "local": LOCAL, "slurm": SLURM})
