"""Table of the operating systems that a fabric's switches may have.

In: `switches.os` of a fabric. Out: a `SwitchKind` (templates/kind.py).
To add one, add a folder with `options.py`, `check.py`, `render.py` and `read.py`, and a row below.
"""

import types
from collections.abc import Mapping

from headway.templates.kind import SwitchKind
from headway.templates.switches.eos import EOS
from headway.templates.switches.frr import FRR
from headway.templates.switches.nvue import NVUE
from headway.templates.switches.opensm import OPENSM
from headway.templates.switches.sonic import SONIC

SWITCHES: Mapping[str, SwitchKind] = types.MappingProxyType(
    {"eos": EOS, "frr": FRR, "nvue": NVUE, "opensm": OPENSM, "sonic": SONIC}
)
