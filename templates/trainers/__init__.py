"""The trainers that a job may name."""

import types
from collections.abc import Mapping

from headway.templates.kind import JobKind
from headway.templates.trainers.builtin import BUILTIN
from headway.templates.trainers.script import SCRIPT

TRAINERS: Mapping[str, JobKind] = types.MappingProxyType({"builtin": BUILTIN, "script": SCRIPT})
