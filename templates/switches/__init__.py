"""The operating systems that a fabric's switches may have."""

import types
from collections.abc import Mapping

from headway.templates.kind import SwitchKind

SWITCHES: Mapping[str, SwitchKind] = types.MappingProxyType({})
