"""Table of the operating systems that a fabric's switches may have.

In: `switches.os` of a fabric. Out: a `SwitchKind` (templates/kind.py).
To add one, add a folder with `options.py`, `check.py`, `render.py` and `read.py`, and its name below.
"""

import types
from collections.abc import Mapping

from headway.templates.kind import Kinds, SwitchKind

SWITCHES: Mapping[str, SwitchKind] = Kinds(__name__, ("eos", "frr", "nvue", "opensm", "sonic"))

# Files that are read back, by their names, and the system that each is of.
FILES: Mapping[str, str] = types.MappingProxyType(
    {
        "startup-config": "eos",
        "frr.conf": "frr",
        "90-headway.conf": "frr",
        "startup.yaml": "nvue",
        "opensm.conf": "opensm",
        "partitions.conf": "opensm",
        "root-guids": "opensm",
        "ib-node-name-map": "opensm",
        "topology.net": "opensm",
        "config_db.json": "sonic",
    }
)
