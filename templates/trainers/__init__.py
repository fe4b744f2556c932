"""The trainers that a job may name."""

import types
from collections.abc import Mapping

from headway.templates.kind import JobKind
from headway.templates.trainers.builtin import BUILTIN

TRAINERS: Mapping[str, JobKind] = types.MappingProxyType({"builtin": BUILTIN})
