"""Switch OS `sonic`: ports, queues, PFC, ECN and BGP in one `config_db.json`.

In: a `SwitchPlan` of a cluster's plan. Out: `config_db.json`; `read.py` reads one back.
Start reading: `render.py`.
"""

from headway.templates.kind import SwitchKind
from headway.templates.reading import Reading
from headway.templates.switches.sonic.check import check
from headway.templates.switches.sonic.options import SonicOptions
from headway.templates.switches.sonic.render import FILE, render


def _read(text: str) -> Reading:
    from headway.templates.switches.sonic.read import read  # noqa: PLC0415 (a job's check reads no switch's file)

    return read(text)


SONIC = SwitchKind(SonicOptions, FILE, "DEVICE_METADATA|localhost|hostname", check, render, _read)
