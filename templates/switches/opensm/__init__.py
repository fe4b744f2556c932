"""Subnet manager `opensm`: routing, partitions and service levels of a whole InfiniBand fabric, and the cables as a netlist.

In: a fabric's switches in a cluster's plan. Out: files for the host that runs opensm. `read.py` reads an opensm.conf back,
`subnet.py` the files next to it.
Start reading: `render.py`.
"""

from functools import partial

from headway.templates.kind import SwitchKind, no_switch_files
from headway.templates.reading import Reading
from headway.templates.switches.opensm.check import check, judge
from headway.templates.switches.opensm.options import OpensmOptions
from headway.templates.switches.opensm.render import FILE, NAMES, NETLIST, OTHERS, PARTITIONS, ROOTS, render_fabric


def _read(text: str) -> Reading:
    from headway.templates.switches.opensm.read import read  # noqa: PLC0415 (a job's check reads no switch's file)

    return read(text)


def _read_other(name: str, text: str) -> Reading:
    from headway.templates.switches.opensm import subnet  # noqa: PLC0415 (a job's check reads no switch's file)

    readers = {
        PARTITIONS: subnet.read_partitions,
        ROOTS: subnet.read_roots,
        NAMES: subnet.read_names,
        NETLIST: subnet.read_netlist,
    }
    return readers[name](text)


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
    judge=judge,
    loading="a restart of opensm with the new files (docs/fabric.md, InfiniBand)",
    readers={name: partial(_read_other, name) for name in OTHERS},
)
