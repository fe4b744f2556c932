"""Table of the schedulers that a cluster document may name.

In: the `scheduler` of a cluster document. Out: a `JobKind` (templates/kind.py).
To add a scheduler, add a folder with `options.py`, `check.py` and `render.py`, and a row below.
"""

import types
from collections.abc import Mapping

from headway.templates.kind import JobKind
from headway.templates.schedulers.kubernetes import KUBERNETES
from headway.templates.schedulers.local import LOCAL
from headway.templates.schedulers.slurm import SLURM

SCHEDULERS: Mapping[str, JobKind] = types.MappingProxyType({"kubernetes": KUBERNETES, "local": LOCAL, "slurm": SLURM})
