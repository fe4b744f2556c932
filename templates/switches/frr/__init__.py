"""Switch OS `frr`: BGP on unnumbered links in one integrated `frr.conf`, and its kernel's settings.

In: a `SwitchPlan` of a cluster's plan. Out: `frr.conf` and a file of sysctl; `read.py` and `sysctl.py` read them back.
Start reading: `render.py`, `frr.conf.j2`.
"""

from pathlib import PurePosixPath

from headway.templates.kind import SwitchKind
from headway.templates.reading import Reading
from headway.templates.switches.frr.check import check, judge
from headway.templates.switches.frr.options import FrrOptions
from headway.templates.switches.frr.render import FILE, MAX_PATHS, render
from headway.templates.switches.frr.sysctl import SYSCTL


def _read(text: str) -> Reading:
    from headway.templates.switches.frr.read import read  # noqa: PLC0415 (a job's check reads no switch's file)

    return read(text)


def _read_sysctl(text: str) -> Reading:
    from headway.templates.switches.frr import sysctl  # noqa: PLC0415 (a job's check reads no switch's file)

    return sysctl.read(text)


FRR = SwitchKind(
    "FRR",
    FrrOptions,
    FILE,
    "hostname",
    check,
    render,
    _read,
    (SYSCTL,),
    most_paths=MAX_PATHS,
    judge=judge,
    readers={PurePosixPath(SYSCTL).name: _read_sysctl},
)
