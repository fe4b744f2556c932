"""Table of the trainers that a job may name.

In: the `trainer` of a job document. Out: a `JobKind` (templates/kind.py).
To add a trainer, add a folder (CONTRIBUTING.md, "Add a kind") and a row below.
"""

import types
from collections.abc import Mapping

from headway.templates.kind import JobKind
from headway.templates.trainers.builtin import BUILTIN
from headway.templates.trainers.deepspeed import DEEPSPEED
from headway.templates.trainers.hf import HF
from headway.templates.trainers.lightning import LIGHTNING
from headway.templates.trainers.megatron import MEGATRON
from headway.templates.trainers.script import SCRIPT
from headway.templates.trainers.torchtitan import TORCHTITAN

TRAINERS: Mapping[str, JobKind] = types.MappingProxyType(
    {
        "builtin": BUILTIN,
        "script": SCRIPT,
        "torchtitan": TORCHTITAN,
        "megatron": MEGATRON,
        "hf": HF,
        "lightning": LIGHTNING,
        "deepspeed": DEEPSPEED,
    }
)
