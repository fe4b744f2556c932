"""Table of the trainers that a job may name.

In: the `trainer` of a job document. Out: a `JobKind` (templates/kind.py).
To add a trainer, add a folder (CONTRIBUTING.md, "Add a kind") and its name below.
"""

from collections.abc import Mapping

from headway.templates.kind import JobKind, Kinds

TRAINERS: Mapping[str, JobKind] = Kinds(__name__, ("builtin", "script", "torchtitan", "megatron", "hf", "lightning", "deepspeed"))
