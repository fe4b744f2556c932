"""The operating systems that a fabric's switches may have."""

import types
from collections.abc import Mapping

from headway.templates.kind import SwitchKind
from headway.templates.switches.frr import FRR
from headway.templates.switches.sonic import SONIC

SWITCHES: Mapping[str, SwitchKind] = types.MappingProxyType({"frr": FRR, "sonic": SONIC})
