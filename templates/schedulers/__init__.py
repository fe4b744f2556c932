"""Table of the schedulers that a cluster document may name.

In: the `scheduler` of a cluster document. Out: a `JobKind` (templates/kind.py).
To add a scheduler, add a folder with `options.py`, `check.py` and `render.py`, and its name below.
"""

from collections.abc import Mapping

from headway.templates.kind import JobKind, Kinds

SCHEDULERS: Mapping[str, JobKind] = Kinds(__name__, ("kubernetes", "local", "slurm"))
