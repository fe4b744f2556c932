"""Subnet manager `opensm`: routing, partitions and service levels of a whole InfiniBand fabric, and the cables as a netlist.

In: a fabric's switches in a cluster's plan. Out: files for the host that runs opensm; `read.py` reads an opensm.conf back.
Start reading: `render.py`.
"""

from headway.templates.kind import SwitchKind, no_switch_files
from headway.templates.reading import Reading
from headway.templates.switches.opensm.check import check
from headway.templates.switches.opensm.options import OpensmOptions
from headway.templates.switches.opensm.render import FILE, OTHERS, render_fabric


def _read(text: str) -> Reading:
    from headway.templates.switches.opensm.read import read  # noqa: PLC0415 (a job's check reads no switch's file)

    return read(text)


def _read_lines(text: str) -> Reading:
    from headway.templates.switches.opensm.read import read_lines  # noqa: PLC0415 (a job's check reads no switch's file)

    return read_lines(text)


READERS = dict.fromkeys(OTHERS, _read_lines)
"""Readers of the files next to `opensm.conf`, by name."""

OPENSM = SwitchKind(
    "opensm",
    OpensmOptions,
    FILE,
    "",
    check,
    no_switch_files,
    _read,
    OTHERS,
    balancing=None,
    render_fabric=render_fabric,
    transports=("infiniband",),
)
