"""Switch OS `frr`: BGP on unnumbered links in one integrated `frr.conf`.

In: a `SwitchPlan` of a cluster's plan. Out: `frr.conf`; `read.py` reads one back.
Start reading: `render.py`, `frr.conf.j2`.
"""

from headway.templates.kind import SwitchKind
from headway.templates.reading import Reading
from headway.templates.switches.frr.check import check
from headway.templates.switches.frr.options import FrrOptions
from headway.templates.switches.frr.render import FILE, MAX_PATHS, render


def _read(text: str) -> Reading:
    from headway.templates.switches.frr.read import read  # noqa: PLC0415 (a job's check reads no switch's file)

    return read(text)


FRR = SwitchKind("FRR", FrrOptions, FILE, "hostname", check, render, _read, most_paths=MAX_PATHS)
